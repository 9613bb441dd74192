//! The steps after a hook call returned and when the due time is reached.

use std::time::Duration;

use super::known::requeue;
use super::update::{effective_grace, finish};
use super::{Effects, NETWORK_BACKOFF, NameMove, Outcome, StepContext, Worked};
use crate::pod_worker::lifecycle::{Cause, Failure, Hook};
use crate::pod_worker::state::{Flags, Record, RunningHook, State, Stop, Terminated, Terminating, Work};
use crate::pod_worker::update::UpdateKind;
use crate::ports::{FailureCause, SyncRetry};
use crate::time::Time;

#[inline(never)]
pub(super) fn done(record: &mut Record, outcome: Outcome, context: StepContext) -> Effects {
    let Work::Calling(running) = record.work else {
        return Effects::default();
    };
    record.work = Work::Resting { due: None };
    let mut effects = Effects::default();
    let mut worked = Some(running.kind);
    match (outcome, running.hook) {
        (Outcome::Failed { error, retry, cause }, hook) => {
            record.rest_until(context.after(delay(retry, context)));
            failed(record, hook, error, cause, context.now);
        }
        // A cancelled call is no failure: the update that cancelled it is pending.
        (Outcome::Cancelled, _) => record.rest_until(context.after(context.error_backoff)),
        (Outcome::Continues { check_at }, _) => {
            record.failure = None;
            let resync = context.after(context.resync);
            record.rest_until(check_at.map_or(resync, |at| at.min(resync)));
        }
        (Outcome::Ended, _) => {
            record.failure = None;
            ended(record, context.now);
            requeue(record, context.now);
        }
        (Outcome::Succeeded, Hook::TerminatingRuntime) => {
            effects.completed = notifiers(record);
            effects.forget = true;
            effects.end = true;
        }
        (Outcome::Succeeded, Hook::Terminating) => {
            record.failure = None;
            effects.completed = notifiers(record);
            stopped(record, context.now);
            requeue(record, context.now);
        }
        (Outcome::Succeeded, Hook::Terminated) => {
            finish(record, Cause::CleanedUp, context.now);
            effects.name = NameMove::Leave;
            effects.end = true;
            worked = None;
        }
        // Setup has outcomes of its own. A plain success means that nothing is left to do for now.
        (Outcome::Succeeded, Hook::Sync) => {
            record.failure = None;
            record.rest_until(context.after(context.resync));
        }
    }
    effects.worked = measured(running, worked);
    effects
}

fn measured(running: RunningHook, kind: Option<UpdateKind>) -> Option<Worked> {
    running.start_time.map(|start_time| Worked { kind, start_time })
}

fn delay(retry: SyncRetry, context: StepContext) -> Duration {
    match retry {
        SyncRetry::NetworkNotReady => NETWORK_BACKOFF,
        SyncRetry::At(until) => until.since(context.now).min(context.resync),
        SyncRetry::Backoff => context.error_backoff,
    }
}

/// A failed hook never changes the pod's stage. It is called again after a delay, or at once if an update is pending.
fn failed(record: &mut Record, hook: Hook, error: String, cause: FailureCause, now: Time) {
    match &mut record.failure {
        Some(failure) if failure.hook == hook => {
            failure.count = failure.count.saturating_add(1);
            (failure.error, failure.cause) = (error, cause);
        }
        failure => *failure = Some(Box::new(Failure { hook, error, cause, count: 1, since: now })),
    }
}

/// The pod ended by itself: its remaining containers and its sandboxes are stopped. A stop that was requested during the call
/// takes precedence.
fn ended(record: &mut Record, now: Time) {
    match &mut record.state {
        State::Sync(started) => {
            // The grace period is decided here too, so that a later, shorter one is recognised as shorter (POD-W6).
            let grace = effective_grace(None, Some(&started.config.pod), None);
            let config = started.config.clone();
            record.state = State::Terminating(Box::new(Terminating {
                stop: Stop::Begun { config },
                flags: Flags::default(),
                grace,
                forced: false,
                notifiers: Vec::new(),
                status_fn: None,
            }));
            record.moved(now, Cause::Completed);
        }
        State::Terminating(t) => {
            if let Stop::Requested { config } = &t.stop {
                t.stop = Stop::Begun { config: config.clone() };
            }
        }
        State::Waiting(_) | State::Terminated(_) | State::Finished(_) => {}
    }
}

/// No container runs, and none can be started.
fn stopped(record: &mut Record, now: Time) {
    if let State::Terminating(t) = &record.state {
        let terminated = Terminated { config: t.stop.config().cloned(), flags: t.flags };
        record.state = State::Terminated(Box::new(terminated));
        record.moved(now, Cause::ContainersStopped);
    }
}

fn notifiers(record: &mut Record) -> Vec<crate::pod_worker::update::Notifier> {
    match &mut record.state {
        State::Terminating(t) => std::mem::take(&mut t.notifiers),
        State::Waiting(_) | State::Sync(_) | State::Terminated(_) | State::Finished(_) => Vec::new(),
    }
}

/// The due time is reached: a resync, a retry, or another try for the full name.
#[inline(never)]
pub(super) fn due(record: &mut Record, context: StepContext) -> Effects {
    if record.due().is_none_or(|due| due > context.now) {
        return Effects::default();
    }
    record.work = Work::Resting { due: None };
    requeue(record, context.now);
    Effects::default()
}
