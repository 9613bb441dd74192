//! The actix actor: applies source updates in their order while the runtime is healthy, and forwards changes of probes and
//! of the runtime to the pods' workers.

mod retries;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::{FutureExt, stream};
use podwright_metrics::{ActorMetrics, RetryTrigger};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::retries::Readmission;
use super::Dispatcher;
use super::admit::Admission;
use super::messages::{PodObjectsChanged, RefuseNewPods, RuntimeHealthChanged, RuntimePodChanged};
use crate::mailbox::stop_with;
use crate::ports::{SOURCE_CHANNEL_DEPTH, SourceUpdate};
use crate::probe_manager::ProbeChange;
use crate::time::Time;

/// The capacity of the mailbox. It is larger than the number of runtime reads that the observer has under way, so that a burst
/// of changed pods does not block the observer.
pub(crate) const MAILBOX: usize = 64;

/// The largest number of accepted source updates. Sources that wait for replies stay below it.
const MAX_ACCEPTED: usize = 2 * SOURCE_CHANNEL_DEPTH;

/// The delay before admission is retried after an admission handler panicked. Equal to the delay after a failed hook
/// (upstream `backOffPeriod`, kubelet 1.36).
const ADMISSION_RETRY: Duration = Duration::from_secs(10);

/// Receives the updates and changes that the dispatcher handles. See the module.
pub(crate) struct DispatcherActor {
    dispatcher: Arc<Dispatcher>,
    metrics: ActorMetrics,
    stop: CancellationToken,
    /// Whether the runtime is healthy, published by the observer.
    healthy: watch::Receiver<bool>,
    /// Source updates that were accepted and not applied yet.
    accepted: VecDeque<AcceptedUpdate>,
    /// Whether the rejections of the update that was applied last are still being published.
    publishing: bool,
    retry: AdmissionRetry,
    /// Fires each time the containers of a pod have ended.
    pod_ended: Arc<Notify>,
    readmission: Readmission,
    /// Whether the next judgement of the queue after [`READMISSION_PERIOD`] is scheduled.
    readmits_later: bool,
    /// Whether the next decision on the resizes that wait, after [`RESIZE_PERIOD`], is scheduled.
    resizes_later: bool,
}

struct AcceptedUpdate {
    update: SourceUpdate,
    /// Fires once fewer than [`SOURCE_CHANNEL_DEPTH`] updates are before this one. `None` if there were fewer when this
    /// update arrived.
    reply: Option<oneshot::Sender<()>>,
}

/// Whether admission has to be retried, because some pods have no decision.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AdmissionRetry {
    NotNeeded,
    /// A timer runs.
    Scheduled,
    /// The timer fired. The retry comes after the accepted updates.
    Due,
}

/// The next step of the dispatcher.
enum Turn {
    /// Judges the pods of the queue. This step comes first, so that no new pod gets the resources that a pod of the queue waits for.
    Readmit,
    Update(SourceUpdate),
    RetryAdmission,
}

/// The containers of one or more pods have ended.
struct PodsEnded;

/// The resizes of one or more pods are complete.
struct PodsResized;

impl DispatcherActor {
    /// Applies source updates while `healthy` is true, and holds them back otherwise. `pod_ended` fires each time the containers
    /// of a pod have ended. Ends when `stop` is cancelled.
    pub(crate) fn new(
        dispatcher: Arc<Dispatcher>,
        metrics: ActorMetrics,
        healthy: watch::Receiver<bool>,
        pod_ended: Arc<Notify>,
        stop: CancellationToken,
    ) -> Self {
        DispatcherActor {
            dispatcher,
            metrics,
            stop,
            healthy,
            accepted: VecDeque::new(),
            publishing: false,
            retry: AdmissionRetry::NotNeeded,
            pod_ended,
            readmission: Readmission::NotNeeded,
            readmits_later: false,
            resizes_later: false,
        }
    }

    /// Applies the accepted updates, one after the other, while the runtime is healthy and no rejection is being published.
    fn apply_accepted(&mut self, ctx: &mut Context<Self>) {
        let is_healthy = *self.healthy.borrow();
        while is_healthy && !self.publishing {
            let Some(turn) = self.next_turn() else { return };
            self.apply(turn, ctx);
        }
        if !is_healthy {
            let mut desired = self.dispatcher.desired.lock();
            self.accepted.iter().for_each(|accepted| desired.hold(&accepted.update));
        }
    }

    /// Drops the oldest accepted update of a source that keeps sending without waiting for replies: its later updates replace
    /// it, and the updates of the others stay.
    fn bound_accepted(&mut self, update: &SourceUpdate) {
        if self.accepted.len() < MAX_ACCEPTED {
            return;
        }
        let is_same = |accepted: &AcceptedUpdate| accepted.update.source() == update.source();
        if let Some(oldest) = self.accepted.iter().position(is_same) {
            self.metrics.refused();
            self.accepted.remove(oldest);
            self.reply_to_next();
        }
    }

    /// Replies to the update that has moved to the last place with room.
    fn reply_to_next(&mut self) {
        let has_room = self.accepted.get_mut(SOURCE_CHANNEL_DEPTH - 1);
        if let Some(reply) = has_room.and_then(|accepted| accepted.reply.take()) {
            // A source that has stopped no longer waits for the reply.
            let _stopped = reply.send(());
        }
    }

    fn next_turn(&mut self) -> Option<Turn> {
        if self.readmission == Readmission::Due {
            return Some(Turn::Readmit);
        }
        if let Some(AcceptedUpdate { update, reply }) = self.accepted.pop_front() {
            debug_assert!(reply.is_none(), "the first update in line has room");
            self.reply_to_next();
            return Some(Turn::Update(update));
        }
        (self.retry == AdmissionRetry::Due).then_some(Turn::RetryAdmission)
    }

    fn apply(&mut self, turn: Turn, ctx: &mut Context<Self>) {
        self.metrics.received();
        let start = self.dispatcher.clock.now();
        let is_retry = matches!(turn, Turn::RetryAdmission);
        if matches!(turn, Turn::Readmit) {
            self.pause_readmission(ctx);
        }
        let dispatcher = self.dispatcher.clone();
        let applied = catch_unwind(AssertUnwindSafe(|| match turn {
            Turn::Readmit => dispatcher.readmit(),
            Turn::Update(update) => dispatcher.deliver(update),
            Turn::RetryAdmission => dispatcher.retry_admission(),
        }));
        let Ok(Admission { panics, rejected, preempted, overtakes: _ }) = applied else {
            self.panicked();
            self.applied(is_retry, false, start, ctx);
            return;
        };
        let is_complete = panics == 0;
        for pod in preempted {
            let dispatcher = dispatcher.clone();
            let stopped = async move { dispatcher.await_preempted(pod).await };
            ctx.spawn(stopped.into_actor(self).map(|(), actor, ctx| actor.readmit(ctx)));
        }
        if rejected.is_empty() {
            self.applied(is_retry, is_complete, start, ctx);
            return;
        }
        self.publishing = true;
        let publish = async move { AssertUnwindSafe(dispatcher.publish_rejections(rejected)).catch_unwind().await };
        ctx.spawn(publish.into_actor(self).map(move |published, actor, ctx| {
            if published.is_err() {
                actor.panicked();
            }
            actor.publishing = false;
            actor.applied(is_retry, is_complete && published.is_ok(), start, ctx);
            actor.apply_accepted(ctx);
        }));
    }

    /// Ends the handling of an update or a retry. If a handler panicked, admission is retried. Further updates do not
    /// postpone the retry.
    fn applied(&mut self, is_retry: bool, is_complete: bool, start: Time, ctx: &mut Context<Self>) {
        if is_complete {
            if is_retry {
                self.retry = AdmissionRetry::NotNeeded;
            }
        } else if is_retry || self.retry == AdmissionRetry::NotNeeded {
            self.retry = AdmissionRetry::Scheduled;
            ctx.run_later(ADMISSION_RETRY, |actor, ctx| {
                actor.retry = AdmissionRetry::Due;
                actor.apply_accepted(ctx);
            });
        }
        self.readmit_later(ctx);
        self.resize_later(ctx);
        self.metrics.handled(self.dispatcher.clock.now().since(start));
    }

    /// Counts and logs a panic in one of the embedder's ports.
    fn panicked(&self) {
        self.dispatcher.metrics.actors.hook_panicked();
        tracing::error!("the dispatcher's handling of a message panicked");
    }

    /// Handles a message at once, ahead of the accepted updates, and counts it. A panic loses only that message.
    fn handle_now(&self, handle: impl FnOnce(&Dispatcher)) {
        self.metrics.received();
        let start = self.dispatcher.clock.now();
        if catch_unwind(AssertUnwindSafe(|| handle(&self.dispatcher))).is_err() {
            self.panicked();
        }
        self.metrics.handled(self.dispatcher.clock.now().since(start));
    }
}

impl Actor for DispatcherActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        stop_with(&self.stop, self, ctx);
        ctx.add_stream(stream::unfold(self.pod_ended.clone(), |ended| async move {
            ended.notified().await;
            Some((PodsEnded, ended))
        }));
        ctx.add_stream(stream::unfold(self.dispatcher.resizes.completed(), |completed| async move {
            completed.notified().await;
            Some((PodsResized, completed))
        }));
    }
}

impl StreamHandler<PodsEnded> for DispatcherActor {
    fn handle(&mut self, _: PodsEnded, ctx: &mut Self::Context) {
        self.readmit(ctx);
        if self.dispatcher.has_resizes() {
            self.handle_now(|dispatcher| dispatcher.retry_resizes(RetryTrigger::PodTerminated));
        }
    }
}

impl StreamHandler<PodsResized> for DispatcherActor {
    fn handle(&mut self, _: PodsResized, ctx: &mut Self::Context) {
        self.readmit(ctx);
        if self.dispatcher.has_resizes() {
            self.handle_now(|dispatcher| dispatcher.retry_resizes(RetryTrigger::PodResized));
        }
    }
}

impl Handler<SourceUpdate> for DispatcherActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, update: SourceUpdate, ctx: &mut Self::Context) -> Self::Result {
        self.bound_accepted(&update);
        if self.accepted.len() < SOURCE_CHANNEL_DEPTH {
            self.accepted.push_back(AcceptedUpdate { update, reply: None });
            self.apply_accepted(ctx);
            return std::future::ready(()).boxed_local();
        }
        let (reply, has_room) = oneshot::channel();
        self.accepted.push_back(AcceptedUpdate { update, reply: Some(reply) });
        self.apply_accepted(ctx);
        // The sender is dropped only with the actor.
        has_room.map(|_stopped| ()).boxed_local()
    }
}

impl Handler<RuntimeHealthChanged> for DispatcherActor {
    type Result = ();

    fn handle(&mut self, _: RuntimeHealthChanged, ctx: &mut Self::Context) {
        self.handle_now(|_| {});
        self.apply_accepted(ctx);
    }
}

impl Handler<RuntimePodChanged> for DispatcherActor {
    type Result = ();

    fn handle(&mut self, RuntimePodChanged { uid }: RuntimePodChanged, _: &mut Self::Context) {
        self.handle_now(|dispatcher| dispatcher.request_sync(&uid));
    }
}

impl Handler<PodObjectsChanged> for DispatcherActor {
    type Result = ();

    fn handle(&mut self, PodObjectsChanged { uid }: PodObjectsChanged, _: &mut Self::Context) {
        self.handle_now(|dispatcher| dispatcher.request_sync(&uid));
    }
}

impl Handler<ProbeChange> for DispatcherActor {
    type Result = ();

    fn handle(&mut self, change: ProbeChange, _: &mut Self::Context) {
        self.handle_now(|dispatcher| dispatcher.probe_changed(&change));
    }
}

impl Handler<RefuseNewPods> for DispatcherActor {
    type Result = ();

    fn handle(&mut self, RefuseNewPods { refuse }: RefuseNewPods, ctx: &mut Self::Context) {
        let mut has_refused = false;
        self.handle_now(|dispatcher| has_refused = dispatcher.refuse_new_pods(refuse));
        if has_refused {
            self.retry = AdmissionRetry::Due;
            self.apply_accepted(ctx);
        }
    }
}
