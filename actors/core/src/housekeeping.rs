//! The decisions of a housekeeping pass: the actions on pods without a record, and which directories may be removed.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::pod_manager::PodManager;
use crate::pod_worker::{KnownPod, Lifecycle};
use crate::ports::{RunningPod, RuntimePod};
use crate::time::Time;

/// An action on a pod that has no record.
#[derive(Clone, Debug)]
pub enum PodAction {
    /// Starts a pod that should run (POD-K10).
    Restart(Arc<PodObject>),
    /// Cleans up a pod that ended under an earlier agent and is being deleted (POD-K11).
    Finish(Arc<PodObject>),
    /// Stops a rejected pod that an earlier agent started (POD-W13). Its spec is known, so its hooks run.
    Stop(Arc<PodObject>),
    /// Stops a pod that only the runtime knows (POD-K12).
    StopRuntimeOnly(RunningPod),
}

impl PodAction {
    /// The pod's UID.
    pub fn uid(&self) -> &PodUid {
        match self {
            PodAction::Restart(pod) | PodAction::Finish(pod) | PodAction::Stop(pod) => pod.uid(),
            PodAction::StopRuntimeOnly(running) => &running.uid,
        }
    }
}

/// Decides on at most one action for each pod without a record. `missing` are the pods that should run and have no record.
/// `before` are the pods that had a record when the list was requested: if such a pod has no record now, it has stopped, and
/// the list may be older than its stop.
pub fn actions<'a>(
    desired: &PodManager,
    missing: Vec<Arc<PodObject>>,
    listed: &[RuntimePod],
    before: impl Iterator<Item = &'a PodUid>,
    is_known: impl Fn(&PodUid) -> bool,
) -> Vec<PodAction> {
    let mut actions: Vec<PodAction> = missing.into_iter().map(PodAction::Restart).collect();
    let stuck: Vec<_> = desired.ending().filter(|pod| !is_known(pod.uid())).collect();
    let unknown: Vec<_> = listed.iter().filter(|pod| pod.is_running() && !is_known(&pod.uid)).collect();
    // The usual case. The code below would build a set of all pods.
    if stuck.is_empty() && unknown.is_empty() {
        return actions;
    }
    let mut uids: HashSet<PodUid> = actions.iter().map(|action| action.uid().clone()).collect();
    let runs = running(listed);
    for pod in stuck.into_iter().filter(|pod| !runs.contains(pod.uid())) {
        if uids.insert(pod.uid().clone()) {
            actions.push(PodAction::Finish(pod.clone()));
        }
    }
    let before: HashSet<&PodUid, RandomState> = before.collect();
    for pod in unknown.into_iter().filter(|pod| !before.contains(&pod.uid)) {
        if uids.insert(pod.uid.clone()) {
            actions.push(match desired.pod(&pod.uid) {
                Some(rejected) => PodAction::Stop(rejected.clone()),
                None => {
                    PodAction::StopRuntimeOnly(RunningPod { uid: pod.uid.clone(), full_name: pod.full_name.clone() })
                }
            });
        }
    }
    actions
}

/// The listed pods with a running container or a ready sandbox.
pub fn running(listed: &[RuntimePod]) -> HashSet<&PodUid, RandomState> {
    listed.iter().filter(|pod| pod.is_running()).map(|pod| &pod.uid).collect()
}

/// Whether a pod's directory may be removed: no source desires the pod, it has no record, and the runtime does not run it.
pub fn is_directory_unused(is_desired: bool, is_known: bool, runs: bool) -> bool {
    !is_desired && !is_known && !runs
}

/// A pod that this pass created again.
pub fn restarted(pod: &PodObject, now: Time) -> KnownPod {
    KnownPod {
        uid: pod.uid().clone(),
        lifecycle: Lifecycle::Sync,
        orphan: false,
        has_config: true,
        is_static: pod.is_static(),
        since: now,
    }
}

/// The record of a rejected pod that this pass stops.
pub fn stopped(pod: &PodObject, now: Time) -> KnownPod {
    KnownPod { lifecycle: Lifecycle::Terminating, ..restarted(pod, now) }
}

/// The record of a runtime-only pod that this pass stops.
pub fn runtime_only(running: &RunningPod, now: Time) -> KnownPod {
    KnownPod {
        uid: running.uid.clone(),
        lifecycle: Lifecycle::Terminating,
        orphan: true,
        has_config: false,
        is_static: false,
        since: now,
    }
}
