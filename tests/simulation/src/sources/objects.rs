//! The pods and the mirror pods of the API server, as the writers of the agent change them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use podwright_model::ids::FullName;
use podwright_model::pod::{MIRROR_ANNOTATION, PodObject, SOURCE_ANNOTATION};
use podwright_ports::{ApiError, SourceSet};
use serde_json::json;

use super::{DesiredPod, SimSources, uid};
use crate::checks::{CheckResult, is_written};
use crate::machine::Agent;
use crate::scenario::{PodIndex, Source};

impl SimSources {
    /// The pod or the mirror pod with this name in the API server.
    pub(crate) fn api_object(&mut self, name: &FullName) -> Option<Arc<PodObject>> {
        let which = self.scenario.pods.iter().position(|plan| plan.name == name.name())?;
        if self.scenario.pods[which].source == Source::File {
            return self.mirrors.get(&which).cloned();
        }
        let entry = self.pods.get_mut(which).filter(|entry| entry.present)?;
        Some(entry.object(&self.scenario.pods[which], &self.scenario.claims).clone())
    }

    fn which(&self, pod: &PodObject) -> PodIndex {
        let found = self.scenario.pods.iter().position(|plan| plan.name == pod.full_name().name());
        found.expect("a pod of the API server is one of the scenario")
    }

    /// Stores a status, and returns the pod as the server has it now.
    pub(crate) fn set_status(&mut self, pod: &PodObject, status: PodStatus) -> Arc<PodObject> {
        let which = self.which(pod);
        if pod.is_mirror() {
            let mut changed = pod.pod().clone();
            changed.status = Some(status);
            return self.store_mirror(which, changed);
        }
        self.change(which, |entry| entry.status = Some(status));
        self.api_object(pod.full_name()).expect("a pod that is changed exists")
    }

    /// The agent deletes a pod.
    pub(crate) fn delete_object(&mut self, pod: &PodObject) {
        let which = self.which(pod);
        if pod.is_mirror() {
            self.mirrors.remove(&which);
            self.lines[Source::Api as usize].changed = true;
        } else {
            self.remove(which);
        }
    }

    pub(crate) fn create_mirror(&mut self, name: &str, pod: &Pod) -> Result<Arc<PodObject>, ApiError> {
        let which = self.scenario.pods.iter().position(|plan| plan.name == name).expect("a static pod of the scenario");
        if self.mirrors.contains_key(&which) {
            return Err(ApiError::conflict("it exists"));
        }
        let mut pod = pod.clone();
        pod.metadata.uid = Some(format!("mirror-{}", self.version + 1));
        pod.metadata.annotations.get_or_insert_default().insert(SOURCE_ANNOTATION.to_owned(), "api".to_owned());
        Ok(self.store_mirror(which, pod))
    }

    fn store_mirror(&mut self, which: PodIndex, mut pod: Pod) -> Arc<PodObject> {
        self.version += 1;
        pod.metadata.resource_version = Some(self.version.to_string());
        let object = PodObject::new(pod).unwrap();
        self.mirrors.insert(which, object.clone());
        self.lines[Source::Api as usize].changed = true;
        object
    }

    /// The mirror pod of a static pod.
    fn mirror(&self, which: PodIndex) -> Option<Arc<PodObject>> {
        let plan = &self.scenario.pods[which];
        match &self.cluster {
            Some(cluster) if plan.source == Source::File => cluster.pod(&plan.name, None),
            _ => self.mirrors.get(&which).cloned(),
        }
    }

    /// A user deletes a mirror pod, with a grace period. It stays until somebody deletes it without a grace period.
    pub(crate) fn delete_mirror(&mut self, which: PodIndex) {
        let Some(mirror) = self.mirror(which) else { return };
        if let Some(cluster) = &self.cluster {
            cluster.delete(mirror.full_name().name(), 30);
            return;
        }
        let mut pod = serde_json::to_value(mirror.pod()).unwrap();
        pod["metadata"]["deletionTimestamp"] = json!("2027-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        self.store_mirror(which, serde_json::from_value(pod).unwrap());
    }

    /// Each static pod that is in its source has a mirror pod with its status, and no other pod has one.
    pub(crate) fn mirrors_agree(&self, agent: &Agent) -> CheckResult {
        for (which, (entry, plan)) in self.pods.iter().zip(&self.scenario.pods).enumerate() {
            let uid = entry.uid(plan);
            match self.mirror(which) {
                None if !entry.present || plan.source == Source::Api => {}
                None => return Err(format!("{uid}: has no mirror pod")),
                Some(mirror) if !entry.present => return Err(format!("{uid}: has the mirror pod {}", mirror.uid())),
                Some(mirror) => {
                    let is_of = mirror.annotation(MIRROR_ANNOTATION) == Some(&uid.to_string());
                    if !is_of || mirror.is_deleting() {
                        return Err(format!("{uid}: its mirror pod is {:?}", mirror.pod()));
                    }
                    if let Some(kept) = agent.statuses.get(&uid) {
                        is_written(&kept, mirror.status())
                            .map_err(|what| format!("the mirror pod of {uid}: {what}"))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the pods of an API server: its users, the agent and the server itself change them.
    pub(super) fn refresh(&mut self) {
        let Some(cluster) = &self.cluster else { return };
        let entries = self.pods.iter_mut().zip(&self.scenario.pods);
        for (entry, plan) in entries.filter(|(_, plan)| plan.source == Source::Api) {
            let current = entry.uid(plan);
            let found = cluster.pod(&plan.name, entry.object.as_ref()).filter(|pod| *pod.uid() == current);
            let may_stop = entry.version > 0 && found.as_ref().is_none_or(|pod| pod.is_deleting());
            let earlier = (0..entry.incarnation).map(|number| uid(plan, number));
            self.may_be_stopped.extend(earlier.chain(may_stop.then_some(current)));
            entry.present = found.is_some();
            entry.object = found;
        }
    }

    /// An adapter sends a set. The set has each pod that the adapter has sent before and that the server still has, and no pod goes back
    /// to an earlier version.
    pub(crate) fn set_sent(&mut self, set: &SourceSet) -> CheckResult {
        self.refresh();
        let version = |pod: &PodObject| -> Option<u64> { pod.metadata().resource_version.as_deref()?.parse().ok() };
        let sent = set.pods.iter().map(|pod| (pod.uid().clone(), version(pod).unwrap_or_default())).collect();
        let before = std::mem::replace(&mut self.sent, sent);
        let exist = self.cluster.as_ref().map(|cluster| cluster.pods()).unwrap_or_default();
        for (uid, earlier) in before {
            match self.sent.get(&uid) {
                Some(now) if *now < earlier => {
                    return Err(format!("{uid}: the source goes back from version {earlier} to {now}"));
                }
                None if exist.contains(&uid) => {
                    return Err(format!("{uid}: the source drops it, although the API server has it"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The API server has the statuses that the agent keeps.
    pub(crate) fn statuses_agree(&mut self, agent: &Agent) -> CheckResult {
        for DesiredPod { uid, pod, .. } in self.desired_pods().iter().filter(|desired| !desired.pod.is_static()) {
            if let Some(kept) = agent.statuses.get(uid) {
                is_written(&kept, pod.status()).map_err(|what| format!("{uid}: {what}"))?;
            }
        }
        Ok(())
    }

    /// The API server of the adapters has no pod.
    pub(crate) fn pods_are_gone(&self) -> CheckResult {
        match self.cluster.as_ref().and_then(|cluster| cluster.pods().into_iter().next()) {
            Some(uid) => Err(format!("{uid}: is still in the API server")),
            None => Ok(()),
        }
    }
}
