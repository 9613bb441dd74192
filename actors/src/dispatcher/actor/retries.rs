//! Judges the pods of the admission queue again, and decides again on the resizes that wait.

use std::time::Duration;

use actix::prelude::*;
use podwright_metrics::RetryTrigger;

use super::DispatcherActor;

/// How often the pods of the queue are judged again, besides each time a pod has ended. A pod may end without a hook that reports its end.
const READMISSION_PERIOD: Duration = Duration::from_secs(2);

/// The shortest time between two judgements of the queue, because many pods may end at once.
const READMISSION_PAUSE: Duration = Duration::from_millis(100);

/// How often the resizes that wait are decided again, besides each time that resources become free (upstream `retryDelay`, kubelet 1.36).
const RESIZE_PERIOD: Duration = Duration::from_secs(3 * 60);

/// Whether the pods of the queue have to be judged again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Readmission {
    NotNeeded,
    /// A timer runs.
    Scheduled,
    Due,
    /// The pods were judged a short time ago. A timer runs, and a pod that ends now schedules the next judgement.
    Paused,
}

impl DispatcherActor {
    /// Judges the pods of the queue again, if there are any, at once or after the pause.
    pub(super) fn readmit(&mut self, ctx: &mut Context<Self>) {
        if !self.dispatcher.has_queue() {
            return;
        }
        match self.readmission {
            Readmission::NotNeeded | Readmission::Due => {
                self.readmission = Readmission::Due;
                self.apply_accepted(ctx);
            }
            Readmission::Paused | Readmission::Scheduled => self.readmission = Readmission::Scheduled,
        }
    }

    /// Pauses after a judgement of the queue.
    pub(super) fn pause_readmission(&mut self, ctx: &mut Context<Self>) {
        self.readmission = Readmission::Paused;
        ctx.run_later(READMISSION_PAUSE, |actor, ctx| {
            let is_scheduled = actor.readmission == Readmission::Scheduled;
            actor.readmission = Readmission::NotNeeded;
            if is_scheduled {
                actor.readmit(ctx);
            }
        });
    }

    /// Judges the pods of the queue again after the period, as long as there are any.
    pub(super) fn readmit_later(&mut self, ctx: &mut Context<Self>) {
        if self.readmits_later || !self.dispatcher.has_queue() {
            return;
        }
        self.readmits_later = true;
        ctx.run_later(READMISSION_PERIOD, |actor, ctx| {
            actor.readmits_later = false;
            actor.readmit(ctx);
            actor.readmit_later(ctx);
        });
    }

    /// Decides again on the resizes that wait after the period, as long as there are any.
    pub(super) fn resize_later(&mut self, ctx: &mut Context<Self>) {
        if self.resizes_later || !self.dispatcher.has_resizes() {
            return;
        }
        self.resizes_later = true;
        ctx.run_later(RESIZE_PERIOD, |actor, ctx| {
            actor.resizes_later = false;
            actor.handle_now(|dispatcher| dispatcher.retry_resizes(RetryTrigger::PeriodicRetry));
            actor.resize_later(ctx);
        });
    }
}
