//! The step after an update arrived (POD-U1 to POD-U16).

use super::{Effects, NameMove, StepContext};
use crate::pod::PodObject;
use crate::pod_worker::lifecycle::{Cause, History};
use crate::pod_worker::state::{Finished, Flags, Pending, Record, State, Stop, Terminated, Terminating, Waiting, Work};
use crate::pod_worker::update::{Config, KillOptions, StatusEditor, Target, Update, UpdateKind};
use crate::ports::Observed;
use crate::time::{Grace, Time};

/// Makes the record of a UID from its first update.
///
/// A pod that has a terminal phase and no running container begins as terminated: only cleanup is left, and admission does not
/// count it (POD-U3). This needs an observation, because a pod that was not observed yet may run (POD-W14).
pub fn new_record(update: Update, observed: Observed, context: StepContext) -> (Record, Effects) {
    let ended = match &update.target {
        Target::Config(config) => config.pod.phase().is_terminal() && observed == Observed::Stopped,
        Target::Runtime(_) => false,
    };
    let state = if ended {
        State::Terminated(Box::new(Terminated { config: None, flags: Flags::default() }))
    } else {
        State::Waiting(Waiting::New)
    };
    let mut record = Record {
        state,
        pending: None,
        work: Work::Resting { due: None },
        failure: None,
        history: History::begin(context.now, if ended { Cause::SeenEnded } else { Cause::FirstUpdate }),
    };
    let effects = accept(&mut record, update, context);
    (record, effects)
}

impl Record {
    /// Whether an update requests the stop of a pod that is not stopping. No other update changes the stage of a pod with a
    /// record, or depends on the time.
    pub fn is_moved_by(&self, update: &Update) -> bool {
        !self.is_termination_requested()
            && (update.kind == UpdateKind::Kill
                || match &update.target {
                    Target::Config(config) => config.pod.is_deleting() || config.pod.phase().is_terminal(),
                    Target::Runtime(_) => true,
                })
    }
}

#[inline(never)]
pub(super) fn update(record: &mut Record, update: Update, context: StepContext) -> Effects {
    if record.is_termination_requested() && update.kind == UpdateKind::Create {
        return restart_later(record, update);
    }
    if record.is_finished() {
        return drop_update(update);
    }
    accept(record, update, context)
}

/// The pod is created again with the same UID before its record ended. Housekeeping forgets the finished record, and the pod
/// starts anew (POD-U5).
fn restart_later(record: &mut Record, update: Update) -> Effects {
    if let Some(flags) = record.flags_mut() {
        flags.restart_requested = true;
    }
    match &mut record.state {
        State::Terminating(t) => {
            t.notifiers.extend(update.options.and_then(|options| options.completed));
            Effects::default()
        }
        State::Waiting(_) | State::Sync(_) | State::Terminated(_) | State::Finished(_) => drop_update(update),
    }
}

/// Drops an update of a pod whose containers cannot run any more. A caller that waits for that is notified at once (POD-U6, POD-W2).
fn drop_update(update: Update) -> Effects {
    Effects { completed: update.options.and_then(|o| o.completed).into_iter().collect(), ..Effects::default() }
}

fn accept(record: &mut Record, update: Update, context: StepContext) -> Effects {
    let Update { kind, target, start_time, options } = update;
    let runtime_only = matches!(target, Target::Runtime(_));
    if runtime_only && matches!(record.state, State::Terminated(_)) {
        // Housekeeping may have had an old list. If containers do run, it repeats the kill after the record is forgotten (POD-U10).
        return drop_update(Update { kind, target, start_time, options });
    }
    let target = match target {
        Target::Runtime(running) => match record.pending_config().or_else(|| record.active()) {
            // A known spec takes precedence over the runtime's view of the pod (POD-U4).
            Some(config) => Target::Config(config.clone()),
            None => Target::Runtime(running),
        },
        config @ Target::Config(_) => config,
    };
    let evict = options.as_ref().is_some_and(|options| options.evict);
    let completed = |options: Option<Box<KillOptions>>| options.and_then(|options| options.completed);
    let mut effects = Effects::default();

    let requested = request(record, kind, &target, runtime_only, evict, context.now, &mut effects);
    let mut shortened = false;
    match &mut record.state {
        State::Terminating(t) => {
            if let (Stop::Unstarted { observed_runtime }, true) = (&mut t.stop, runtime_only) {
                *observed_runtime = true;
            }
            shortened = stop_sooner(t, &target, options, requested);
        }
        State::Waiting(waiting) => {
            waiting.unblock();
            effects.completed.extend(completed(options)); // No stop was requested, so nothing is left to wait for (POD-U12).
        }
        State::Sync(_) | State::Terminated(_) | State::Finished(_) => {
            effects.completed.extend(completed(options));
        }
    }

    let start_time = match (record.pending.as_ref().and_then(|p| p.start_time), start_time) {
        (Some(a), Some(b)) => Some(a.min(b)), // Merged updates are measured from the oldest (POD-U14).
        (a, b) => a.or(b),
    };
    let target = keep_mirror(record.pending_config(), target);
    let since = record.pending.as_ref().map_or(context.now, |pending| pending.since);
    record.pending = Some(Pending { kind, target, start_time, since });
    effects.wake = true;
    effects.cancel = record.is_calling() && (requested || shortened);
    effects
}

/// Requests the stop of a pod if the update requires one (POD-U9). A pod that is stopping gets the flags that the update adds
/// (POD-W7). Returns whether this update is the first to request the stop.
fn request(
    record: &mut Record,
    kind: UpdateKind,
    target: &Target,
    runtime_only: bool,
    evict: bool,
    now: Time,
    effects: &mut Effects,
) -> bool {
    let (deleting, terminal) = match target {
        Target::Config(config) => (config.pod.is_deleting(), config.pod.phase().is_terminal()),
        Target::Runtime(_) => (false, false),
    };
    let evicted = kind == UpdateKind::Kill && evict;
    let deleted = runtime_only || deleting;
    if let Some(flags) = record.flags_mut() {
        flags.deleted |= deleted;
        flags.evicted |= evicted;
        return false;
    }
    let cause = if runtime_only {
        Cause::RuntimeOnly
    } else if deleting {
        Cause::Deleted
    } else if terminal {
        Cause::TerminalPhase
    } else if evicted {
        Cause::Evicted
    } else if kind == UpdateKind::Kill {
        Cause::Killed
    } else {
        return false;
    };
    let flags = Flags { deleted, evicted, restart_requested: false };
    // The caller decides the grace period from this update. Until then, the longest possible one is stored.
    terminate(record, flags, Grace::from_seconds(i64::MAX), cause, now, effects);
    true
}

/// Makes a record terminating, if no stop was requested before.
pub(super) fn terminate(
    record: &mut Record,
    flags: Flags,
    grace: Grace,
    cause: Cause,
    now: Time,
    effects: &mut Effects,
) {
    let stop = match &record.state {
        State::Sync(started) => Stop::Requested { config: started.config.clone() },
        State::Waiting(_) => {
            // The pod can never start now, so it must not block the next pod of its full name.
            effects.name = NameMove::Leave;
            Stop::Unstarted { observed_runtime: false }
        }
        State::Terminating(_) | State::Terminated(_) | State::Finished(_) => return,
    };
    record.state = State::Terminating(Box::new(Terminating {
        stop,
        flags,
        grace,
        forced: false,
        notifiers: Vec::new(),
        status_fn: None,
    }));
    if let Work::Resting { due } = &mut record.work {
        *due = None;
    }
    record.failure = None;
    record.moved(now, cause);
}

/// Applies the options of a stop (POD-U11). Returns whether a decided grace period became shorter.
fn stop_sooner(t: &mut Terminating, target: &Target, options: Option<Box<KillOptions>>, requested: bool) -> bool {
    let options = options.map(|boxed| *boxed).unwrap_or_default();
    t.notifiers.extend(options.completed);
    if let Some(status_fn) = options.status_fn {
        t.status_fn = Some(StatusEditor(status_fn));
    }
    let pod = match target {
        Target::Config(config) => Some(&*config.pod),
        Target::Runtime(_) => None,
    };
    let stored = (!requested).then_some(t.grace);
    let grace = effective_grace(stored, pod, options.grace);
    let shortened = stored.is_some_and(|stored| grace < stored);
    t.grace = grace;
    t.forced = true;
    shortened
}

/// The shortest of the decided grace period, the one of the deletion, and the one of the caller. If there is none of them, the
/// grace period of the spec. An explicit zero becomes one second and never grows again (POD-W5).
pub(super) fn effective_grace(stored: Option<Grace>, pod: Option<&PodObject>, override_: Option<Grace>) -> Grace {
    let deletion = pod.and_then(PodObject::deletion_grace).map(Grace::from_seconds);
    stored
        .into_iter()
        .chain(deletion)
        .chain(override_)
        .min()
        .unwrap_or_else(|| pod.map_or(Grace::MIN, PodObject::spec_grace_or_min))
}

/// Keeps the known mirror pod if an update has none.
pub(super) fn keep_mirror(known: Option<&Config>, target: Target) -> Target {
    match target {
        Target::Config(Config { pod, mirror: None }) => {
            let mirror = known.and_then(|config| config.mirror.clone());
            Target::Config(Config { pod, mirror })
        }
        other @ (Target::Config(_) | Target::Runtime(_)) => other,
    }
}

/// Makes a record finished.
pub(super) fn finish(record: &mut Record, cause: Cause, now: Time) {
    let Some(config) = record.config() else { return };
    let finished = Finished {
        full_name: config.pod.full_name().clone(),
        is_static: config.pod.is_static(),
        flags: record.flags(),
    };
    record.state = State::Finished(finished);
    record.pending = None;
    record.work = Work::Resting { due: None };
    record.failure = None;
    record.moved(now, cause);
}
