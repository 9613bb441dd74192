//! The users of the cluster: they create, change and delete pods.

use podwright_model::pod::SOURCE_ANNOTATION;
use podwright_stand_in::Refusal;
use serde_json::{Value, json};

use super::{Cluster, NAMESPACE, UID};
use crate::pod_objects::{self, PodRevision};
use crate::scenario::{ClaimPlan, PodPlan};

/// The lists of containers whose images a user changes.
const LISTS: [&str; 2] = ["containers", "initContainers"];

impl Cluster {
    /// Creates, changes or deletes the pod of a plan, so that it has this revision, or does not exist.
    pub(crate) fn write(&self, plan: &PodPlan, claims: &[ClaimPlan], revision: Option<&PodRevision<'_>>) {
        let found = self.server.get("pods", NAMESPACE, &plan.name);
        let uid = found.as_ref().and_then(|found| found["metadata"]["uid"].as_str());
        let is_there = revision.is_some_and(|revision| uid == Some(revision.uid));
        if found.is_some() && !is_there {
            self.delete(&plan.name, 0);
        }
        let Some(revision) = revision else { return };
        let pod = pod_objects::pod_json(plan, claims, revision);
        match is_there {
            true => self.update(plan, &pod),
            false => self.create(pod, revision.uid),
        }
        if let Some(grace) = revision.deleting {
            self.delete(&plan.name, grace);
        }
    }

    fn create(&self, mut pod: Value, uid: &str) {
        pod["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
        // The adapter adds it.
        annotations.remove(SOURCE_ANNOTATION);
        annotations.insert(UID.to_owned(), json!(uid));
        // The volume of the token needs more than the simulated disk has.
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        self.require(self.server.create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), pod));
    }

    fn update(&self, plan: &PodPlan, desired: &Value) {
        let path = path(&plan.name);
        let changed = self.server.replace(&path, |pod| {
            pod["metadata"]["labels"] = desired["metadata"]["labels"].clone();
            LISTS.iter().for_each(|list| copy(list, "image", desired, pod));
        });
        self.require(changed);
        if let Some(resize) = plan.resize {
            let lists = if resize.has_init { &LISTS[..] } else { &LISTS[..1] };
            let resized = self.server.replace(&format!("{path}/resize"), |pod| {
                lists.iter().for_each(|list| copy(list, "resources", desired, pod));
                if let Some(whole) = desired["spec"].get("resources") {
                    pod["spec"]["resources"] = whole.clone();
                }
            });
            self.require(resized);
        }
    }

    /// A user deletes a pod. Without a grace period, it is gone at once.
    pub(crate) fn delete(&self, name: &str, grace: i64) {
        let path = format!("{}?gracePeriodSeconds={grace}", path(name));
        self.require(self.server.request("DELETE", &path, "", &Value::Null));
    }

    fn require(&self, answer: Result<Value, Refusal>) {
        if let Err(refusal) = answer {
            self.machine.violated(format!("the API server refuses a request of a user: {refusal:?}"));
        }
    }
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}")
}

/// Copies a field of each container of a list.
fn copy(list: &str, field: &str, from: &Value, to: &mut Value) {
    let from = from["spec"][list].as_array().into_iter().flatten();
    let to = to["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
    for (to, from) in to.zip(from) {
        to[field] = from[field].clone();
    }
}
