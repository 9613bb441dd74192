//! What the gauges of a pass count. Pure.

use std::time::Duration;

use podwright_metrics::{Lifecycle as Label, OldestPhases, PodConfig, WorkingPods};

use crate::pod_worker::{KnownPod, Lifecycle};
use crate::time::Time;

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
        counts.add(config, label(pod.lifecycle));
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

/// The metric's lifecycle of an engine's lifecycle.
fn label(lifecycle: Lifecycle) -> Label {
    match lifecycle {
        Lifecycle::Waiting | Lifecycle::Sync => Label::Sync,
        Lifecycle::Terminating => Label::Terminating,
        Lifecycle::Terminated | Lifecycle::Finished => Label::Terminated,
    }
}

#[cfg(test)]
mod tests {
    use podwright_core::housekeeping::{restarted, runtime_only, stopped};

    use super::*;
    use crate::ids::FullName;
    use crate::ports::RunningPod;
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
