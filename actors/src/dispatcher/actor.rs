//! The actix actor: hands each set that a source sends to the dispatcher, while the runtime is healthy.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use actix::prelude::*;
use podwright_metrics::ActorMetrics;
use tokio::sync::{mpsc, watch};

use super::Dispatcher;
use crate::ports::SourceSet;

/// Reads the sources. Ends when all of them have.
pub struct DispatcherActor {
    dispatcher: Arc<Dispatcher>,
    sets: Option<mpsc::Receiver<SourceSet>>,
    healthy: watch::Receiver<bool>,
    metrics: ActorMetrics,
}

impl DispatcherActor {
    /// Reads `sets` while `healthy` is true. One set is held back meanwhile; what comes
    /// after it waits in the sources' channel.
    pub fn new(dispatcher: Arc<Dispatcher>, sets: mpsc::Receiver<SourceSet>, healthy: watch::Receiver<bool>) -> Self {
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
            loop {
                let Some(set) = sets.recv().await else { return };
                // Asked after the set came: it may have been waited for since long before the runtime fell silent.
                if healthy.wait_for(|healthy| *healthy).await.is_err() {
                    return;
                }
                metrics.received();
                let start = dispatcher.clock.now();
                let delivered = catch_unwind(AssertUnwindSafe(|| dispatcher.deliver(set)));
                if delivered.is_err() {
                    // A handler of the host: pods that were to be added come again with their next change.
                    dispatcher.metrics.actors.hook_panicked();
                    tracing::error!("handling a source's set panicked");
                }
                metrics.handled(dispatcher.clock.now().since(start));
            }
        };
        ctx.spawn(read.into_actor(self).map(|(), _, ctx| ctx.stop()));
    }
}
