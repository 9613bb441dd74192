//! The pods and the mirror pods of the API server, as the writers of the agent change them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use podwright_actors::ids::FullName;
use podwright_actors::pod::{MIRROR_ANNOTATION, PodObject, SOURCE_ANNOTATION};
use podwright_actors::ports::ApiError;
use serde_json::json;

use super::SimSources;
use crate::checks::CheckResult;
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

    /// A user deletes a mirror pod, with a grace period. Somebody has to delete it without one.
    pub(crate) fn delete_mirror(&mut self, which: PodIndex) {
        let Some(mirror) = self.mirrors.get(&which) else { return };
        let mut pod = serde_json::to_value(mirror.pod()).unwrap();
        pod["metadata"]["deletionTimestamp"] = json!("2027-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        self.store_mirror(which, serde_json::from_value(pod).unwrap());
    }

    /// Each static pod that is in its source has a mirror pod with its status, and no other pod has one.
    pub(crate) fn mirrors_agree(&self, agent: &Agent) -> CheckResult {
        for (which, (entry, plan)) in self.pods.iter().zip(&self.scenario.pods).enumerate() {
            let uid = entry.uid(plan);
            let mirror = self.mirrors.get(&which);
            match mirror {
                None if !entry.present || plan.source == Source::Api => {}
                None => return Err(format!("{uid}: has no mirror pod")),
                Some(mirror) if !entry.present => return Err(format!("{uid}: has the mirror pod {}", mirror.uid())),
                Some(mirror) => {
                    let is_of = mirror.annotation(MIRROR_ANNOTATION) == Some(&uid.to_string());
                    let phase = agent.statuses.phase(&uid);
                    if !is_of || mirror.is_deleting() || phase.is_some_and(|phase| phase != mirror.phase()) {
                        return Err(format!("{uid}: is {phase:?}, and its mirror pod is {:?}", mirror.pod()));
                    }
                }
            }
        }
        Ok(())
    }
}
