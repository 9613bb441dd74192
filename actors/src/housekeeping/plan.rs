//! The decisions of a pass: the actions on pods without a record, which directories may be removed, and the gauges.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use podwright_metrics::{OldestPhases, PodConfig, WorkingPods};

use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::pod_manager::PodManager;
use crate::pod_worker::{KnownPod, Lifecycle};
use crate::ports::{RunningPod, RuntimePod};
use crate::time::Time;

/// An action on a pod that has no record.
#[derive(Clone, Debug)]
pub(crate) enum PodAction {
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
    pub(crate) fn uid(&self) -> &PodUid {
        match self {
            PodAction::Restart(pod) | PodAction::Finish(pod) | PodAction::Stop(pod) => pod.uid(),
            PodAction::StopRuntimeOnly(running) => &running.uid,
        }
    }
}

/// Decides on at most one action for each pod without a record. `missing` are the pods that should run and have no record.
/// `before` are the pods that had a record when the list was requested: if such a pod has no record now, it has stopped, and
/// the list may be older than its stop.
pub(crate) fn actions<'a>(
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
pub(super) fn running(listed: &[RuntimePod]) -> HashSet<&PodUid, RandomState> {
    listed.iter().filter(|pod| pod.is_running()).map(|pod| &pod.uid).collect()
}

/// Whether a pod's directory may be removed: no source desires the pod, it has no record, and the runtime does not run it.
pub(crate) fn is_directory_unused(is_desired: bool, is_known: bool, runs: bool) -> bool {
    !is_desired && !is_known && !runs
}

/// The 15 series of `kubelet_working_pods` (POD-K13): one pod for each record that is left after the comparison, and for each pod that this
/// pass restarts or stops. A pod that only has to be cleaned up (POD-K11) counts from the next pass on. A desired record without a spec
/// fits no series.
pub(super) fn working_pods(known: &[KnownPod]) -> WorkingPods {
    let mut counts = WorkingPods::default();
    for pod in known {
        let config = match (pod.has_config, pod.orphan) {
            (true, false) => PodConfig::Desired { is_static: pod.is_static },
            (true, true) => PodConfig::Orphan { is_static: pod.is_static },
            (false, true) => PodConfig::RuntimeOnly,
            // A source desires a pod that its worker stops without a spec.
            (false, false) => continue,
        };
        counts.add(config, pod.lifecycle.into());
    }
    counts
}

/// The number of orphans whose containers may run: they still use the node's resources (POD-W1).
pub(super) fn occupying_orphans(known: &[KnownPod]) -> usize {
    known.iter().filter(|pod| pod.orphan && pod.has_config && pod.lifecycle < Lifecycle::Terminated).count()
}

/// For each phase, the longest time that a record has been in it (POD-W10).
pub(super) fn oldest_phases(known: &[KnownPod], now: Time) -> OldestPhases {
    let mut oldest = OldestPhases::default();
    for pod in known {
        let age: Duration = now.since(pod.since);
        let slot = match pod.lifecycle {
            Lifecycle::Waiting => &mut oldest.waiting,
            Lifecycle::Sync => &mut oldest.sync,
            Lifecycle::Terminating => &mut oldest.terminating,
            Lifecycle::Terminated | Lifecycle::Finished => &mut oldest.terminated,
        };
        *slot = (*slot).max(age);
    }
    oldest
}

/// A pod that this pass created again.
pub(super) fn restarted(pod: &PodObject, now: Time) -> KnownPod {
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
pub(super) fn stopped(pod: &PodObject, now: Time) -> KnownPod {
    KnownPod { lifecycle: Lifecycle::Terminating, ..restarted(pod, now) }
}

/// The record of a runtime-only pod that this pass stops.
pub(super) fn runtime_only(running: &RunningPod, now: Time) -> KnownPod {
    KnownPod {
        uid: running.uid.clone(),
        lifecycle: Lifecycle::Terminating,
        orphan: true,
        has_config: false,
        is_static: false,
        since: now,
    }
}

#[cfg(test)]
mod tests {
    use podwright_metrics::Lifecycle as Label;

    use super::*;
    use crate::ids::FullName;
    use crate::testing::pod;

    #[test]
    fn every_record_counts_in_one_series() {
        let record = |lifecycle, orphan, has_config, is_static| KnownPod {
            uid: "u".into(),
            lifecycle,
            orphan,
            has_config,
            is_static,
            since: Time::ZERO,
        };
        let desired = |is_static, lifecycle| Some((PodConfig::Desired { is_static }, lifecycle));
        let orphan = |is_static, lifecycle| Some((PodConfig::Orphan { is_static }, lifecycle));
        let runtime_only_pod = Some((PodConfig::RuntimeOnly, Label::Terminating));
        let running = RunningPod { uid: "u".into(), full_name: FullName::new("test", "u") };
        let (web, file) = (pod("web").build(), pod("file").static_pod().build());
        for (what, known, series) in [
            ("desired", record(Lifecycle::Sync, false, true, false), desired(false, Label::Sync)),
            (
                "desired, stopping",
                record(Lifecycle::Terminating, false, true, false),
                desired(false, Label::Terminating),
            ),
            ("desired, ended", record(Lifecycle::Terminated, false, true, false), desired(false, Label::Terminated)),
            ("static", record(Lifecycle::Sync, false, true, true), desired(true, Label::Sync)),
            ("static, ended", record(Lifecycle::Terminated, false, true, true), desired(true, Label::Terminated)),
            ("orphan", record(Lifecycle::Terminating, true, true, false), orphan(false, Label::Terminating)),
            ("static orphan, ended", record(Lifecycle::Terminated, true, true, true), orphan(true, Label::Terminated)),
            ("runtime-only", record(Lifecycle::Terminating, true, false, false), runtime_only_pod),
            ("runtime-only, desired again", record(Lifecycle::Terminating, false, false, false), None),
            ("restarted by this pass", restarted(&web, Time::ZERO), desired(false, Label::Sync)),
            ("static, restarted by this pass", restarted(&file, Time::ZERO), desired(true, Label::Sync)),
            ("rejected, stopped by this pass", stopped(&web, Time::ZERO), desired(false, Label::Terminating)),
            ("runtime-only, stopped by this pass", runtime_only(&running, Time::ZERO), runtime_only_pod),
        ] {
            let mut expected = WorkingPods::default();
            series.into_iter().for_each(|(config, lifecycle)| expected.add(config, lifecycle));
            assert_eq!(working_pods(&[known]), expected, "{what}");
        }
    }
}
