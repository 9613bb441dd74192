//! Which pods a shutdown stops, and in which groups. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::config::ShutdownConfig;
use crate::desired::DesiredPods;
use crate::engine::Engine;
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::time::Grace;

/// Pods that stop together.
#[derive(Clone, Debug)]
pub(crate) struct ShutdownGroup {
    /// The time for the whole group.
    pub(crate) time: Duration,
    pub(crate) pods: Vec<Arc<PodObject>>,
}

impl ShutdownGroup {
    /// The grace period of one of the pods: the one of its spec, and at most the group's time.
    pub(crate) fn grace(&self, pod: &PodObject) -> Grace {
        let limit = Grace::from_seconds(i64::try_from(self.time.as_secs()).unwrap_or(i64::MAX));
        pod.spec_grace().map_or(limit, |seconds| Grace::from_seconds(seconds).min(limit))
    }
}

/// The pods that a shutdown stops, by UID: those whose containers may run, and desired pods that wait to start.
pub(crate) fn pods(engine: &Engine, desired: &DesiredPods) -> Vec<Arc<PodObject>> {
    let desired = desired.pods().into_iter();
    let desired = desired.filter(|pod| engine.is_pod_known(pod.uid()) && !engine.is_pod_known_terminated(pod.uid()));
    let all: BTreeMap<PodUid, Arc<PodObject>> =
        desired.chain(engine.unterminated_pods()).map(|pod| (pod.uid().clone(), pod)).collect();
    all.into_values().collect()
}

/// The groups in the order in which they stop, without empty ones. There are none if graceful shutdown is disabled.
pub(crate) fn groups(config: &ShutdownConfig, pods: &[Arc<PodObject>]) -> Vec<ShutdownGroup> {
    let periods = config.periods();
    let lowest = periods.keys().next().copied();
    let mut members: BTreeMap<i32, Vec<Arc<PodObject>>> = BTreeMap::new();
    for pod in pods {
        let priority = pod.spec().priority.unwrap_or(0);
        let group = periods.range(..=priority).next_back().map(|(group, _)| *group).or(lowest);
        if let Some(group) = group {
            members.entry(group).or_default().push(pod.clone());
        }
    }
    let of = |(priority, time): (&i32, &Duration)| Some(ShutdownGroup { time: *time, pods: members.remove(priority)? });
    periods.iter().filter_map(of).collect()
}
