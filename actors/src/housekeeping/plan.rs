//! What a pass decides: what it asks of the engine (K10 to K12), which directories may go (K7), and the numbers of K13.

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

/// What a pass asks of the engine.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// K10: it should run and has no record.
    Restart(Arc<PodObject>),
    /// K11: it ended in an earlier life of the agent and is being deleted, so it still needs its cleanup.
    Finish(Arc<PodObject>),
    /// W13: it runs from an earlier life of the agent and was rejected. It has a spec, so it is stopped by that.
    Stop(Arc<PodObject>),
    /// K12: it runs, and nobody wants it.
    StopStranger(RunningPod),
}

impl Order {
    /// Which pod this is about.
    pub(crate) fn uid(&self) -> &PodUid {
        match self {
            Order::Restart(pod) | Order::Finish(pod) | Order::Stop(pod) => pod.uid(),
            Order::StopStranger(running) => &running.uid,
        }
    }
}

/// At most one order for each pod that has no record. `missing` should run and have none. Those of `before` had one when
/// the list was asked for: a pod whose record went away since has stopped, and the list may be older than that.
pub(crate) fn orders<'a>(
    desired: &PodManager,
    missing: Vec<Arc<PodObject>>,
    listed: &[RuntimePod],
    before: impl Iterator<Item = &'a PodUid>,
    is_known: impl Fn(&PodUid) -> bool,
) -> Vec<Order> {
    let mut orders: Vec<Order> = missing.into_iter().map(Order::Restart).collect();
    let stuck: Vec<_> = desired.ending().filter(|pod| !is_known(pod.uid())).collect();
    let unknown: Vec<_> = listed.iter().filter(|pod| pod.is_running() && !is_known(&pod.uid)).collect();
    // Nearly always: what follows costs a set of all pods.
    if stuck.is_empty() && unknown.is_empty() {
        return orders;
    }
    let mut ordered: HashSet<PodUid> = orders.iter().map(|order| order.uid().clone()).collect();
    let runs = running(listed);
    for pod in stuck.into_iter().filter(|pod| !runs.contains(pod.uid())) {
        if ordered.insert(pod.uid().clone()) {
            orders.push(Order::Finish(pod.clone()));
        }
    }
    let before: HashSet<&PodUid, RandomState> = before.collect();
    for pod in unknown.into_iter().filter(|pod| !before.contains(&pod.uid)) {
        if ordered.insert(pod.uid.clone()) {
            orders.push(match desired.pod(&pod.uid) {
                Some(rejected) => Order::Stop(rejected.clone()),
                None => Order::StopStranger(RunningPod { uid: pod.uid.clone(), full_name: pod.full_name.clone() }),
            });
        }
    }
    orders
}

/// The pods that run something.
pub(super) fn running(listed: &[RuntimePod]) -> HashSet<&PodUid, RandomState> {
    listed.iter().filter(|pod| pod.is_running()).map(|pod| &pod.uid).collect()
}

/// Whether a pod's directory is of no use to anybody: nobody wants the pod, knows it, or runs it.
pub(crate) fn is_directory_unused(is_wanted: bool, is_known: bool, runs: bool) -> bool {
    !is_wanted && !is_known && !runs
}

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
