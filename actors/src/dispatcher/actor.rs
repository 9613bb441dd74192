//! The actix actor: takes the turns that [`Turns`] decides on, and forwards changes of probes and of the runtime to the pods'
//! workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use actix::prelude::*;
use futures_util::{FutureExt, stream};
use podwright_metrics::{ActorMetrics, RetryTrigger};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Dispatcher;
use super::admit::Admission;
use super::messages::{AcceptUpdate, PodObjectsChanged, RefuseNewPods, RuntimeHealthChanged, RuntimePodChanged};
use super::turns::{Effect, Event, Turn, Turns, Waiting};
use crate::mailbox::stop_with;
use crate::probe_manager::ProbeChange;
use crate::time::Time;

/// The capacity of the mailbox. It is larger than the number of runtime reads that the observer has under way, so that a burst
/// of changed pods does not block the observer.
pub(crate) const MAILBOX: usize = 64;

/// Receives the updates and changes that the dispatcher handles. See the module.
pub(crate) struct DispatcherActor {
    dispatcher: Arc<Dispatcher>,
    metrics: ActorMetrics,
    stop: CancellationToken,
    /// Whether the runtime is healthy, published by the observer.
    healthy: watch::Receiver<bool>,
    /// Fires each time the containers of a pod have ended.
    pod_ended: Arc<Notify>,
    turns: Turns<Accepted>,
}

/// Fires once the update of a source is accepted.
type Accepted = oneshot::Sender<()>;

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
        DispatcherActor { dispatcher, metrics, stop, healthy, pod_ended, turns: Turns::default() }
    }

    /// Reports an event to the turns and performs their effects, until no turn begins or one waits for its rejections.
    fn drive(&mut self, event: Event<Accepted>, ctx: &mut Context<Self>) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let now = Instant::now().into_std();
            let is_healthy = *self.healthy.borrow();
            for effect in self.turns.step(event, is_healthy, now) {
                match effect {
                    Effect::Reply(accepted) => {
                        // A source that has stopped no longer waits for the reply.
                        let _stopped = accepted.send(());
                    }
                    Effect::Refused => self.metrics.refused(),
                    Effect::WakeAt(at) => {
                        ctx.run_later(at.saturating_duration_since(now), |actor, ctx| {
                            let passed = Event::TimePassed(actor.waiting());
                            actor.drive(passed, ctx);
                        });
                    }
                    Effect::RetryResizes => {
                        self.handle_now(|dispatcher| dispatcher.retry_resizes(RetryTrigger::PeriodicRetry));
                    }
                    Effect::Begin(turn) => next = self.begin(turn, ctx),
                    Effect::Hold => {
                        let mut desired = self.dispatcher.desired.lock();
                        self.turns.accepted().for_each(|update| desired.hold(update));
                    }
                }
            }
        }
    }

    /// Takes a turn. Returns its end, or reports it later if rejections have to be published first.
    fn begin(&mut self, turn: Turn, ctx: &mut Context<Self>) -> Option<Event<Accepted>> {
        self.metrics.received();
        let start = self.dispatcher.clock.now();
        let dispatcher = self.dispatcher.clone();
        let applied = catch_unwind(AssertUnwindSafe(|| match turn {
            Turn::Readmit => dispatcher.readmit(),
            Turn::Update(update) => dispatcher.deliver(update),
            Turn::RetryAdmission => dispatcher.retry_admission(),
        }));
        let Ok(Admission { panics, rejected, preempted, overtakes: _ }) = applied else {
            self.panicked();
            return Some(self.ended(false, start));
        };
        let is_complete = panics == 0;
        for pod in preempted {
            let dispatcher = dispatcher.clone();
            let stopped = async move { dispatcher.await_preempted(pod).await };
            ctx.spawn(stopped.into_actor(self).map(|(), actor, ctx| actor.freed(ctx)));
        }
        if rejected.is_empty() {
            return Some(self.ended(is_complete, start));
        }
        let publish = async move { AssertUnwindSafe(dispatcher.publish_rejections(rejected)).catch_unwind().await };
        ctx.spawn(publish.into_actor(self).map(move |published, actor, ctx| {
            if published.is_err() {
                actor.panicked();
            }
            let ended = actor.ended(is_complete && published.is_ok(), start);
            actor.drive(ended, ctx);
        }));
        None
    }

    fn ended(&self, is_complete: bool, start: Time) -> Event<Accepted> {
        self.metrics.handled(self.dispatcher.clock.now().since(start));
        Event::Ended { is_complete, waiting: self.waiting() }
    }

    fn waiting(&self) -> Waiting {
        Waiting { pods: self.dispatcher.has_queue(), resizes: self.dispatcher.has_resizes() }
    }

    /// Judges the pods of the queue again, because resources may have become free.
    fn freed(&mut self, ctx: &mut Context<Self>) {
        let freed = Event::Freed(self.waiting());
        self.drive(freed, ctx);
    }

    /// Judges the pods of the queue again, and then decides again on the resizes that wait.
    fn freed_by(&mut self, trigger: RetryTrigger, ctx: &mut Context<Self>) {
        self.freed(ctx);
        if self.dispatcher.has_resizes() {
            self.handle_now(|dispatcher| dispatcher.retry_resizes(trigger));
        }
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
        self.freed_by(RetryTrigger::PodTerminated, ctx);
    }
}

impl StreamHandler<PodsResized> for DispatcherActor {
    fn handle(&mut self, _: PodsResized, ctx: &mut Self::Context) {
        self.freed_by(RetryTrigger::PodResized, ctx);
    }
}

impl Handler<AcceptUpdate> for DispatcherActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, AcceptUpdate(update): AcceptUpdate, ctx: &mut Self::Context) -> Self::Result {
        let (reply, accepted) = oneshot::channel();
        self.drive(Event::Accept { update, reply }, ctx);
        // The sender is dropped only with the actor.
        accepted.map(|_stopped| ()).boxed_local()
    }
}

impl Handler<RuntimeHealthChanged> for DispatcherActor {
    type Result = ();

    fn handle(&mut self, _: RuntimeHealthChanged, ctx: &mut Self::Context) {
        self.handle_now(|_| {});
        self.drive(Event::HealthChanged, ctx);
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
            self.drive(Event::DecisionsWithdrawn, ctx);
        }
    }
}
