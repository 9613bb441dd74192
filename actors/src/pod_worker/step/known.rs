//! Housekeeping asks whether the pod is still wanted (rules of `sync_known_pods`).

use super::update::{effective_grace, terminate};
use super::{Effects, Known, NameMove, StepContext};
use crate::pod_worker::lifecycle::{Cause, Lifecycle};
use crate::pod_worker::published::Published;
use crate::pod_worker::state::{Flags, Pending, Record, State, Stop};
use crate::pod_worker::update::{Target, UpdateKind};
use crate::time::Time;

#[inline(never)]
pub(super) fn known(record: &mut Record, desired: bool, tick: StepContext) -> Effects {
    if desired {
        return match Known::of_wanted(Published::of(record), record.last_move()) {
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
        // A call under way retries by itself, and a retry that waits out its backoff is left to its own time (W33).
        if record.running.is_none() && record.failure.is_none() {
            replay(record, tick.now);
        }
    } else {
        let grace = effective_grace(None, record.active_pod().map(|pod| &**pod), None);
        let flags = Flags { deleted: true, ..Flags::default() };
        terminate(record, flags, grace, Cause::Orphaned, tick.now, &mut effects);
        // A setup under way works for nobody (W4).
        effects.cancel = record.running.is_some();
        replay(record, tick.now);
    }
    effects.wake = record.pending.is_some();
    effects.known = Some(answer(record.lifecycle(), Published::of(record), record.last_move(), true));
    effects
}

/// Whether the question leaves the record as it is; who asks is answered all the same. A pod that is stopping already is
/// left to its hook call, its retry, or its worker's turn.
pub(crate) fn is_left_alone(record: &Record, desired: bool) -> bool {
    if desired {
        return !(record.is_finished() && record.flags().restart_requested);
    }
    let stops = matches!(record.state, State::Terminating(_) | State::Terminated(_));
    let acts = record.running.is_some() || record.failure.is_some() || record.pending.is_some();
    stops && acts && record.flags().deleted && !never_ran(record)
}

/// Not started, and the runtime never spoke of it: nothing is to be stopped or cleaned up.
fn never_ran(record: &Record) -> bool {
    match &record.state {
        State::Waiting(_) => true,
        State::Terminating(t) => {
            matches!(&t.stop, Stop::Unstarted { observed_runtime: false })
                && record.pending.as_ref().is_none_or(|p| matches!(p.target, Target::Config(_)))
        }
        // Born terminated, and the worker did not look yet.
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

/// Lets the worker act again on what it has, unless something newer is pending.
pub(super) fn replay(record: &mut Record, now: Time) {
    if record.pending.is_none()
        && let Some(target) = record.active_target()
    {
        record.pending = Some(Pending { kind: UpdateKind::Sync, target, start_time: None, since: now });
    }
}

impl Known {
    /// The answer for a pod that a source wants and of which nothing more is to be done; `None` if its record has to take
    /// the event.
    pub(crate) fn of_wanted(shown: Published, since: Time) -> Option<Known> {
        match shown.lifecycle()? {
            Lifecycle::Finished if shown.restart_requested() => None,
            lifecycle => Some(answer(lifecycle, shown, since, false)),
        }
    }
}

fn answer(lifecycle: Lifecycle, shown: Published, since: Time, orphan: bool) -> Known {
    let lifecycle = match lifecycle {
        Lifecycle::Waiting | Lifecycle::Sync => Lifecycle::Sync,
        Lifecycle::Terminating => Lifecycle::Terminating,
        Lifecycle::Terminated | Lifecycle::Finished => Lifecycle::Terminated,
    };
    Known { lifecycle, orphan, has_config: shown.has_config(), is_static: shown.is_static(), since }
}
