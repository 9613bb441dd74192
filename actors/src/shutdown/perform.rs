//! Carries out the steps of a shutdown.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::PodStatus;

use super::plan::ShutdownGroup;
use super::step::{Effect, Event, State, begin, step};
use super::{ShutdownGate, ShutdownProgress, ShutdownTimes};
use crate::engine::Engine;
use crate::ids::PodUid;
use crate::pod::{Phase, PodObject};
use crate::pod_worker::{KillOptions, Lifecycle, Notifier, Update};
use crate::ports::{Clock, StatusFn};
use crate::status::reasons::TERMINATED;
use crate::status::set_disruption_target;
use crate::texts::pods::NODE_SHUT_DOWN;

/// How often a shutdown checks whether stopped pods are cleaned up.
const CLEANUP_POLL: Duration = Duration::from_millis(100);

/// What a shutdown needs of its node.
pub(crate) struct ShutdownParts<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) times: &'a ShutdownTimes,
    pub(crate) progress: &'a ShutdownProgress,
    pub(crate) gate: &'a ShutdownGate,
}

/// How the pods of a shutdown ended.
#[derive(Debug, Default)]
pub(crate) struct ShutdownOutcome {
    /// The pods that did not stop in time.
    pub(crate) late: Vec<Arc<PodObject>>,
    /// The number of pods that were left running, because the shutdown was cancelled before their turn.
    pub(crate) left_running: usize,
}

/// Stops the groups one after the other. Each group has until all of its pods have stopped and are cleaned up, or until its
/// time ends. If `cancelled` resolves, the groups after the current one are left running. Needs a tokio runtime with time.
///
/// If this future is dropped, the stops that have begun continue.
pub(crate) async fn stop_all(
    parts: &ShutdownParts<'_>,
    groups: Vec<ShutdownGroup>,
    cancelled: impl Future<Output = ()>,
) -> ShutdownOutcome {
    let ShutdownParts { engine, clock, times, progress, gate } = *parts;
    let since = clock.now();
    times.started(since).await;
    let mut outcome = ShutdownOutcome::default();
    let mut stops = FuturesUnordered::new();
    let mut cleanup = Vec::new();
    let mut cancelled = pin!(cancelled.fuse());
    let (mut state, mut effects) = begin(groups, clock.now());
    loop {
        for effect in effects {
            match effect {
                Effect::Stop(group) => {
                    progress.schedule(since, clock.now(), state.groups());
                    gate.stop(&group.pods);
                    let status = terminated(clock);
                    stops.extend(group.pods.iter().map(|pod| stop(engine, &group, pod, status.clone())));
                }
                Effect::AwaitCleanup(pods) => cleanup = pods,
                Effect::Late(pods) => outcome.late.extend(pods),
                Effect::Leave(count) => {
                    progress.cancel(clock.now());
                    outcome.left_running += count;
                }
            }
        }
        let Some(ends) = state.ends() else { break };
        let is_cleaning_up = matches!(state, State::CleaningUp { .. });
        let event = tokio::select! {
            biased;
            () = &mut cancelled => Event::Cancelled,
            Some(uid) = stops.next() => Event::Stopped { uid, now: clock.now() },
            () = cleaned_up(engine, &cleanup), if is_cleaning_up => Event::CleanedUp { now: clock.now() },
            () = tokio::time::sleep(ends.since(clock.now())) => Event::TimeUp { now: clock.now() },
        };
        (state, effects) = step(state, event);
    }
    progress.end();
    times.ended(since, clock.now()).await;
    outcome
}

/// Asks the engine to stop a pod. The returned future resolves to its UID once it has stopped.
fn stop(
    engine: &Engine,
    group: &ShutdownGroup,
    pod: &Arc<PodObject>,
    status: StatusFn,
) -> impl Future<Output = PodUid> + use<> {
    let (notifier, completed) = Notifier::new();
    let options =
        KillOptions { completed: Some(notifier), evict: false, status_fn: Some(status), grace: Some(group.grace(pod)) };
    engine.update_pod(Update::kill(pod.clone()).with_options(options));
    let uid = pod.uid().clone();
    async move {
        // An engine that shuts down stops nothing more.
        let _has_stopped = completed.await;
        uid
    }
}

async fn cleaned_up(engine: &Engine, pods: &[Arc<PodObject>]) {
    while !pods.iter().all(|pod| is_finished(engine, pod)) {
        tokio::time::sleep(CLEANUP_POLL).await;
    }
}

fn is_finished(engine: &Engine, pod: &PodObject) -> bool {
    engine.lifecycle(pod.uid()).is_none_or(|lifecycle| lifecycle == Lifecycle::Finished)
}

/// Edits the status of a pod that the shutdown stops: it has failed, unless it had succeeded.
pub(super) fn terminated(clock: &dyn Clock) -> StatusFn {
    let now = clock.now();
    Arc::new(move |status: &mut PodStatus| {
        if Phase::parse(status.phase.as_deref()) != Phase::Succeeded {
            status.phase = Some(Phase::Failed.as_str().to_owned());
        }
        status.reason = Some(TERMINATED.to_owned());
        status.message = Some(NODE_SHUT_DOWN.to_owned());
        set_disruption_target(status, NODE_SHUT_DOWN, now);
    })
}
