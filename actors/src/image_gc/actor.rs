//! The actix actor: a round every five minutes, one at a time.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::FutureExt;
use podwright_metrics::ActorMetrics;
use tokio::time::MissedTickBehavior;

use super::ImageCollector;

/// How often a round runs (upstream `ImageGCPeriod`).
pub const PERIOD: Duration = Duration::from_secs(300);

/// Runs the rounds. Ends never.
pub struct ImageGcActor {
    collector: Arc<ImageCollector>,
    metrics: ActorMetrics,
}

impl ImageGcActor {
    /// Makes the actor; its first round comes at once.
    pub fn new(collector: Arc<ImageCollector>) -> Self {
        let metrics = collector.metrics.actors.of("image_gc");
        ImageGcActor { collector, metrics }
    }
}

impl Actor for ImageGcActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let (collector, metrics) = (self.collector.clone(), self.metrics.clone());
        let rounds = async move {
            let mut tick = tokio::time::interval(PERIOD);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                metrics.received();
                let start = collector.clock.now();
                collector.guarded_round().await;
                metrics.handled(collector.clock.now().since(start));
            }
        };
        ctx.spawn(rounds.into_actor(self));
    }
}

impl ImageCollector {
    /// A round whose errors go to the log, and whose panic costs only itself.
    async fn guarded_round(&self) {
        match AssertUnwindSafe(self.collect()).catch_unwind().await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "making room among images failed"),
            Err(_) => {
                self.metrics.actors.hook_panicked();
                tracing::error!("making room among images panicked");
            }
        }
    }
}
