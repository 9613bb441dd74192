//! What a pass derives from the records: the numbers of K13.

use std::time::Duration;

use podwright_metrics::{OldestPhases, PodConfig, WorkingPods};

use crate::pod::PodObject;
use crate::pod_worker::{KnownPod, Lifecycle};
use crate::ports::RunningPod;
use crate::time::Time;

/// The 15 series. A record that is neither an orphan nor has a spec fits none of them.
pub(super) fn working_pods(known: &[KnownPod]) -> WorkingPods {
    let mut counts = WorkingPods::default();
    for pod in known {
        let config = match (pod.has_config, pod.orphan) {
            (true, false) => PodConfig::Desired { is_static: pod.is_static },
            (true, true) => PodConfig::Orphan { is_static: pod.is_static },
            (false, true) => PodConfig::RuntimeOnly,
            // Wanted and without a spec: it has none until its worker takes the first update.
            (false, false) => continue,
        };
        counts.add(config, pod.lifecycle.into());
    }
    counts
}

/// How many pods nobody wants any more and still occupy the node (W1).
pub(super) fn occupying_orphans(known: &[KnownPod]) -> usize {
    known.iter().filter(|pod| pod.orphan && pod.has_config && pod.lifecycle < Lifecycle::Terminated).count()
}

/// How long the record that stands longest in a phase stands there (W10).
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

/// A pod that only the runtime knows and that this pass has stopped.
pub(super) fn stranger(running: &RunningPod, now: Time) -> KnownPod {
    KnownPod {
        uid: running.uid.clone(),
        lifecycle: Lifecycle::Terminating,
        orphan: true,
        has_config: false,
        is_static: false,
        since: now,
    }
}
