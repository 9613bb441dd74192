//! Graceful node shutdown: stops all pods in groups by priority, one group after the other, each within its time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use parking_lot::Mutex;
use podwright_metrics::ShutdownMetrics;

use crate::admission::{AdmissionHandler, Admitted, Rejection};
use crate::desired::DesiredPods;
use crate::engine::Engine;
use crate::ids::PodUid;
use crate::pod::{Phase, PodObject, SYSTEM_CRITICAL_PRIORITY};
use crate::pod_worker::{KillOptions, Lifecycle, Notifier, Update};
use crate::ports::{Clock, StatusFn};
use crate::status::reasons::{DISRUPTION_TARGET, NODE_SHUTDOWN, TERMINATED};
use crate::status::set_condition;
use crate::texts::pods::{NODE_SHUT_DOWN, NODE_SHUTS_DOWN};
use crate::time::{Grace, Time};

/// How long after the end of its group's time a pod still counts as stopped in time. A pod whose grace period is as long as
/// the group's time is killed at the end of that time, and is not late.
const SLACK: Duration = Duration::from_millis(500);
/// How often a shutdown checks whether stopped pods are cleaned up.
const CLEANUP_POLL: Duration = Duration::from_millis(100);

/// How long a shutdown may take (upstream `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownConfig {
    /// The time for all pods together. Zero disables graceful shutdown: pods are left running.
    pub total: Duration,
    /// The part of the total that is reserved for critical pods. More than the total disables graceful shutdown.
    pub critical: Duration,
}

impl ShutdownConfig {
    /// A shutdown within the total time, of which a part is reserved for critical pods.
    pub const fn new(total: Duration, critical: Duration) -> Self {
        ShutdownConfig { total, critical }
    }

    /// Whether graceful shutdown is disabled, so that pods are left running.
    pub(crate) fn is_disabled(self) -> bool {
        self.total.is_zero() || self.critical > self.total
    }
}

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

/// The groups in the order in which they stop, without empty ones. `None` if graceful shutdown is disabled.
pub(crate) fn groups(config: ShutdownConfig, pods: Vec<Arc<PodObject>>) -> Option<Vec<ShutdownGroup>> {
    if config.is_disabled() {
        return None;
    }
    let (critical, normal): (Vec<_>, Vec<_>) =
        pods.into_iter().partition(|pod| pod.spec().priority.unwrap_or(0) >= SYSTEM_CRITICAL_PRIORITY);
    let groups = [
        ShutdownGroup { time: config.total - config.critical, pods: normal },
        ShutdownGroup { time: config.critical, pods: critical },
    ];
    Some(groups.into_iter().filter(|group| !group.pods.is_empty()).collect())
}

/// Rejects new pods while the node shuts down.
#[derive(Debug, Default)]
pub(crate) struct ShutdownGate(AtomicBool);

impl ShutdownGate {
    /// Closes the gate when a shutdown begins, or opens it after a shutdown that was cancelled.
    pub(crate) fn set_closed(&self, closed: bool) {
        self.0.store(closed, Ordering::Release);
    }
}

impl AdmissionHandler for ShutdownGate {
    fn admit(&self, _pod: &PodObject, _others: &Admitted) -> Result<(), Rejection> {
        if self.0.load(Ordering::Acquire) {
            return Err(Rejection::new(NODE_SHUTDOWN, NODE_SHUTS_DOWN));
        }
        Ok(())
    }
}

/// The schedule of a shutdown that is under way.
#[derive(Debug, Default)]
pub struct ShutdownProgress(Mutex<HashMap<PodUid, StopTurn>>);

/// When a shutdown stops one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopTurn {
    /// The start of the shutdown.
    pub since: Time,
    /// The latest time at which the pod is stopped.
    pub begins: Time,
    /// The latest end of the time of its group.
    pub ends: Time,
    /// The number of pods in the groups before it.
    pub before: usize,
}

impl ShutdownProgress {
    /// The turn of a pod; `None` if no shutdown is under way.
    pub fn turn(&self, uid: &PodUid) -> Option<StopTurn> {
        self.0.lock().get(uid).copied()
    }

    /// Schedules the remaining groups. The first of them stops now.
    fn schedule(&self, since: Time, now: Time, remaining: &[ShutdownGroup]) {
        let mut turns = self.0.lock();
        let (mut begins, mut before) = (now, 0);
        for group in remaining {
            let ends = begins + group.time;
            let turn = StopTurn { since, begins, ends, before };
            turns.extend(group.pods.iter().map(|pod| (pod.uid().clone(), turn)));
            begins = ends + SLACK;
            before += group.pods.len();
        }
    }

    fn end(&self) {
        self.0.lock().clear();
    }
}

/// Stops the groups one after the other. Each group has until all of its pods have stopped and are cleaned up, or until its
/// time ends. Returns the pods that did not stop in time. Records the begin and the end in the metrics, and the schedule in
/// `progress`. Needs a tokio runtime with time.
///
/// If this is cancelled, the stops that have begun continue.
pub(crate) async fn stop_all(
    engine: &Engine,
    clock: &dyn Clock,
    metrics: &ShutdownMetrics,
    progress: &ShutdownProgress,
    groups: &[ShutdownGroup],
) -> Vec<Arc<PodObject>> {
    let since = clock.now();
    let since_epoch = || Duration::from_nanos(clock.now().as_nanos());
    metrics.started(since_epoch());
    let mut late = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        progress.schedule(since, clock.now(), &groups[number..]);
        let end = tokio::time::Instant::now() + group.time + SLACK;
        let stops = group.pods.iter().map(|pod| {
            let (notifier, completed) = Notifier::new();
            let options = KillOptions {
                completed: Some(notifier),
                evict: false,
                status_fn: Some(terminated(clock)),
                grace: Some(group.grace(pod)),
            };
            engine.update_pod(Update::kill(pod.clone()).with_options(options));
            async move { (pod, tokio::time::timeout_at(end, completed).await.is_err()) }
        });
        late.extend(join_all(stops).await.into_iter().filter(|(_, late)| *late).map(|(pod, _)| pod.clone()));
        // Volumes that cannot be unmounted delay the next group at most until the end of this group's time.
        let _ = tokio::time::timeout_at(end, cleaned_up(engine, group)).await;
    }
    progress.end();
    metrics.ended(since_epoch());
    late
}

async fn cleaned_up(engine: &Engine, group: &ShutdownGroup) {
    while !group.pods.iter().all(|pod| is_finished(engine, pod)) {
        tokio::time::sleep(CLEANUP_POLL).await;
    }
}

fn is_finished(engine: &Engine, pod: &PodObject) -> bool {
    engine.lifecycle(pod.uid()).is_none_or(|lifecycle| lifecycle == Lifecycle::Finished)
}

/// Edits the status of a pod that the shutdown stops: it has failed, unless it had succeeded.
fn terminated(clock: &dyn Clock) -> StatusFn {
    let now = clock.now();
    Arc::new(move |status: &mut PodStatus| {
        if Phase::parse(status.phase.as_deref()) != Phase::Succeeded {
            status.phase = Some(Phase::Failed.as_str().to_owned());
        }
        status.reason = Some(TERMINATED.to_owned());
        status.message = Some(NODE_SHUT_DOWN.to_owned());
        set_condition(
            status,
            PodCondition {
                type_: DISRUPTION_TARGET.to_owned(),
                status: "True".to_owned(),
                reason: Some("TerminationByKubelet".to_owned()),
                message: Some(NODE_SHUT_DOWN.to_owned()),
                last_transition_time: Some(now.to_api()),
                ..PodCondition::default()
            },
        );
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    fn with(name: &str, priority: Option<i32>, grace: i64) -> Arc<PodObject> {
        pod(name)
            .spec(|spec| {
                spec.priority = priority;
                spec.termination_grace_period_seconds = Some(grace);
            })
            .build()
    }

    // POD-S92
    #[test]
    fn shutdown_stops_normal_pods_before_critical_pods_each_in_its_grace() {
        let config = ShutdownConfig { total: Duration::from_secs(30), critical: Duration::from_secs(10) };
        let pods = vec![
            with("system", Some(SYSTEM_CRITICAL_PRIORITY), 30),
            with("short", None, 2),
            with("long", Some(5), 1000),
            with("usual", None, 30),
        ];
        let groups = groups(config, pods).unwrap();
        let graces = |group: &ShutdownGroup| group.pods.iter().map(|p| group.grace(p).seconds()).collect::<Vec<_>>();
        assert_eq!(groups.iter().map(graces).collect::<Vec<_>>(), [vec![2, 20, 20], vec![10]]);
    }

    #[test]
    fn shutdown_is_disabled_by_zero_or_by_less_than_the_critical_part() {
        let config = |total, critical| ShutdownConfig {
            total: Duration::from_secs(total),
            critical: Duration::from_secs(critical),
        };
        assert!(groups(config(0, 0), vec![]).is_none());
        assert!(groups(config(5, 10), vec![]).is_none());
        assert!(groups(config(10, 10), vec![with("a", None, 1)]).unwrap().len() == 1);
    }

    // POD-S92
    #[test]
    fn shutdown_fails_running_pods_and_leaves_succeeded_pods() {
        let clock = crate::ports::TokioClock::new();
        let edit = terminated(&clock);
        let mut running = PodStatus { phase: Some("Running".into()), ..PodStatus::default() };
        edit(&mut running);
        assert_eq!((running.phase.as_deref(), running.reason.as_deref()), (Some("Failed"), Some("Terminated")));
        let condition = &running.conditions.unwrap()[0];
        assert_eq!(
            (condition.type_.as_str(), condition.reason.as_deref()),
            ("DisruptionTarget", Some("TerminationByKubelet"))
        );
        let mut done = PodStatus { phase: Some("Succeeded".into()), ..PodStatus::default() };
        edit(&mut done);
        assert_eq!(done.phase.as_deref(), Some("Succeeded"));
    }

    #[test]
    fn shutdown_gate_rejects_new_pods_with_node_shutdown() {
        let gate = ShutdownGate::default();
        let none = Admitted::default();
        assert!(gate.admit(&with("a", None, 1), &none).is_ok());
        gate.set_closed(true);
        assert_eq!(gate.admit(&with("a", None, 1), &none).unwrap_err().reason, "NodeShutdown");
    }
}
