//! The actix actor: one round of image garbage collection every five minutes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::FutureExt;
use podwright_metrics::ActorMetrics;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ImageCollector;
use super::messages::CollectImages;
use crate::mailbox::stop_with;
use crate::text::error_chain;

/// How often a round runs (upstream `ImageGCPeriod`, kubelet 1.36).
const PERIOD: Duration = Duration::from_secs(300);

/// Runs the rounds. See the module.
pub(crate) struct ImageGcActor {
    collector: Arc<ImageCollector>,
    metrics: ActorMetrics,
    stop: CancellationToken,
}

impl ImageGcActor {
    /// An actor whose first round begins at once, and that ends when `stop` is cancelled.
    pub(crate) fn new(collector: Arc<ImageCollector>, stop: CancellationToken) -> Self {
        let metrics = collector.metrics.actors.of("image_gc");
        ImageGcActor { collector, metrics, stop }
    }
}

impl Actor for ImageGcActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        stop_with(&self.stop, self, ctx);
        ctx.notify(CollectImages);
    }
}

impl Handler<CollectImages> for ImageGcActor {
    type Result = ();

    fn handle(&mut self, _: CollectImages, ctx: &mut Self::Context) {
        self.metrics.received();
        let next = Instant::now() + PERIOD;
        let (collector, metrics) = (self.collector.clone(), self.metrics.clone());
        let round = async move {
            let start = collector.clock.now();
            collector.guarded_round().await;
            metrics.handled(collector.clock.now().since(start));
        };
        ctx.spawn(round.into_actor(self).map(move |(), _, ctx| {
            ctx.notify_later(CollectImages, next.saturating_duration_since(Instant::now()));
        }));
    }
}

impl ImageCollector {
    /// A round whose errors are logged. A panic ends only this round.
    async fn guarded_round(&self) {
        match AssertUnwindSafe(self.collect()).catch_unwind().await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = %error_chain(&error), "image garbage collection failed"),
            Err(_) => {
                self.metrics.actors.hook_panicked();
                tracing::error!("image garbage collection panicked");
            }
        }
    }
}
