//! Stopping all pods when the node goes down: groups by priority, one after the other, each within its time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use parking_lot::Mutex;
use podwright_metrics::ShutdownMetrics;

use crate::admission::{AdmissionHandler, Admitted, Rejection};
use crate::desired::Desired;
use crate::engine::Engine;
use crate::ids::PodUid;
use crate::pod::{Phase, PodObject, SYSTEM_CRITICAL_PRIORITY};
use crate::pod_worker::{KillOptions, Lifecycle, Notifier, Update};
use crate::ports::{Clock, StatusFn};
use crate::status::set_condition;
use crate::time::{Grace, Time};

/// A pod that is killed when its grace, and with it the time of its group, is over is not late: so long it takes at most to
/// see that it is dead.
const SLACK: Duration = Duration::from_millis(500);
/// How often to look whether stopped pods are cleaned up.
const CLEANUP_POLL: Duration = Duration::from_millis(100);

/// Why a pod failed that a shutdown stopped (upstream `nodeShutdownReason`, kubelet 1.36).
pub const STOPPED: &str = "Terminated";
/// Why a pod was refused during a shutdown (upstream `NodeShutdownNotAdmittedReason`, kubelet 1.36).
pub const REFUSED: &str = "NodeShutdown";

/// How long a shutdown may take in all, and how much of that is kept for critical pods (upstream
/// `shutdownGracePeriod`, `shutdownGracePeriodCriticalPods`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownConfig {
    /// In all. Zero disables graceful shutdown.
    pub total: Duration,
    /// Kept for critical pods. More than the total disables graceful shutdown.
    pub critical: Duration,
}

/// The pods that stop together.
#[derive(Clone, Debug)]
pub struct Group {
    /// The time they have.
    pub time: Duration,
    /// The pods.
    pub pods: Vec<Arc<PodObject>>,
}

impl Group {
    /// The grace that one of its pods gets: its own, at most the group's time.
    pub fn grace(&self, pod: &PodObject) -> Grace {
        let limit = Grace::from_seconds(i64::try_from(self.time.as_secs()).unwrap_or(i64::MAX));
        pod.spec_grace().map_or(limit, |seconds| Grace::from_seconds(seconds).min(limit))
    }
}

/// The pods that a shutdown stops, by UID: what occupies the node, and what is wanted and waits for its turn.
pub fn pods(engine: &Engine, desired: &Desired) -> Vec<Arc<PodObject>> {
    let wanted = desired.pods().into_iter();
    let wanted = wanted.filter(|pod| engine.is_pod_known(pod.uid()) && !engine.is_pod_known_terminated(pod.uid()));
    let all: BTreeMap<PodUid, Arc<PodObject>> =
        wanted.chain(engine.unterminated_pods()).map(|pod| (pod.uid().clone(), pod)).collect();
    all.into_values().collect()
}

/// The groups in the order in which they stop; empty ones cost nothing and are left out. `None` if graceful shutdown is
/// disabled.
pub fn groups(config: ShutdownConfig, pods: Vec<Arc<PodObject>>) -> Option<Vec<Group>> {
    if config.total.is_zero() || config.critical > config.total {
        return None;
    }
    let (critical, normal): (Vec<_>, Vec<_>) =
        pods.into_iter().partition(|pod| pod.spec().priority.unwrap_or(0) >= SYSTEM_CRITICAL_PRIORITY);
    let groups =
        [Group { time: config.total - config.critical, pods: normal }, Group { time: config.critical, pods: critical }];
    Some(groups.into_iter().filter(|group| !group.pods.is_empty()).collect())
}

/// Refuses new pods while the node goes down.
#[derive(Debug, Default)]
pub struct ShutdownGate(AtomicBool);

impl ShutdownGate {
    /// From now on no pod may start; or again any may, after a shutdown that was cancelled.
    pub fn close(&self, closed: bool) {
        self.0.store(closed, Ordering::Release);
    }
}

impl AdmissionHandler for ShutdownGate {
    fn admit(&self, _pod: &PodObject, _others: &Admitted) -> Result<(), Rejection> {
        if self.0.load(Ordering::Acquire) {
            return Err(Rejection {
                reason: REFUSED.to_owned(),
                message: "the node is shutting down and takes no new pods".to_owned(),
            });
        }
        Ok(())
    }
}

/// Which pods a shutdown that is under way stops when.
#[derive(Debug, Default)]
pub struct ShutdownProgress(Mutex<HashMap<PodUid, StopTurn>>);

/// When a shutdown stops a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopTurn {
    /// When the shutdown began.
    pub since: Time,
    /// When the pod is asked to stop, at the latest.
    pub begins: Time,
    /// When its group's time is over, at the latest.
    pub ends: Time,
    /// How many pods are to stop before it.
    pub before: usize,
}

impl ShutdownProgress {
    /// When a pod is stopped; `None` if nothing is shut down.
    pub fn turn(&self, uid: &PodUid) -> Option<StopTurn> {
        self.0.lock().get(uid).copied()
    }

    /// The groups that are left, the first of which is stopped now.
    fn go_on(&self, since: Time, now: Time, left: &[Group]) {
        let mut turns = self.0.lock();
        let (mut begins, mut before) = (now, 0);
        for group in left {
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

/// Stops the groups one after the other. Each is waited for until all of its pods have stopped and are cleaned up, or its
/// time is over. Answers with the pods that did not stop in time, measures begin and end, and tells `progress` of what is
/// left. Needs a tokio runtime with
/// time.
///
/// Cancel safe: stops that were asked for go on.
pub async fn stop_all(
    engine: &Engine,
    clock: &dyn Clock,
    metrics: &ShutdownMetrics,
    progress: &ShutdownProgress,
    groups: &[Group],
) -> Vec<Arc<PodObject>> {
    let since = clock.now();
    let since_epoch = || Duration::from_nanos(clock.now().as_nanos());
    metrics.started(since_epoch());
    let mut late = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        progress.go_on(since, clock.now(), &groups[number..]);
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
        // Volumes that do not come down hold up the next group no longer than containers would.
        let _ = tokio::time::timeout_at(end, cleaned_up(engine, group)).await;
    }
    progress.end();
    metrics.ended(since_epoch());
    late
}

async fn cleaned_up(engine: &Engine, group: &Group) {
    while !group.pods.iter().all(|pod| is_over(engine, pod)) {
        tokio::time::sleep(CLEANUP_POLL).await;
    }
}

fn is_over(engine: &Engine, pod: &PodObject) -> bool {
    engine.lifecycle(pod.uid()).is_none_or(|lifecycle| lifecycle == Lifecycle::Finished)
}

/// A pod that the shutdown stops has failed, unless it had succeeded.
fn terminated(clock: &dyn Clock) -> StatusFn {
    let now = clock.now();
    Arc::new(move |status: &mut PodStatus| {
        if Phase::parse(status.phase.as_deref()) != Phase::Succeeded {
            status.phase = Some(Phase::Failed.as_str().to_owned());
        }
        status.reason = Some(STOPPED.to_owned());
        status.message = Some("the pod was stopped because its node shut down".to_owned());
        set_condition(
            status,
            PodCondition {
                type_: "DisruptionTarget".to_owned(),
                status: "True".to_owned(),
                reason: Some("TerminationByKubelet".to_owned()),
                message: Some("the pod was stopped because its node shut down".to_owned()),
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

    // S92
    #[test]
    fn normal_pods_stop_first_each_within_its_own_grace_and_the_groups_time() {
        let config = ShutdownConfig { total: Duration::from_secs(30), critical: Duration::from_secs(10) };
        let pods = vec![
            with("system", Some(SYSTEM_CRITICAL_PRIORITY), 30),
            with("short", None, 2),
            with("long", Some(5), 1000),
            with("usual", None, 30),
        ];
        let groups = groups(config, pods).unwrap();
        let graces = |group: &Group| group.pods.iter().map(|p| group.grace(p).seconds()).collect::<Vec<_>>();
        assert_eq!(groups.iter().map(graces).collect::<Vec<_>>(), [vec![2, 20, 20], vec![10]]);
    }

    #[test]
    fn a_total_of_zero_or_below_the_critical_part_disables_it() {
        let config = |total, critical| ShutdownConfig {
            total: Duration::from_secs(total),
            critical: Duration::from_secs(critical),
        };
        assert!(groups(config(0, 0), vec![]).is_none());
        assert!(groups(config(5, 10), vec![]).is_none());
        assert!(groups(config(10, 10), vec![with("a", None, 1)]).unwrap().len() == 1);
    }

    // S92
    #[test]
    fn a_pod_that_succeeded_stays_so_and_others_fail_with_a_disruption_target() {
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
    fn a_closed_gate_refuses_with_the_nodes_reason() {
        let gate = ShutdownGate::default();
        let none = Admitted::default();
        assert!(gate.admit(&with("a", None, 1), &none).is_ok());
        gate.close(true);
        assert_eq!(gate.admit(&with("a", None, 1), &none).unwrap_err().reason, "NodeShutdown");
    }
}
