//! The actix actor: hands each set that a source sends to the dispatcher, while the runtime is healthy.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::FutureExt;
use podwright_metrics::ActorMetrics;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::{Dispatcher, Judged, Verdicts};
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
    /// Reads `sets` while `healthy` is true. One set is held back meanwhile; what comes
    /// after it waits in the sources' channel.
    pub fn new(dispatcher: Arc<Dispatcher>, sets: mpsc::Receiver<SourceNews>, healthy: watch::Receiver<bool>) -> Self {
        let metrics = dispatcher.metrics.actors.of("dispatcher");
        DispatcherActor { dispatcher, sets: Some(sets), healthy, metrics }
    }
}

impl Actor for DispatcherActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let Some(mut sets) = self.sets.take() else { return };
        let mut healthy = self.healthy.clone();
        let dispatcher = self.dispatcher.clone();
        let metrics = self.metrics.clone();
        let read = async move {
            let mut judge_again = None;
            loop {
                let set = tokio::select! {
                    biased;
                    set = sets.recv() => match set {
                        Some(set) => Some(set),
                        None => return,
                    },
                    () = sleep_until(judge_again.unwrap_or_else(Instant::now)), if judge_again.is_some() => None,
                };
                // Asked after the set came: it may have been waited for since long before the runtime fell silent.
                if healthy.wait_for(|healthy| *healthy).await.is_err() {
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
