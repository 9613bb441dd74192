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
use crate::ports::{SOURCE_CHANNEL_DEPTH, SourceUpdate};

/// How long until pods are judged again after an admission handler panicked, as with a hook that failed (upstream
/// `backOffPeriod`).
const RETRY: Duration = Duration::from_secs(10);

/// Reads the sources. Ends when all of them have.
pub struct DispatcherActor {
    dispatcher: Arc<Dispatcher>,
    sets: Option<mpsc::Receiver<SourceUpdate>>,
    healthy: watch::Receiver<bool>,
    metrics: ActorMetrics,
}

impl DispatcherActor {
    /// Acts on `sets` while `healthy` is true, and holds them back else.
    pub fn new(
        dispatcher: Arc<Dispatcher>,
        sets: mpsc::Receiver<SourceUpdate>,
        healthy: watch::Receiver<bool>,
    ) -> Self {
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
            while let Some(turn) = held.next(&dispatcher.desired, judge_again).await {
                let set = match turn {
                    Turn::News(news) => Some(news),
                    Turn::JudgeAgain => None,
                };
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

/// What to do next.
enum Turn {
    News(SourceUpdate),
    JudgeAgain,
}

/// What sources said that was not acted on yet, in its order: each word may tell of a pod that the next one lacks.
struct Held {
    news: VecDeque<SourceUpdate>,
    sets: mpsc::Receiver<SourceUpdate>,
    ended: bool,
    healthy: watch::Receiver<bool>,
}

impl Held {
    /// Waits for the runtime, and then for news or for that time; nothing once the sources or the node have ended. Cancel
    /// safe.
    async fn next(&mut self, desired: &Desired, judge_again: Option<Instant>) -> Option<Turn> {
        loop {
            // Asked after the set came: it may have been waited for since long before the runtime fell silent.
            let healthy = *self.healthy.borrow_and_update();
            if healthy && let Some(news) = self.news.pop_front() {
                return Some(Turn::News(news));
            }
            if !healthy {
                let mut desired = desired.lock();
                self.news.iter().for_each(|news| desired.hold(news));
            }
            if self.ended && self.news.is_empty() {
                return None;
            }
            tokio::select! {
                biased;
                changed = self.healthy.changed() => changed.ok()?,
                news = self.sets.recv(), if !self.ended && self.news.len() < SOURCE_CHANNEL_DEPTH => match news {
                    Some(news) => self.news.push_back(news),
                    None => self.ended = true,
                },
                () = sleep_until(judge_again.unwrap_or_else(Instant::now)), if healthy && judge_again.is_some() => {
                    return Some(Turn::JudgeAgain);
                }
            }
        }
    }
}
