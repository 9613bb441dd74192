//! The actix actor: a pass every two seconds, one at a time.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use actix::prelude::*;
use futures_util::FutureExt;
use podwright_metrics::ActorMetrics;
use tokio::time::MissedTickBehavior;

use super::{Housekeeping, PERIOD};

/// Runs the passes. Ends never.
pub struct HousekeepingActor {
    housekeeping: Arc<Housekeeping>,
    metrics: ActorMetrics,
}

impl HousekeepingActor {
    /// Makes the actor; its first pass comes at once.
    pub fn new(housekeeping: Arc<Housekeeping>) -> Self {
        let metrics = housekeeping.metrics.actors.of("housekeeping");
        HousekeepingActor { housekeeping, metrics }
    }
}

impl Actor for HousekeepingActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let housekeeping = self.housekeeping.clone();
        let metrics = self.metrics.clone();
        let passes = async move {
            let mut tick = tokio::time::interval(PERIOD);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                metrics.received();
                let start = housekeeping.clock.now();
                match AssertUnwindSafe(housekeeping.pass()).catch_unwind().await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(error = %chain(&error), "housekeeping pass ended early"),
                    // One pass is lost; the next one starts from what it finds.
                    Err(_) => {
                        housekeeping.metrics.actors.hook_panicked();
                        tracing::error!("housekeeping pass panicked");
                    }
                }
                metrics.handled(housekeeping.clock.now().since(start));
            }
        };
        ctx.spawn(passes.into_actor(self));
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}
