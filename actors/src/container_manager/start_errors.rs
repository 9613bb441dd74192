//! The last start error of each container.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use crate::containers::StartError;
use crate::ids::{ContainerId, ContainerName, PodUid};

/// The start errors of all pods. Only the hook that starts a pod's containers writes the pod's errors.
#[derive(Debug, Default)]
pub struct StartErrors {
    pods: Mutex<HashMap<PodUid, BTreeMap<ContainerName, StartError>, foldhash::fast::RandomState>>,
}

impl StartErrors {
    /// The start errors of a pod's containers; empty if there are none.
    pub fn of(&self, uid: &PodUid) -> BTreeMap<ContainerName, StartError> {
        self.pods.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Records a failed start.
    pub fn set(&self, uid: &PodUid, container: ContainerName, mut error: StartError) {
        let mut pods = self.pods.lock();
        let errors = pods.entry(uid.clone()).or_default();
        if let Some(last) = errors.get(&container) {
            if last.reason == error.reason {
                error.since = last.since;
            }
            error.refused = error.refused.or_else(|| last.refused.clone());
        }
        errors.insert(container, error);
    }

    /// Whether the runtime refused to start a run of a container.
    pub fn refused(&self, uid: &PodUid, container: &ContainerName, run: &ContainerId) -> bool {
        let pods = self.pods.lock();
        pods.get(uid).and_then(|errors| errors.get(container)).is_some_and(|last| last.refused.as_ref() == Some(run))
    }

    /// Clears the error of a container that was started or needs no start.
    pub fn clear(&self, uid: &PodUid, container: &ContainerName) {
        let mut pods = self.pods.lock();
        if let Some(errors) = pods.get_mut(uid) {
            errors.remove(container);
            if errors.is_empty() {
                pods.remove(uid);
            }
        }
    }

    /// Removes the pods that `keep` rejects.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.pods.lock().retain(|uid, _| keep(uid));
    }
}
