//! Stops containers and sandboxes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::container_manager::activity::Task;
use crate::containers::definition::Definition;
use crate::containers::plan::{Kill, KillReason};
use crate::containers::restart::RestartPolicy;
use crate::containers::stop::{SHORTEST_STOP, grace, waits_for};
use crate::ids::{ContainerId, ContainerName, PodUid, SandboxId};
use crate::pod::{ContainerKind, PodObject};
use crate::ports::{ContainerState, PodEvent, PodRuntimeStatus, RuntimeError, RuntimePod, SyncError};
use crate::text::error_chain;
use crate::texts::containers::{PRE_STOP_FAILED, killing as texts};
use crate::texts::resize;
use crate::time::Grace;

use super::hooks::{Hook, HookError};
use super::{ContainerError, ContainerManager, joined, unless_cancelled};

/// The containers and sandboxes of a pod that may have to be stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningParts {
    /// Every container that has not exited.
    pub containers: Vec<RunningContainer>,
    /// Every sandbox in any state, because a sandbox that ended may still hold a network.
    pub sandboxes: Vec<SandboxId>,
    /// The addresses of the newest sandbox, for hooks.
    pub ips: Vec<IpAddr>,
}

/// A container that has not exited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainer {
    /// The container's id.
    pub id: ContainerId,
    /// The container's name in the pod.
    pub name: ContainerName,
    /// Whether the container is known to run. Only then its pre-stop hook runs.
    pub running: bool,
}

impl From<&PodRuntimeStatus> for RunningParts {
    fn from(status: &PodRuntimeStatus) -> Self {
        let live = status.containers.iter().filter(|run| run.state != ContainerState::Exited);
        RunningParts {
            containers: live.map(|run| RunningContainer::new(&run.id, &run.name, run.state)).collect(),
            sandboxes: status.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect(),
            ips: status.sandboxes.first().map(|sandbox| sandbox.ips.clone()).unwrap_or_default(),
        }
    }
}

impl From<&RuntimePod> for RunningParts {
    fn from(pod: &RuntimePod) -> Self {
        let live = pod.containers.iter().filter(|run| run.state != ContainerState::Exited);
        RunningParts {
            containers: live.map(|run| RunningContainer::new(&run.id, &run.name, run.state)).collect(),
            sandboxes: pod.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect(),
            ips: Vec::new(),
        }
    }
}

impl RunningContainer {
    pub(super) fn new(id: &ContainerId, name: &ContainerName, state: ContainerState) -> Self {
        RunningContainer { id: id.clone(), name: name.clone(), running: state == ContainerState::Running }
    }
}

/// The pod whose containers are stopped.
#[derive(Clone, Copy)]
pub(super) struct StopContext<'a> {
    pub(super) uid: &'a PodUid,
    /// The pod's object. Without it there are no hooks, no order and no events.
    pub(super) pod: Option<&'a Arc<PodObject>>,
    pub(super) ips: &'a [IpAddr],
    /// Replaces every other grace period.
    pub(super) forced: Option<Duration>,
}

impl ContainerManager {
    /// Stops all containers of a pod at once, sidecars after the regular containers and in reverse order. Then stops
    /// the pod's sandboxes. Without a spec (`pod` is `None`) there are no hooks and no order.
    ///
    /// May be called again after a cancellation, with a shorter grace period. The shorter period then applies to the
    /// containers that are already stopping. A pre-stop hook that still runs continues and does not run twice.
    ///
    /// # Errors
    /// [`SyncError::Cancelled`] soon after `cancel` fires; otherwise the stops that failed. A container whose stop
    /// failed does not hold back the sidecars that wait for it (POD-W22).
    pub async fn kill_pod(
        &self,
        cancel: &CancellationToken,
        uid: &PodUid,
        pod: Option<&Arc<PodObject>>,
        running: &RunningParts,
        forced: Option<Grace>,
    ) -> Result<(), SyncError> {
        let forced = forced.map(Grace::duration);
        let cx = StopContext { uid, pod, ips: &running.ips, forced };
        unless_cancelled(cancel, self.stop_all(cx, running, &[])).await
    }

    /// Stops all containers, then the sandboxes. `kills` gives the containers that stop for a reason of their own.
    pub(super) async fn stop_all(
        &self,
        cx: StopContext<'_>,
        running: &RunningParts,
        kills: &[Kill],
    ) -> Result<(), SyncError> {
        let stopped: Vec<_> = running.containers.iter().map(|c| (&c.name, CancellationToken::new())).collect();
        let stops = running.containers.iter().zip(&stopped).map(|(container, (_, done))| {
            let before = cx.pod.map(|pod| waits_for(pod, container.name.as_str())).unwrap_or_default();
            let before: Vec<_> = stopped
                .iter()
                .filter(|(name, _)| before.contains(&name.as_str()))
                .map(|(_, done)| done.clone())
                .collect();
            let reason = kills.iter().find(|kill| kill.id == container.id).map(|kill| kill.reason);
            let message = texts::pod_stops(container.name.as_str());
            async move {
                // Dropped after a success and after a failure, because nothing may wait for a stop that failed.
                let _done = done.clone().drop_guard();
                self.stop_one(cx, container, reason.unwrap_or(KillReason::PodStops), message, before).await
            }
        });
        let mut errors: Vec<_> = join_all(stops).await.into_iter().filter_map(Result::err).collect();
        let sandboxes = running.sandboxes.iter().map(|sandbox| async move {
            let _doing = self.activities.begin(cx.uid, Task::StopSandbox);
            match self.ports.runtime.stop_sandbox(sandbox).await {
                Ok(()) | Err(RuntimeError::NotFound(_)) => Ok(()),
                Err(error) => Err(ContainerError::StopSandbox { pod: cx.uid.clone(), source: error }),
            }
        });
        errors.extend(join_all(sandboxes).await.into_iter().filter_map(Result::err));
        joined(errors.into_iter().map(SyncError::from).collect()).map_or(Ok(()), Err)
    }

    /// Stops single containers, all at once.
    pub(super) async fn stop_some(&self, cx: StopContext<'_>, kills: &[Kill]) -> Result<(), SyncError> {
        let containers: Vec<_> = kills
            .iter()
            .map(|kill| RunningContainer {
                id: kill.id.clone(),
                name: kill.name.clone(),
                running: kill.reason != KillReason::StateUnknown,
            })
            .collect();
        let stops = kills.iter().zip(&containers).map(|(kill, container)| {
            let message = killing(cx.pod.map(|pod| &**pod), kill);
            self.stop_one(cx, container, kill.reason, message, Vec::new())
        });
        let errors = join_all(stops).await.into_iter().filter_map(Result::err).map(SyncError::from).collect();
        joined(errors).map_or(Ok(()), Err)
    }

    /// Stops one container: runs its pre-stop hook, waits for the containers before it, then stops it in the runtime,
    /// all within its grace period.
    ///
    /// Cancel safe: a second call continues with the running hook and the remaining time. The time of the kill can only
    /// become earlier (POD-I5).
    async fn stop_one(
        &self,
        cx: StopContext<'_>,
        container: &RunningContainer,
        reason: KillReason,
        message: String,
        before: Vec<CancellationToken>,
    ) -> Result<(), ContainerError> {
        let definition = cx.pod.and_then(|pod| Definition::find(pod, container.name.as_str()));
        let grace = grace(cx.pod.map(|pod| &**pod), definition.as_ref(), reason, cx.forced);
        let (facts, now) = (&self.ports.run_facts, self.ports.clock.now());
        let rest = facts.rest_of_stop(cx.uid, &container.id, now);
        let (time, first) = self.stops.begin(cx.uid, &container.id, grace, rest);
        let left = time.left();
        let killed_at = now + left;
        facts.stops(cx.uid, &container.id, killed_at, left);
        let doing = |task| self.activities.begin_with(cx.uid, task, Some(container.name.clone()), Some(killed_at));
        if first && let Some(pod) = cx.pod {
            self.record_stop(pod, definition.as_ref(), PodEvent::normal("Killing", message));
        }
        if !time.left().is_zero()
            && container.running
            && let Some(pod) = cx.pod
            && let Some(hook) = self.pre_stop(cx, pod, definition.as_ref(), container, time.left())
        {
            let _doing = doing(Task::PreStop);
            self.await_pre_stop(pod, definition.as_ref(), hook, time).await;
        }
        // A container without remaining time does not wait for others.
        if !before.is_empty() {
            let _doing = doing(Task::AwaitOthers);
            let turn = join_all(before.iter().map(CancellationToken::cancelled));
            let _ = timeout(time.left(), turn).await;
        }
        let left = time.left().max(SHORTEST_STOP);
        let until = Some(self.ports.clock.now() + left);
        let task = Task::StopContainer;
        let _doing = self.activities.begin_with(cx.uid, task, Some(container.name.clone()), until);
        let stopped = self.ports.runtime.stop_container(&container.id, left).await;
        facts.stop_ended(cx.uid, &container.id);
        match stopped {
            Ok(()) | Err(RuntimeError::NotFound(_)) => {
                self.stops.forget(cx.uid, &container.id);
                self.contradictions.stopped(cx.uid, &container.id);
                Ok(())
            }
            Err(error) => {
                self.stops.failed(cx.uid, &container.id);
                Err(self.stop_failed(cx.uid, cx.pod, container, error).await)
            }
        }
    }

    fn pre_stop(
        &self,
        cx: StopContext<'_>,
        pod: &Arc<PodObject>,
        definition: Option<&Definition<'_>>,
        container: &RunningContainer,
        limit: Duration,
    ) -> Option<HookRun> {
        let handler = definition?.lifecycle()?.pre_stop.as_ref()?;
        let hook = || Hook {
            ports: Arc::clone(&self.ports),
            pod: Arc::clone(pod),
            container: container.name.clone(),
            id: container.id.clone(),
            ips: cx.ips.to_vec(),
            handler: handler.clone(),
            limit,
        };
        Some(self.stops.pre_stop(cx.uid, &container.id, hook))
    }

    async fn await_pre_stop(
        &self,
        pod: &Arc<PodObject>,
        container: Option<&Definition<'_>>,
        hook: HookRun,
        time: StopTime,
    ) {
        let ended_before = hook.peek().is_some();
        let name = container.map(|container| container.name());
        match timeout(time.left(), hook).await {
            Ok(Ok(())) => {}
            // The first call recorded the event.
            Ok(Err(_)) if ended_before => {}
            Err(_) | Ok(Err(HookError::Runtime(RuntimeError::Timeout { .. }))) => {
                let grace = time.limit.as_secs();
                tracing::warn!(
                    pod.uid = %pod.uid(),
                    container.name = name,
                    grace.seconds = grace,
                    "pre-stop hook did not end within the grace period"
                );
            }
            Ok(Err(error)) => {
                // The error may show secrets, so the event does not have it.
                tracing::debug!(pod.uid = %pod.uid(), container.name = name, error = %error_chain(&error), "pre-stop hook failed");
                self.record_stop(pod, container, PodEvent::warning("FailedPreStopHook", PRE_STOP_FAILED));
            }
        }
    }

    /// Records an event of a container. A container that the spec does not have becomes an event of the pod.
    pub(super) fn record_stop(&self, pod: &Arc<PodObject>, container: Option<&Definition<'_>>, event: PodEvent) {
        let event = match container {
            Some(container) => event.of_container(container.kind(), container.name()),
            None => event,
        };
        self.record(pod, event);
    }
}

/// Converts a panic of a port to a failure of the hook. A panic kept in the shared future would recur in every call,
/// and the container would never be stopped.
async fn guarded(hook: Hook) -> Result<(), HookError> {
    AssertUnwindSafe(hook.run()).catch_unwind().await.unwrap_or(Err(HookError::Panicked))
}

/// A pre-stop hook that can outlive the call that began it.
type HookRun = Shared<BoxFuture<'static, Result<(), HookError>>>;

/// The stops that have begun, so that a second call continues them. An entry is removed when its container has stopped
/// or its pod is forgotten.
#[derive(Default)]
pub(super) struct StopMemory {
    pods: Mutex<HashMap<PodUid, HashMap<ContainerId, BegunStop>>>,
}

/// A stop that has begun.
#[derive(Default)]
struct BegunStop {
    /// `None` after a failed try.
    time: Option<StopTime>,
    hook: Option<HookRun>,
}

/// The time limit of one stop, over all calls for it.
#[derive(Clone, Copy, Debug)]
struct StopTime {
    began: Instant,
    limit: Duration,
}

impl StopTime {
    fn left(self) -> Duration {
        self.limit.saturating_sub(self.began.elapsed())
    }
}

impl StopMemory {
    /// Begins or continues a stop with this grace period from now on. Returns the stop's time limit, and whether this
    /// is the container's first call. If an earlier call set a time limit, the earlier end counts. `rest` is what an earlier agent left
    /// of the grace period, if it began the stop.
    fn begin(&self, uid: &PodUid, id: &ContainerId, grace: Duration, rest: Option<Duration>) -> (StopTime, bool) {
        let mut pods = self.pods.lock();
        let mut first = false;
        let begun = pods.entry(uid.clone()).or_default().entry(id.clone()).or_insert_with(|| {
            first = true;
            BegunStop::default()
        });
        let limit = rest.map_or(grace, |rest| rest.min(grace));
        let time = begun.time.get_or_insert_with(|| StopTime { began: Instant::now(), limit });
        time.limit = time.limit.min(time.began.elapsed().saturating_add(grace));
        (*time, first)
    }

    /// Resets the time limit after a failure. The runtime may not have asked the container to stop, so the next try
    /// gives the container its full grace period to write its data.
    fn failed(&self, uid: &PodUid, id: &ContainerId) {
        let mut pods = self.pods.lock();
        if let Some(begun) = pods.get_mut(uid).and_then(|pod| pod.get_mut(id)) {
            begun.time = None;
        }
    }

    /// The hook that is running, or a new one.
    fn pre_stop(&self, uid: &PodUid, id: &ContainerId, hook: impl FnOnce() -> Hook) -> HookRun {
        let mut pods = self.pods.lock();
        let begun = pods.entry(uid.clone()).or_default().entry(id.clone()).or_default();
        begun.hook.get_or_insert_with(|| guarded(hook()).boxed().shared()).clone()
    }

    fn forget(&self, uid: &PodUid, id: &ContainerId) {
        let mut pods = self.pods.lock();
        if let Some(pod) = pods.get_mut(uid) {
            pod.remove(id);
            if pod.is_empty() {
                pods.remove(uid);
            }
        }
    }

    pub(super) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.pods.lock().retain(|uid, _| keep(uid));
    }
}

/// The message of the event of one container that stops alone.
fn killing(pod: Option<&PodObject>, kill: &Kill) -> String {
    let container = kill.name.as_str();
    let init = pod
        .and_then(|pod| Definition::find(pod, container))
        .is_some_and(|container| container.kind() == ContainerKind::Init);
    let restarts = || {
        let pod = pod?;
        let container = pod.containers().iter().find(|have| have.name == container)?;
        Some(RestartPolicy::effective(pod.spec(), container) != RestartPolicy::Never)
    };
    let probe_failed = |probe| texts::probe_failed(container, init, probe, restarts() == Some(true));
    match kill.reason {
        KillReason::PodStops => texts::pod_stops(container),
        KillReason::HashChanged => texts::definition_changed(container, init),
        KillReason::LivenessFailed => probe_failed("liveness"),
        KillReason::StartupFailed => probe_failed("startup"),
        KillReason::StateUnknown => texts::state_unknown(init),
        KillReason::PostStartFailed => texts::POST_START_FAILED.to_owned(),
        // The kubelet has no such stop: it waits for each start.
        KillReason::Superseded => format!("Container {container} runs twice: its older run is stopped"),
        KillReason::RestartAll => texts::RESTART_ALL.to_owned(),
        KillReason::Resize => resize::requires_restart(container),
    }
}
