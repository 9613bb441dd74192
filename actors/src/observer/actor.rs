//! The actix actor: follows the runtime's events, and performs the lists and reads that [`Relists`] decides on.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::FutureExt;
use podwright_metrics::ActorMetrics;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Observer;
use super::messages::{HintsLost, PodHint, RelistTurn};
use super::relist::{Effect, Event, RELIST, RELIST_WITH_EVENTS, Relists};
use crate::dispatcher::{RuntimeHealthChanged, RuntimePodChanged};
use crate::ids::PodUid;
use crate::mailbox::{Outbox, stop_with};
use crate::text::error_chain;

/// The first delay after the runtime's adapter panicked in its events. It doubles up to the relist period.
const EVENTS_RETRY: Duration = RELIST;

/// Watches the runtime. See the module.
pub(crate) struct ObserverActor {
    observer: Arc<Observer>,
    pods: Arc<Outbox<RuntimePodChanged>>,
    health: Arc<Outbox<RuntimeHealthChanged>>,
    metrics: ActorMetrics,
    stop: CancellationToken,
    relists: Relists,
}

impl ObserverActor {
    /// Reports each pod that changed to `pods`, and changes of the runtime's health to `health`.
    pub(crate) fn new(
        observer: Arc<Observer>,
        pods: Arc<Outbox<RuntimePodChanged>>,
        health: Arc<Outbox<RuntimeHealthChanged>>,
        stop: CancellationToken,
    ) -> Self {
        let metrics = observer.metrics.actors.of("observer");
        let relists = Relists::new(Instant::now().into_std());
        ObserverActor { observer, pods, health, metrics, stop, relists }
    }

    /// Reports an event to the relists and performs their effects.
    fn drive(&mut self, event: Event, ctx: &mut Context<Self>) {
        let now = Instant::now().into_std();
        for effect in self.relists.step(event, now) {
            match effect {
                Effect::WakeAt(at) => {
                    ctx.notify_later(RelistTurn, at.saturating_duration_since(now));
                }
                Effect::List { since_last_start } => {
                    if let Some(since) = since_last_start {
                        self.observer.metrics.pleg.relist_interval(since);
                    }
                    self.list(ctx);
                }
                Effect::Read(uid) => self.read(uid, ctx),
                Effect::Relisted { took } => self.observer.relisted(took),
                Effect::Reachable => tracing::info!("runtime answers again"),
                Effect::Unreachable { error } => {
                    tracing::warn!(%error, "runtime does not answer, pods are left as they are");
                }
                Effect::Health(healthy) => {
                    self.observer.healthy.send_replace(healthy);
                    let health = self.health.clone();
                    ctx.spawn(async move { health.post(RuntimeHealthChanged).await }.into_actor(self));
                }
            }
        }
    }

    fn list(&self, ctx: &mut Context<Self>) {
        let observer = self.observer.clone();
        let list = async move { observer.list().await };
        ctx.spawn(list.into_actor(self).map(|listed, actor, ctx| {
            let event = match listed {
                Ok(changed) => {
                    actor.observer.list_succeeded();
                    Event::Listed(changed)
                }
                Err(error) => {
                    let error = error_chain(&error).to_string();
                    actor.observer.list_failed(error.clone());
                    Event::ListFailed { error }
                }
            };
            actor.drive(event, ctx);
        }));
    }

    fn read(&self, uid: PodUid, ctx: &mut Context<Self>) {
        let (observer, pods) = (self.observer.clone(), self.pods.clone());
        let read = async move {
            if observer.read_hinted(&uid).await {
                pods.post(RuntimePodChanged { uid: uid.clone() }).await;
            }
            uid
        };
        ctx.spawn(read.into_actor(self).map(|uid, actor, ctx| actor.drive(Event::Read(uid), ctx)));
    }

    /// Handles a message, and counts it.
    fn handle_now(&mut self, event: Event, ctx: &mut Context<Self>) {
        self.metrics.received();
        let start = self.observer.clock.now();
        self.drive(event, ctx);
        self.metrics.handled(self.observer.clock.now().since(start));
    }
}

impl Actor for ObserverActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        stop_with(&self.stop, self, ctx);
        ctx.notify(RelistTurn);
        let (observer, address) = (self.observer.clone(), ctx.address());
        // A task of its own, because each hint waits for room in the mailbox: a flood of events then delays only this task.
        actix::spawn(self.stop.clone().run_until_cancelled_owned(follow_events(observer, address)));
    }
}

impl Handler<RelistTurn> for ObserverActor {
    type Result = ();

    fn handle(&mut self, _: RelistTurn, ctx: &mut Self::Context) {
        let (has_events, unread) = (self.observer.runtime.has_events(), self.observer.cache.unread());
        self.handle_now(Event::Turn { has_events, unread }, ctx);
    }
}

impl Handler<PodHint> for ObserverActor {
    type Result = ();

    fn handle(&mut self, PodHint { uid }: PodHint, ctx: &mut Self::Context) {
        self.handle_now(Event::Hint(uid), ctx);
    }
}

impl Handler<HintsLost> for ObserverActor {
    type Result = ();

    fn handle(&mut self, _: HintsLost, ctx: &mut Self::Context) {
        self.handle_now(Event::HintsLost, ctx);
    }
}

/// Sends a hint for each event of the runtime. A panic of the runtime's adapter loses the events until the next relist.
async fn follow_events(observer: Arc<Observer>, address: Addr<ObserverActor>) {
    let mut retry = EVENTS_RETRY;
    loop {
        // The adapter may also panic before it returns a future.
        let event = AssertUnwindSafe(async { observer.runtime.next_event().await }).catch_unwind().await;
        let sent = match event {
            Ok(uid) => {
                retry = EVENTS_RETRY;
                address.send(PodHint { uid }).await
            }
            Err(_) => {
                observer.metrics.actors.hook_panicked();
                tracing::error!(retry.seconds = retry.as_secs(), "the runtime's events panicked");
                let sent = address.send(HintsLost).await;
                sleep_until(Instant::now() + retry).await;
                retry = (2 * retry).min(RELIST_WITH_EVENTS);
                sent
            }
        };
        if sent.is_err() {
            return;
        }
    }
}
