//! The actix actor: follows the runtime's events, relists, and tells whether the runtime answers.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::future::{Fuse, FusedFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

use super::{ChangeSink, Observer, PARALLEL_READS};
use crate::explain::Failing;
use crate::ids::PodUid;
use crate::ports::RuntimeError;
use crate::time::Time;

/// How often to relist a runtime that has no events (upstream's generic generator).
const RELIST: Duration = Duration::from_secs(1);
/// How often to relist one that has, as a safety net and for the gauges.
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(10);
/// How long until events are asked for again after the runtime's adapter panicked, at first; it doubles up to the relist
/// period.
const EVENTS_RETRY: Duration = RELIST;
/// Without a relist for so long the runtime counts as unhealthy (upstream `relistThreshold`).
const UNHEALTHY_AFTER: Duration = Duration::from_secs(180);

/// Watches the runtime. Ends never.
pub struct ObserverActor {
    observer: Arc<Observer>,
    sink: ChangeSink,
    healthy: watch::Sender<bool>,
}

impl ObserverActor {
    /// Tells `sink` of each pod in which something changed, and `healthy` whether the runtime answers.
    pub fn new(observer: Arc<Observer>, sink: ChangeSink, healthy: watch::Sender<bool>) -> Self {
        ObserverActor { observer, sink, healthy }
    }
}

impl Actor for ObserverActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let watch = Watch {
            observer: self.observer.clone(),
            sink: self.sink.clone(),
            healthy: self.healthy.clone(),
            marked: BTreeSet::new(),
            reading: BTreeSet::new(),
            relist: None,
            last_list: None,
            reachable: true,
        };
        ctx.spawn(watch.run().into_actor(self));
    }
}

struct Watch {
    observer: Arc<Observer>,
    sink: ChangeSink,
    healthy: watch::Sender<bool>,
    /// Pods that have to be read.
    marked: BTreeSet<PodUid>,
    /// Pods that are being read. A mark that comes meanwhile leads to one more read.
    reading: BTreeSet<PodUid>,
    /// The last relist, until what it found was read.
    relist: Option<Relist>,
    /// When the last list came back.
    last_list: Option<Time>,
    reachable: bool,
}

/// The runtime's events, of which a panic is not the end.
struct Events<'a> {
    observer: &'a Observer,
    wait: Duration,
    ask_at: Option<Instant>,
}

impl Events<'_> {
    /// The next one; `None` if the adapter panicked. Cancel safe, as the port is.
    async fn next(&mut self) -> Option<PodUid> {
        if let Some(at) = self.ask_at {
            sleep_until(at).await;
        }
        // The adapter may also panic before there is a future.
        let event = AssertUnwindSafe(async { self.observer.runtime.next_event().await }).catch_unwind().await;
        match event {
            Ok(uid) => {
                (self.wait, self.ask_at) = (EVENTS_RETRY, None);
                Some(uid)
            }
            Err(_) => {
                self.observer.metrics.actors.hook_panicked();
                tracing::error!(retry.seconds = self.wait.as_secs(), "the runtime's events panicked");
                self.ask_at = Some(Instant::now() + self.wait);
                self.wait = (2 * self.wait).min(RELIST_WITH_EVENTS);
                None
            }
        }
    }
}

struct Relist {
    start: Time,
    left: BTreeSet<PodUid>,
}

impl Watch {
    async fn run(mut self) {
        let (observer, sink) = (self.observer.clone(), self.sink.clone());
        let mut tick = tokio::time::interval(RELIST);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut list_end = None;
        let mut list_start = observer.clock.now();
        let mut list = pin!(Fuse::terminated());
        let mut reads = FuturesUnordered::new();
        let mut events = Events { observer: &observer, wait: EVENTS_RETRY, ask_at: None };
        loop {
            while reads.len() < PARALLEL_READS
                && let Some(uid) = self.next_read()
            {
                reads.push(observer.follow(uid, &sink));
            }
            tokio::select! {
                // In this order, so that a run can be repeated: a flood of events, which come last, holds up nothing else.
                biased;
                listed = &mut list => {
                    list_end = Some(Instant::now());
                    match listed {
                        Ok(changed) => self.listed(list_start, changed),
                        Err(error) => self.unreachable(&error),
                    }
                }
                _ = tick.tick() => {
                    // They wait for a runtime that is away.
                    if self.reachable {
                        self.marked.extend(observer.board.unread());
                    }
                    self.judge_health();
                    // They may come and go with the runtime.
                    let period = if observer.runtime.has_events() && self.reachable { RELIST_WITH_EVENTS } else { RELIST };
                    let due = list_end.is_none_or(|end: Instant| end.elapsed() >= period);
                    if list.is_terminated() && due {
                        let start = observer.clock.now();
                        if self.last_list.is_some() {
                            observer.metrics.pleg.relist_interval(start.since(list_start));
                        }
                        list_start = start;
                        list.set(observer.list().fuse());
                    }
                }
                Some(uid) = reads.next() => self.was_read(&uid),
                event = events.next() => match event {
                    Some(uid) => {
                        self.marked.insert(uid);
                    }
                    // Hints may be lost: the next tick lists.
                    None => list_end = None,
                },
            }
        }
    }

    fn next_read(&mut self) -> Option<PodUid> {
        let uid = self.marked.iter().find(|uid| !self.reading.contains(*uid))?.clone();
        self.marked.remove(&uid);
        self.reading.insert(uid.clone());
        Some(uid)
    }

    fn was_read(&mut self, uid: &PodUid) {
        self.reading.remove(uid);
        if !self.marked.contains(uid)
            && let Some(relist) = &mut self.relist
        {
            relist.left.remove(uid);
        }
        self.end_relist();
    }

    fn listed(&mut self, start: Time, changed: BTreeSet<PodUid>) {
        if !std::mem::replace(&mut self.reachable, true) {
            tracing::info!("runtime answers again");
            *self.observer.outage.lock() = None;
        }
        self.last_list = Some(self.observer.clock.now());
        self.marked.extend(changed.iter().cloned());
        self.relist = Some(Relist { start, left: changed });
        self.end_relist();
    }

    /// A relist is over when all that it found was read. The node is healthy from the first one on: by then it is known
    /// what runs.
    fn end_relist(&mut self) {
        if let Some(relist) = self.relist.take_if(|relist| relist.left.is_empty()) {
            self.observer.metrics.pleg.relisted(self.observer.clock.now().since(relist.start));
            self.observer.board.list_ended();
        }
        self.judge_health();
    }

    fn unreachable(&mut self, error: &RuntimeError) {
        Failing::note(&mut self.observer.outage.lock(), error.to_string(), self.observer.clock.now());
        if std::mem::replace(&mut self.reachable, false) {
            tracing::warn!(%error, "runtime does not answer, pods are left as they are");
        }
        self.judge_health();
    }

    fn judge_health(&mut self) {
        let now = self.observer.clock.now();
        let recent = self.last_list.is_some_and(|last| now.since(last) <= UNHEALTHY_AFTER);
        let good = recent && self.observer.board.was_listed();
        self.healthy.send_if_modified(|healthy| std::mem::replace(healthy, good) != good);
    }
}
