//! Why a container could not be started, kept until it can: the status of the pod shows it as a waiting reason.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use crate::ids::{ContainerId, ContainerName, PodUid};
use crate::time::Time;

/// Why the last try to start a container failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    /// The waiting reason, in upstream's spelling (`CrashLoopBackOff`, `ErrImagePull`).
    pub reason: &'static str,
    /// What went wrong, for people.
    pub message: String,
    /// Since when it goes wrong for this reason.
    pub since: Time,
    /// When a try makes sense again, if something waits out a backoff.
    pub until: Option<Time>,
    /// The run that was made and that the runtime would not start: it is not tried again.
    pub refused: Option<ContainerId>,
}

/// The start errors of every pod. One writer per pod: the hook that starts its containers.
#[derive(Debug, Default)]
pub struct StartErrors {
    pods: Mutex<HashMap<PodUid, BTreeMap<ContainerName, StartError>, foldhash::fast::RandomState>>,
}

impl StartErrors {
    /// What keeps the containers of a pod from starting; empty if nothing does.
    pub fn of(&self, uid: &PodUid) -> BTreeMap<ContainerName, StartError> {
        self.pods.lock().get(uid).cloned().unwrap_or_default()
    }

    /// A container could not be started.
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

    /// Whether the runtime would not start a run of a container.
    pub fn refused(&self, uid: &PodUid, container: &ContainerName, run: &ContainerId) -> bool {
        let pods = self.pods.lock();
        pods.get(uid).and_then(|errors| errors.get(container)).is_some_and(|last| last.refused.as_ref() == Some(run))
    }

    /// A container was started, or needs no start any more.
    pub fn clear(&self, uid: &PodUid, container: &ContainerName) {
        let mut pods = self.pods.lock();
        if let Some(errors) = pods.get_mut(uid) {
            errors.remove(container);
            if errors.is_empty() {
                pods.remove(uid);
            }
        }
    }

    /// Forgets the pods of which `keep` says no.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.pods.lock().retain(|uid, _| keep(uid));
    }
}
