//! The part that measures the pods and checks the node, each on its own timer.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use podwright_metrics::ActorMetrics;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::Evictor;

impl Evictor {
    /// Measures the pods and the resources of the node now and every `period`. Does not return.
    pub(crate) async fn run(&self, period: Duration) {
        let metrics = self.metrics.actors.of("eviction");
        // Polled in this order, so that a simulation repeats.
        join(self.check_node(period, &metrics), self.measure_pods(period, &metrics)).await;
    }

    /// Compares the available resources of the node with their thresholds, and evicts at most one pod at a time.
    async fn check_node(&self, period: Duration, metrics: &ActorMetrics) {
        loop {
            metrics.received();
            let start = self.clock.now();
            let has_evicted = self.guarded(self.relieve()).await.unwrap_or(false);
            metrics.handled(self.clock.now().since(start));
            // One pod may not be enough, so the next check follows at once.
            if has_evicted {
                yield_now().await;
            } else {
                sleep(period).await;
            }
        }
    }

    /// Measures the pods that have a limit, and evicts those that exceed one. A pod that is still being measured or evicted is left out.
    async fn measure_pods(&self, period: Duration, metrics: &ActorMetrics) {
        let mut measuring = HashSet::new();
        let mut checks = FuturesUnordered::new();
        loop {
            metrics.received();
            let start = self.clock.now();
            for pod in self.limited_pods() {
                if measuring.insert(pod.uid().clone()) {
                    checks.push(async move {
                        self.guarded(self.check_limits(&pod)).await;
                        pod.uid().clone()
                    });
                }
            }
            metrics.handled(self.clock.now().since(start));
            let mut next = pin!(sleep(period));
            loop {
                tokio::select! {
                    biased;
                    Some(uid) = checks.next() => {
                        measuring.remove(&uid);
                    }
                    () = &mut next => break,
                }
            }
        }
    }

    /// Runs work whose panic ends only this work: the other pods are measured meanwhile.
    async fn guarded<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let done = AssertUnwindSafe(work).catch_unwind().await;
        if done.is_err() {
            self.metrics.actors.hook_panicked();
            tracing::error!("eviction panicked");
        }
        done.ok()
    }
}
