//! The actix actor: starts the measurements and the checks, each on its own timer.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::FutureExt;
use podwright_metrics::ActorMetrics;
use tokio_util::sync::CancellationToken;

use super::Evictor;
use super::messages::{CheckResources, MeasurePods};
use crate::ids::PodUid;
use crate::mailbox::stop_with;

/// Runs the measurements. See the module. Its mailbox has the default size: only its two timers send to it.
pub(crate) struct EvictionActor {
    evictor: Arc<Evictor>,
    metrics: ActorMetrics,
    /// How often the pods and the resources of the node are measured.
    period: Duration,
    stop: CancellationToken,
    /// The pods that are being measured or evicted.
    measuring: HashSet<PodUid>,
}

impl EvictionActor {
    /// An actor that begins at once, and ends when `stop` is cancelled.
    pub(crate) fn new(evictor: Arc<Evictor>, period: Duration, stop: CancellationToken) -> Self {
        let metrics = evictor.metrics.actors.of("eviction");
        EvictionActor { evictor, metrics, period, stop, measuring: HashSet::new() }
    }
}

impl Actor for EvictionActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        stop_with(&self.stop, self, ctx);
        ctx.notify(CheckResources);
        ctx.notify(MeasurePods);
    }
}

impl Handler<MeasurePods> for EvictionActor {
    type Result = ();

    fn handle(&mut self, _: MeasurePods, ctx: &mut Self::Context) {
        self.metrics.received();
        let start = self.evictor.clock.now();
        for pod in self.evictor.limited_pods() {
            if !self.measuring.insert(pod.uid().clone()) {
                continue;
            }
            let evictor = self.evictor.clone();
            let check = async move {
                evictor.guarded(evictor.check_limits(&pod)).await;
                pod
            };
            ctx.spawn(check.into_actor(self).map(|pod, actor, _| {
                actor.measuring.remove(pod.uid());
            }));
        }
        self.metrics.handled(self.evictor.clock.now().since(start));
        ctx.notify_later(MeasurePods, self.period);
    }
}

impl Handler<CheckResources> for EvictionActor {
    type Result = ();

    fn handle(&mut self, _: CheckResources, ctx: &mut Self::Context) {
        self.metrics.received();
        let (evictor, metrics) = (self.evictor.clone(), self.metrics.clone());
        let check = async move {
            let start = evictor.clock.now();
            let has_evicted = evictor.guarded(evictor.relieve()).await.unwrap_or(false);
            metrics.handled(evictor.clock.now().since(start));
            has_evicted
        };
        ctx.spawn(check.into_actor(self).map(|has_evicted, actor, ctx| {
            // One pod may not be enough, so the next check follows at once.
            if has_evicted {
                ctx.notify(CheckResources);
            } else {
                ctx.notify_later(CheckResources, actor.period);
            }
        }));
    }
}

impl Evictor {
    /// Runs work whose panic ends only this work.
    async fn guarded<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let done = AssertUnwindSafe(work).catch_unwind().await;
        if done.is_err() {
            self.metrics.actors.hook_panicked();
            tracing::error!("eviction panicked");
        }
        done.ok()
    }
}
