//! The actix actor: follows the runtime's events, relists, and reports whether the runtime is healthy.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::FutureExt;
use podwright_metrics::ActorMetrics;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::messages::{HintsLost, PodHint, RelistTurn};
use super::{Observer, PARALLEL_READS};
use crate::dispatcher::{RuntimeHealthChanged, RuntimePodChanged};
use crate::ids::PodUid;
use crate::mailbox::{Outbox, stop_with};
use crate::ports::RuntimeError;
use crate::text::error_chain;
use crate::time::Time;

/// How often to relist a runtime that has no events (upstream `genericPlegRelistPeriod`, kubelet 1.36).
const RELIST: Duration = Duration::from_secs(1);
/// How often to relist a runtime that has events. Relists find changes whose events were lost, and update the gauges.
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(10);
/// The first delay after the runtime's adapter panicked in its events. It doubles up to the relist period.
const EVENTS_RETRY: Duration = RELIST;
/// The runtime counts as unhealthy this long after the last relist (upstream `genericPlegRelistThreshold`, kubelet 1.36).
const UNHEALTHY_AFTER: Duration = Duration::from_secs(180);

/// Watches the runtime. See the module.
pub(crate) struct ObserverActor {
    observer: Arc<Observer>,
    pods: Arc<Outbox<RuntimePodChanged>>,
    health: Arc<Outbox<RuntimeHealthChanged>>,
    metrics: ActorMetrics,
    stop: CancellationToken,
    /// Pods to be read.
    marked: BTreeSet<PodUid>,
    /// Pods that are being read. A mark that arrives during a read leads to one more read.
    reading: BTreeSet<PodUid>,
    /// When the next turn is due. Turns follow a fixed grid, so that their delays do not add up.
    next_turn: Instant,
    /// When the list that is under way began.
    listing: Option<Time>,
    /// When the last list began and ended.
    last_list: Option<ListTimes>,
    /// Set by lost hints: the next turn lists.
    list_now: bool,
    /// The last relist, until the pods that it found changed are read.
    relist: Option<Relist>,
    /// Whether the last list succeeded.
    reachable: bool,
}

struct ListTimes {
    start: Time,
    end: Instant,
}

struct Relist {
    start: Time,
    unread: BTreeSet<PodUid>,
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
        ObserverActor {
            observer,
            pods,
            health,
            metrics,
            stop,
            marked: BTreeSet::new(),
            reading: BTreeSet::new(),
            next_turn: Instant::now(),
            listing: None,
            last_list: None,
            list_now: false,
            relist: None,
            reachable: true,
        }
    }

    /// Starts reads of marked pods, as many as may run at once.
    fn read_marked(&mut self, ctx: &mut Context<Self>) {
        while self.reading.len() < PARALLEL_READS
            && let Some(uid) = self.next_read()
        {
            let (observer, pods) = (self.observer.clone(), self.pods.clone());
            let read = async move {
                if observer.read_hinted(&uid).await {
                    pods.post(RuntimePodChanged { uid: uid.clone() }).await;
                }
                uid
            };
            ctx.spawn(read.into_actor(self).map(|uid, actor, ctx| {
                actor.read_ended(&uid, ctx);
                actor.read_marked(ctx);
            }));
        }
    }

    fn next_read(&mut self) -> Option<PodUid> {
        let uid = self.marked.iter().find(|uid| !self.reading.contains(*uid))?.clone();
        self.marked.remove(&uid);
        self.reading.insert(uid.clone());
        Some(uid)
    }

    fn read_ended(&mut self, uid: &PodUid, ctx: &mut Context<Self>) {
        self.reading.remove(uid);
        if !self.marked.contains(uid)
            && let Some(relist) = &mut self.relist
        {
            relist.unread.remove(uid);
        }
        self.end_relist(ctx);
    }

    fn list_if_due(&mut self, ctx: &mut Context<Self>) {
        // A runtime that restarts may gain or lose its events.
        let has_events = self.observer.runtime.has_events() && self.reachable;
        let period = if has_events { RELIST_WITH_EVENTS } else { RELIST };
        let is_due = self.list_now || self.last_list.as_ref().is_none_or(|last| last.end.elapsed() >= period);
        if self.listing.is_some() || !is_due {
            return;
        }
        let start = self.observer.clock.now();
        if let Some(last) = self.last_list.as_ref().filter(|_| self.observer.has_listed()) {
            self.observer.metrics.pleg.relist_interval(start.since(last.start));
        }
        self.listing = Some(start);
        self.list_now = false;
        let observer = self.observer.clone();
        let list = async move { observer.list().await };
        ctx.spawn(list.into_actor(self).map(move |listed, actor, ctx| {
            actor.listing = None;
            actor.last_list = Some(ListTimes { start, end: Instant::now() });
            match listed {
                Ok(changed) => actor.listed(start, changed, ctx),
                Err(error) => actor.unreachable(&error, ctx),
            }
            actor.read_marked(ctx);
        }));
    }

    fn listed(&mut self, start: Time, changed: BTreeSet<PodUid>, ctx: &mut Context<Self>) {
        if !std::mem::replace(&mut self.reachable, true) {
            tracing::info!("runtime answers again");
        }
        self.observer.list_succeeded();
        self.marked.extend(changed.iter().cloned());
        self.relist = Some(Relist { start, unread: changed });
        self.end_relist(ctx);
    }

    /// Ends a relist once every pod that it found changed is read. The runtime counts as healthy after the first relist has
    /// ended, because the cache then has every running container.
    fn end_relist(&mut self, ctx: &mut Context<Self>) {
        if let Some(relist) = self.relist.take_if(|relist| relist.unread.is_empty()) {
            self.observer.metrics.pleg.relisted(self.observer.clock.now().since(relist.start));
            self.observer.cache.list_ended();
        }
        self.check_health(ctx);
    }

    fn unreachable(&mut self, error: &RuntimeError, ctx: &mut Context<Self>) {
        self.observer.list_failed(error);
        if std::mem::replace(&mut self.reachable, false) {
            tracing::warn!(error = %error_chain(error), "runtime does not answer, pods are left as they are");
        }
        self.check_health(ctx);
    }

    /// Reports a change of the runtime's health, by the age of the last list.
    fn check_health(&mut self, ctx: &mut Context<Self>) {
        if self.observer.check_health(UNHEALTHY_AFTER) {
            let health = self.health.clone();
            ctx.spawn(async move { health.post(RuntimeHealthChanged).await }.into_actor(self));
        }
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
        self.metrics.received();
        let start = self.observer.clock.now();
        let now = Instant::now();
        self.next_turn = (self.next_turn + RELIST).max(now);
        ctx.notify_later(RelistTurn, self.next_turn - now);
        if self.reachable {
            self.marked.extend(self.observer.cache.unread());
        }
        self.check_health(ctx);
        self.list_if_due(ctx);
        self.read_marked(ctx);
        self.metrics.handled(self.observer.clock.now().since(start));
    }
}

impl Handler<PodHint> for ObserverActor {
    type Result = ();

    fn handle(&mut self, PodHint { uid }: PodHint, ctx: &mut Self::Context) {
        self.metrics.received();
        let start = self.observer.clock.now();
        self.marked.insert(uid);
        self.read_marked(ctx);
        self.metrics.handled(self.observer.clock.now().since(start));
    }
}

impl Handler<HintsLost> for ObserverActor {
    type Result = ();

    fn handle(&mut self, _: HintsLost, _: &mut Self::Context) {
        self.metrics.received();
        self.list_now = true;
        self.metrics.handled(Duration::ZERO);
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
