//! The actix actor: hands each set that a source sends to the dispatcher, while the runtime is healthy.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::FutureExt;
use podwright_metrics::ActorMetrics;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::{Dispatcher, Judged, Verdicts};
use crate::desired::Desired;
use crate::ports::SourceNews;

/// How long until pods are judged again after an admission handler panicked, as with a hook that failed (upstream
/// `backOffPeriod`).
const RETRY: Duration = Duration::from_secs(10);

/// Reads the sources. Ends when all of them have.
pub struct DispatcherActor {
    dispatcher: Arc<Dispatcher>,
    sets: Option<mpsc::Receiver<SourceNews>>,
    healthy: watch::Receiver<bool>,
    metrics: ActorMetrics,
}

impl DispatcherActor {
    /// Acts on `sets` while `healthy` is true. Else the last of each source is held back.
    pub fn new(dispatcher: Arc<Dispatcher>, sets: mpsc::Receiver<SourceNews>, healthy: watch::Receiver<bool>) -> Self {
        let metrics = dispatcher.metrics.actors.of("dispatcher");
        DispatcherActor { dispatcher, sets: Some(sets), healthy, metrics }
    }
}

impl Actor for DispatcherActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let Some(sets) = self.sets.take() else { return };
        let mut held = Held { news: VecDeque::new(), sets, ended: false, healthy: self.healthy.clone() };
        let dispatcher = self.dispatcher.clone();
        let metrics = self.metrics.clone();
        let read = async move {
            let mut judge_again = None;
            loop {
                let set = tokio::select! {
                    biased;
                    set = held.next(&dispatcher.desired) => match set {
                        Some(set) => Some(set),
                        None => return,
                    },
                    () = sleep_until(judge_again.unwrap_or_else(Instant::now)), if judge_again.is_some() => None,
                };
                if held.healthy.wait_for(|healthy| *healthy).await.is_err() {
                    return;
                }
                metrics.received();
                let start = dispatcher.clock.now();
                let is_retry = set.is_none();
                let turn = async {
                    let Verdicts { judged, refused } = match set {
                        Some(set) => dispatcher.deliver(set),
                        None => dispatcher.judge_again(),
                    };
                    dispatcher.tell(refused).await;
                    judged
                };
                let judged = AssertUnwindSafe(turn).catch_unwind().await.unwrap_or_else(|_| {
                    // A port of the host.
                    dispatcher.metrics.actors.hook_panicked();
                    tracing::error!("handling a source's set panicked");
                    Judged::Some
                });
                match judged {
                    Judged::All if is_retry => judge_again = None,
                    // Sets that keep coming put off nobody's turn.
                    Judged::Some if is_retry || judge_again.is_none() => judge_again = Some(Instant::now() + RETRY),
                    Judged::All | Judged::Some => {}
                }
                metrics.handled(dispatcher.clock.now().since(start));
            }
        };
        ctx.spawn(read.into_actor(self).map(|(), _, ctx| ctx.stop()));
    }
}

/// What sources said that was not acted on yet: the last word of each.
struct Held {
    news: VecDeque<SourceNews>,
    sets: mpsc::Receiver<SourceNews>,
    ended: bool,
    healthy: watch::Receiver<bool>,
}

impl Held {
    /// What to act on next; nothing once the sources or the node have ended. Cancel safe.
    async fn next(&mut self, desired: &Desired) -> Option<SourceNews> {
        loop {
            // Asked after the set came: it may have been waited for since long before the runtime fell silent.
            if *self.healthy.borrow_and_update() {
                if let Some(news) = self.news.pop_front() {
                    return Some(news);
                }
            } else {
                let mut desired = desired.lock();
                self.news.iter().for_each(|news| desired.hold(news));
            }
            if self.ended && self.news.is_empty() {
                return None;
            }
            tokio::select! {
                biased;
                changed = self.healthy.changed() => changed.ok()?,
                news = self.sets.recv(), if !self.ended => match news {
                    Some(news) => self.hold(news),
                    None => self.ended = true,
                },
            }
        }
    }

    fn hold(&mut self, news: SourceNews) {
        // What a source wants counts more than that it does not know yet.
        let of = |news: &SourceNews| match news {
            SourceNews::Set(set) => (set.source, true),
            SourceNews::NotYet { source, .. } => (*source, false),
        };
        let (source, is_set) = of(&news);
        self.news.retain(|old| of(old).0 != source || (!is_set && of(old).1));
        self.news.push_back(news);
    }
}
