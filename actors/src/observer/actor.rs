//! The actix actor: follows the runtime's events, relists, and tells whether the runtime answers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::{ChangeSink, Observer, PARALLEL_READS};
use crate::ids::PodUid;
use crate::ports::RuntimeError;
use crate::time::Time;

/// How often to relist a runtime that has no events (upstream's generic generator).
const RELIST: Duration = Duration::from_secs(1);
/// How often to relist one that has, as a safety net and for the gauges.
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(10);
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
            dirty: HashSet::new(),
            last_relist: None,
            reachable: true,
        };
        ctx.spawn(watch.run().into_actor(self));
    }
}

struct Watch {
    observer: Arc<Observer>,
    sink: ChangeSink,
    healthy: watch::Sender<bool>,
    /// Pods that have to be read again, because the last read failed.
    dirty: HashSet<PodUid>,
    last_relist: Option<Time>,
    reachable: bool,
}

impl Watch {
    async fn run(mut self) {
        let observer = self.observer.clone();
        let sink = self.sink.clone();
        let with_events = observer.runtime.has_events();
        let period = if with_events { RELIST_WITH_EVENTS } else { RELIST };
        let mut tick = tokio::time::interval(RELIST);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next_relist = Instant::now();
        let mut reads = FuturesUnordered::new();
        loop {
            tokio::select! {
                uid = observer.runtime.next_event(), if with_events && reads.len() < PARALLEL_READS => {
                    reads.push(observer.follow(uid, &sink));
                }
                Some(result) = reads.next() => {
                    if let Err((uid, error)) = result {
                        self.unread(uid, &error);
                    }
                }
                _ = tick.tick() => {
                    if Instant::now() >= next_relist {
                        self.relist().await;
                        next_relist = Instant::now() + period;
                    }
                    for uid in std::mem::take(&mut self.dirty) {
                        reads.push(observer.follow(uid, &sink));
                    }
                }
            }
        }
    }

    fn unread(&mut self, uid: PodUid, error: &RuntimeError) {
        tracing::debug!(pod.uid = %uid, %error, "status read failed");
        self.dirty.insert(uid);
    }

    async fn relist(&mut self) {
        let now = self.observer.clock.now();
        if let Some(last) = self.last_relist {
            self.observer.metrics.pleg.relist_interval(now.since(last));
        }
        match self.observer.relist(&self.sink).await {
            Ok(failed) => {
                self.dirty.extend(failed);
                self.last_relist = Some(now);
                if !std::mem::replace(&mut self.reachable, true) {
                    tracing::info!("runtime answers again");
                }
                self.healthy.send_if_modified(|healthy| !std::mem::replace(healthy, true));
            }
            Err(error) => {
                if std::mem::replace(&mut self.reachable, false) {
                    tracing::warn!(%error, "runtime does not answer, pods are left as they are");
                }
                if self.last_relist.is_none_or(|last| now.since(last) > UNHEALTHY_AFTER) {
                    self.healthy.send_if_modified(|healthy| std::mem::replace(healthy, false));
                }
            }
        }
    }
}
