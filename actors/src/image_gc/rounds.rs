//! The part that collects images: one round every five minutes.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::ImageCollector;
use crate::text::error_chain;

/// How often a round runs (upstream `ImageGCPeriod`, kubelet 1.36).
const PERIOD: Duration = Duration::from_secs(300);

impl ImageCollector {
    /// Runs a round now and every five minutes. Does not return.
    pub(crate) async fn run(&self) {
        let metrics = self.metrics.actors.of("image_gc");
        loop {
            metrics.received();
            let (start, next) = (self.clock.now(), Instant::now() + PERIOD);
            if let Err(error) = self.collect().await {
                tracing::warn!(error = %error_chain(&error), "image garbage collection failed");
            }
            metrics.handled(self.clock.now().since(start));
            sleep_until(next).await;
        }
    }
}
