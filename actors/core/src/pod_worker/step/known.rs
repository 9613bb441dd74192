//! The step of a housekeeping pass that compares the record with the desired pods (`sync_known_pods`).

use super::update::{effective_grace, terminate};
use super::{Effects, Known, NameMove, StepContext};
use crate::pod_worker::lifecycle::{Cause, Lifecycle};
use crate::pod_worker::published::Published;
use crate::pod_worker::state::{Flags, Pending, Record, State, Stop};
use crate::pod_worker::update::{Target, UpdateKind};
use crate::time::Time;

#[inline(never)]
pub(super) fn known(record: &mut Record, desired: bool, context: StepContext) -> Effects {
    if desired {
        return match Known::of_desired(Published::of(record), record.last_move()) {
            Some(known) => Effects { known: Some(known), ..Effects::default() },
            None => forget(record),
        };
    }
    if record.is_finished() {
        return forget(record);
    }
    if never_ran(record) {
        return forget(record);
    }
    let mut effects = Effects::default();
    if let Some(flags) = record.flags_mut() {
        flags.deleted = true;
        // A running call is retried by itself, and a retry keeps its backoff (POD-W33).
        if !record.is_calling() && record.failure.is_none() {
            requeue(record, context.now);
        }
    } else {
        let grace = effective_grace(None, record.active_pod().map(|pod| &**pod), None);
        let flags = Flags { deleted: true, ..Flags::default() };
        terminate(record, flags, grace, Cause::Orphaned, context.now, &mut effects);
        // The running setup call works for a pod that is no longer desired (POD-W4).
        effects.cancel = record.is_calling();
        requeue(record, context.now);
    }
    effects.wake = record.pending.is_some();
    effects.known = Some(answer(record.lifecycle(), Published::of(record), record.last_move(), true));
    effects
}

/// Whether [`Event::Known`](super::Event::Known) leaves the record as it is. The event still has an answer. A pod that is
/// already stopping needs no request: its hook call, its retry, or its worker's turn continues the stop.
pub fn is_left_alone(record: &Record, desired: bool) -> bool {
    if desired {
        return !(record.is_finished() && record.flags().restart_requested);
    }
    let stops = matches!(record.state, State::Terminating(_) | State::Terminated(_));
    let acts = record.is_calling() || record.failure.is_some() || record.pending.is_some();
    stops && acts && record.flags().deleted && !never_ran(record)
}

/// Whether the pod was not started and was never seen in the runtime, so that nothing is to be stopped or cleaned up.
fn never_ran(record: &Record) -> bool {
    match &record.state {
        State::Waiting(_) => true,
        State::Terminating(t) => {
            matches!(&t.stop, Stop::Unstarted { observed_runtime: false })
                && record.pending.as_ref().is_none_or(|p| matches!(p.target, Target::Config(_)))
        }
        // The pod had ended before its first update, which the worker has not taken.
        State::Terminated(t) => t.config.is_none(),
        State::Sync(_) | State::Finished(_) => false,
    }
}

fn forget(record: &mut Record) -> Effects {
    let completed = match &mut record.state {
        State::Terminating(t) => std::mem::take(&mut t.notifiers),
        State::Waiting(_) | State::Sync(_) | State::Terminated(_) | State::Finished(_) => Vec::new(),
    };
    Effects { completed, name: NameMove::Leave, end: true, forget: true, ..Effects::default() }
}

/// Requests another sync of the target that the worker acts on, unless an update is pending.
pub(super) fn requeue(record: &mut Record, now: Time) {
    if record.pending.is_none()
        && let Some(target) = record.active_target()
    {
        record.pending = Some(Pending { kind: UpdateKind::Sync, target, start_time: None, since: now });
    }
}

impl Known {
    /// The answer for a desired pod whose record stays as it is; `None` if the record has to take the event.
    pub fn of_desired(published: Published, since: Time) -> Option<Known> {
        match published.lifecycle()? {
            Lifecycle::Finished if published.restart_requested() => None,
            lifecycle => Some(answer(lifecycle, published, since, false)),
        }
    }
}

fn answer(lifecycle: Lifecycle, published: Published, since: Time, orphan: bool) -> Known {
    let lifecycle = match lifecycle {
        Lifecycle::Waiting | Lifecycle::Sync => Lifecycle::Sync,
        Lifecycle::Terminating => Lifecycle::Terminating,
        Lifecycle::Terminated | Lifecycle::Finished => Lifecycle::Terminated,
    };
    Known { lifecycle, orphan, has_config: published.has_config(), is_static: published.is_static(), since }
}
