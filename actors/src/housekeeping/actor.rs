//! The actix actor: runs a pass every two seconds, when one is needed earlier, and on request, one at a time.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::prelude::*;
use futures_util::FutureExt;
use podwright_metrics::ActorMetrics;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::messages::{PassDue, RunPass};
use super::{Housekeeping, PassError};
use crate::eviction::RemoveDeadContainers;
use crate::health::HOUSEKEEPING_PERIOD;
use crate::mailbox::stop_with;
use crate::text::error_chain;

/// Runs the passes. See the module.
pub(crate) struct HousekeepingActor {
    housekeeping: Arc<Housekeeping>,
    /// Whether the last pass failed. A failure is logged when it begins and when it ends, as in the failure log of the sweep.
    fails: Arc<AtomicBool>,
    /// Held by a pass, so that passes do not overlap.
    turn: Arc<Mutex<()>>,
    metrics: ActorMetrics,
    /// When the next pass is due. Passes follow a fixed grid, so that their delays do not add up.
    next_pass: Instant,
    /// Fires when a pass is needed before it is due.
    needed: Arc<Notify>,
    stop: CancellationToken,
}

impl HousekeepingActor {
    /// An actor whose first pass begins at once, and that ends when `stop` is cancelled. A pass follows at once when `needed` fires.
    pub(crate) fn new(housekeeping: Arc<Housekeeping>, needed: Arc<Notify>, stop: CancellationToken) -> Self {
        let metrics = housekeeping.metrics.actors.of("housekeeping");
        HousekeepingActor {
            housekeeping,
            fails: Arc::default(),
            turn: Arc::default(),
            metrics,
            next_pass: Instant::now(),
            needed,
            stop,
        }
    }

    /// One pass. Logs when passes begin to fail and when they succeed again.
    fn pass(&self) -> impl Future<Output = Result<(), PassError>> + 'static {
        let (housekeeping, fails, metrics) = (self.housekeeping.clone(), self.fails.clone(), self.metrics.clone());
        let turn = self.turn.clone();
        async move {
            let _turn = turn.lock().await;
            metrics.received();
            let start = housekeeping.clock.now();
            let result = AssertUnwindSafe(housekeeping.pass()).catch_unwind().await.unwrap_or_else(|_| {
                // A pass keeps no partial state, so the next one can simply run.
                housekeeping.metrics.actors.hook_panicked();
                tracing::error!("housekeeping pass panicked");
                Err(PassError::Panicked)
            });
            if result != Err(PassError::Panicked) {
                match (&result, fails.swap(result.is_err(), Ordering::Relaxed)) {
                    (Err(error), false) => {
                        tracing::warn!(error = %error_chain(error), "housekeeping pass failed; later failures are not logged");
                    }
                    (Ok(()), true) => tracing::info!("housekeeping passes succeed again"),
                    (Err(_), true) | (Ok(()), false) => {}
                }
            }
            metrics.handled(housekeeping.clock.now().since(start));
            result
        }
    }
}

impl Actor for HousekeepingActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        stop_with(&self.stop, self, ctx);
        ctx.notify(PassDue);
    }
}

impl Handler<PassDue> for HousekeepingActor {
    type Result = ();

    fn handle(&mut self, _: PassDue, ctx: &mut Self::Context) {
        let passed = self.pass().into_actor(self).then(|_logged, actor, _| {
            let now = Instant::now();
            // A pass that was needed earlier does not move the grid.
            if actor.next_pass <= now {
                actor.next_pass = (actor.next_pass + HOUSEKEEPING_PERIOD).max(now);
            }
            let (next, needed) = (actor.next_pass, actor.needed.clone());
            async move {
                let _needed_or_due = timeout_at(next, needed.notified()).await;
            }
            .into_actor(actor)
        });
        ctx.spawn(passed.map(|(), _, ctx| ctx.notify(PassDue)));
    }
}

impl Handler<RunPass> for HousekeepingActor {
    type Result = ResponseFuture<Result<(), PassError>>;

    fn handle(&mut self, _: RunPass, _: &mut Self::Context) -> Self::Result {
        let pass = self.stop.clone().run_until_cancelled_owned(self.pass());
        pass.map(|passed| passed.unwrap_or(Err(PassError::Stopped))).boxed_local()
    }
}

impl Handler<RemoveDeadContainers> for HousekeepingActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: RemoveDeadContainers, _: &mut Self::Context) -> Self::Result {
        self.metrics.received();
        let (housekeeping, metrics) = (self.housekeeping.clone(), self.metrics.clone());
        let removal = async move {
            let start = housekeeping.clock.now();
            // A removal keeps no partial state, so the next one can simply run.
            if AssertUnwindSafe(housekeeping.remove_dead_containers()).catch_unwind().await.is_err() {
                housekeeping.metrics.actors.hook_panicked();
                tracing::error!("the removal of dead containers panicked");
            }
            metrics.handled(housekeeping.clock.now().since(start));
        };
        self.stop.clone().run_until_cancelled_owned(removal).map(|_stopped| ()).boxed_local()
    }
}
