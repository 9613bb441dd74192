//! The actix actor: a pass every two seconds, one at a time.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use actix::prelude::*;
use futures_util::FutureExt;
use podwright_metrics::ActorMetrics;
use tokio::time::MissedTickBehavior;

use super::told::Told;
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
            let told = Told::default();
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                metrics.received();
                let start = housekeeping.clock.now();
                match AssertUnwindSafe(housekeeping.pass()).catch_unwind().await {
                    Ok(result) => {
                        let news = told.take(result.is_err().then_some(()));
                        if let (Err(error), [()]) = (result, &news.begun[..]) {
                            tracing::warn!(error = %chain(&error), "housekeeping pass ended early; so may those to come");
                        }
                        if news.over {
                            tracing::info!("housekeeping passes go to their end again");
                        }
                    }
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
