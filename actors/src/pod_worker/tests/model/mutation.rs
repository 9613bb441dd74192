//! Machines with one thing wrong, to see each law broken.

use super::frozen::{Asked, Form, Frozen, Marks, Stage, StopOf, Stopping};
use super::laws::{Law, Said, Seen};
use super::moves::Did;
use super::scenarios::{self, Scenario};
use super::world::End;
use crate::pod_worker::lifecycle::Hook;
use crate::pod_worker::update::UpdateKind;

/// What is wrong. Most are done to the outcome of a real step, some to how the surroundings use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    NoticesDuringSetup,
    GoesBackToSync,
    ForgetsTheRunningHook,
    LosesKills,
    KeepsTheOlderUpdate,
    LengthensGrace,
    SkipsTheStop,
    SkipsTheCleanup,
    ForgetsWhatRan,
    /// Of the surroundings: whoever asks may start.
    StartsWaiters,
    /// Of the queue of a name: whoever asks has it.
    GivesTheNameTwice,
    /// Of the queue: whoever leaves makes the name free, whoever has it.
    FreesTheNameOfAnother,
    /// Of the queue: whoever has the name keeps it.
    KeepsTheNameOfTheDead,
    ForgetsToWake,
    ForgetsToRetry,
    ShowsTheSpecEarly,
    HidesTheSpec,
    ForgetsWaiters,
    ForgetsWaitersOfUnstarted,
    TellsEarly,
    LetsSetupRunOn,
    LetsTheOrphansSetupRunOn,
    StopsOrphansSlowly,
    TakesZeroForUnset,
    LetsTheStopRunOn,
    IgnoresLateFlags,
    ForgetsEviction,
    ForgetsTheStatusFn,
    MovesOnFailure,
    /// Of the pass: a pod with a spec is stopped as one without.
    StopsRejectedAsStrangers,
    /// Of the surroundings: an end is told before it is on disk.
    TellsBeforeItIsWritten,
    /// Of the surroundings: an agent that comes up does not read what is on disk.
    ForgetsWhoEnded,
    /// Of the surroundings: never looked at counts as nothing runs.
    TakesUnseenForStopped,
    /// Of the surroundings: nobody wakes the next one of a name.
    LetsTheNextSleep,
    /// Of the surroundings: a take is not told what the runtime shows.
    ForgetsToLook,
    ReplaysAtOnce,
    LeavesDue,
    LeavesTheQueueToTheDead,
    /// Of the pass: directories go although the pod is known.
    SweepsTheKnown,
    KeepsTheFinished,
    /// Of the pass: containers of pods that are over stay.
    LeavesStrays,
}

impl Mutation {
    /// Where each is seen, and the laws that it breaks there: those, and no other.
    pub(super) const ALL: &[(Mutation, &Scenario, &[Law])] = &[
        (Mutation::NoticesDuringSetup, &scenarios::STOPS, &[Law::I1]),
        (Mutation::GoesBackToSync, &scenarios::STOPS, &[Law::I2]),
        (Mutation::ForgetsWhatRan, &scenarios::ORPHANS, &[Law::I2]),
        (Mutation::ForgetsTheRunningHook, &scenarios::STOPS, &[Law::I3]),
        (Mutation::LosesKills, &scenarios::STOPS, &[Law::I4Kill]),
        (Mutation::KeepsTheOlderUpdate, &scenarios::STOPS, &[Law::I4Newest]),
        (Mutation::LengthensGrace, &scenarios::STOPS, &[Law::I5]),
        (Mutation::SkipsTheStop, &scenarios::STOPS, &[Law::I6]),
        (Mutation::SkipsTheCleanup, &scenarios::STOPS, &[Law::I7]),
        (Mutation::StartsWaiters, &scenarios::NAMES, &[Law::I8, Law::W31]),
        (Mutation::GivesTheNameTwice, &scenarios::NAMES, &[Law::I8]),
        (Mutation::FreesTheNameOfAnother, &scenarios::NAMES_AGAIN, &[Law::I8]),
        (Mutation::KeepsTheNameOfTheDead, &scenarios::NAMES, &[Law::I9Rest]),
        (Mutation::ForgetsToWake, &scenarios::STOPS, &[Law::I9]),
        (Mutation::ForgetsToRetry, &scenarios::STOPS, &[Law::I9]),
        (Mutation::KeepsTheFinished, &scenarios::ORPHANS, &[Law::I9Rest]),
        (Mutation::LeavesStrays, &scenarios::STRAYS, &[Law::I9Rest]),
        (Mutation::ShowsTheSpecEarly, &scenarios::STOPS, &[Law::I10]),
        (Mutation::HidesTheSpec, &scenarios::STOPS, &[Law::W1]),
        (Mutation::ForgetsWaiters, &scenarios::STOPS, &[Law::W2Told]),
        (Mutation::ForgetsWaitersOfUnstarted, &scenarios::ORPHANS, &[Law::W2Told]),
        (Mutation::TellsEarly, &scenarios::STOPS, &[Law::W2Early]),
        (Mutation::LetsSetupRunOn, &scenarios::STOPS, &[Law::W3]),
        (Mutation::LetsTheOrphansSetupRunOn, &scenarios::RESTARTS, &[Law::W4Cancel]),
        (Mutation::StopsOrphansSlowly, &scenarios::RESTARTS, &[Law::W4Grace]),
        (Mutation::TakesZeroForUnset, &scenarios::STOPS, &[Law::W5]),
        (Mutation::LetsTheStopRunOn, &scenarios::STOPS, &[Law::W6]),
        (Mutation::IgnoresLateFlags, &scenarios::STOPS, &[Law::W7]),
        (Mutation::ForgetsEviction, &scenarios::STOPS, &[Law::W8]),
        (Mutation::ForgetsTheStatusFn, &scenarios::STOPS, &[Law::W8]),
        (Mutation::MovesOnFailure, &scenarios::STOPS, &[Law::W12]),
        (Mutation::StopsRejectedAsStrangers, &scenarios::RESTARTS, &[Law::W13Stranger]),
        (Mutation::TellsBeforeItIsWritten, &scenarios::ENDS, &[Law::W13Told]),
        (Mutation::ForgetsWhoEnded, &scenarios::ENDS, &[Law::W13Told]),
        (Mutation::TakesUnseenForStopped, &scenarios::RESTARTS, &[Law::I6, Law::W14]),
        (Mutation::LetsTheNextSleep, &scenarios::NAMES, &[Law::W31]),
        (Mutation::LeavesTheQueueToTheDead, &scenarios::NAMES, &[Law::W31]),
        (Mutation::ForgetsToLook, &scenarios::STATIC_RESTARTS, &[Law::I6, Law::W32]),
        (Mutation::ReplaysAtOnce, &scenarios::ORPHANS, &[Law::W33]),
        (Mutation::LeavesDue, &scenarios::STOPS, &[Law::W35]),
        (Mutation::SweepsTheKnown, &scenarios::ORPHANS, &[Law::W37]),
    ];

    pub(super) fn apply(self, seen: &Seen, before: Option<&Frozen>, after: &mut Frozen, did: &mut Did) {
        let Some(before) = before else { return };
        let said = match seen {
            Seen::Update(said) => Some(said),
            Seen::Birth(_) | Seen::Take | Seen::Done { .. } | Seen::Due | Seen::Known { .. } => None,
        };
        let requested = !before.is_stopping() && after.is_stopping();
        let failed = matches!(seen, Seen::Done { end: End::Failed, .. });
        match self {
            Mutation::NoticesDuringSetup => {
                if let (Some(_), Some(Stopping { of: StopOf::Started { noticed, .. }, .. })) =
                    (said, after.stopping_mut())
                {
                    *noticed = true;
                }
            }
            Mutation::GoesBackToSync => {
                if let (Seen::Due, Some(form), Some(_)) = (seen, before.active(), before.stopping())
                    && before.marks() == Marks::default()
                {
                    after.stage = Stage::Sync(form);
                }
            }
            Mutation::ForgetsWhatRan if after.is_over() && before.running.is_none() => {
                did.forget |= matches!(seen, Seen::Known { desired: false });
            }
            Mutation::ForgetsTheRunningHook if did.called.is_some() => after.running = None,
            Mutation::LosesKills if requested => {
                if let Some(Said { kind: UpdateKind::Kill, evict: false, .. }) = said {
                    after.stage = before.stage.clone();
                    did.cancel = false;
                }
            }
            Mutation::KeepsTheOlderUpdate if said.is_some() && before.pending.is_some() => {
                after.pending = before.pending;
            }
            Mutation::LengthensGrace => {
                // Where nobody asked for a grace, so that it is longer than the one decided and than no other.
                if let (Some(said), Some(old), Some(new)) = (said, before.stopping(), after.stopping_mut())
                    && said.kind == UpdateKind::Sync
                    && !old.forced
                    && !said.form().is_some_and(Form::is_deleting)
                {
                    new.grace = old.grace + 10;
                }
            }
            Mutation::SkipsTheStop => {
                if let (Seen::Take, Some(stopping)) = (seen, after.stopping().cloned())
                    && let StopOf::Started { form, .. } = stopping.of
                {
                    after.stage = Stage::Terminated { config: Some(form), flags: stopping.flags };
                    after.pending = Some(Asked::Config(form));
                    (after.running, did.called, did.told) = (None, None, stopping.waiters);
                    did.wake = true;
                }
            }
            Mutation::SkipsTheCleanup => {
                if let Seen::Done { hook: Hook::Terminating, end: End::Succeeded } = seen {
                    after.stage = Stage::Finished { flags: after.marks() };
                    after.pending = None;
                    (did.leave, did.end) = (true, true);
                }
            }
            Mutation::ForgetsToWake if said.is_some() => did.wake = false,
            Mutation::ForgetsToRetry if failed => after.due = false,
            Mutation::ShowsTheSpecEarly => {
                if let (Stage::Sync(form), Some(Asked::Config(newer)), Some(_)) =
                    (&mut after.stage, after.pending, said)
                {
                    *form = newer;
                }
            }
            Mutation::HidesTheSpec => {
                if let (Seen::Take, Some(stopping)) = (seen, after.stopping_mut()) {
                    stopping.of = StopOf::Unstarted { observed_runtime: true };
                }
            }
            Mutation::ForgetsWaitersOfUnstarted => {
                if let Seen::Known { .. } | Seen::Take = seen {
                    did.told.clear();
                }
            }
            Mutation::TellsEarly => {
                if let (Seen::Done { hook: Hook::Terminating, end: End::Failed }, Some(stopping)) =
                    (seen, after.stopping_mut())
                {
                    did.told = std::mem::take(&mut stopping.waiters);
                }
            }
            Mutation::LetsSetupRunOn if said.is_some() && requested => did.cancel = false,
            Mutation::LetsTheOrphansSetupRunOn if matches!(seen, Seen::Known { .. }) => did.cancel = false,
            Mutation::StopsOrphansSlowly => {
                if let (Seen::Known { .. }, true, Some(stopping)) = (seen, requested, after.stopping_mut()) {
                    stopping.grace = 300;
                }
            }
            Mutation::TakesZeroForUnset => {
                if let (Some(Said { grace: Some(0), .. }), true, Some(stopping)) =
                    (said, requested, after.stopping_mut())
                {
                    stopping.grace = 30;
                }
            }
            Mutation::LetsTheStopRunOn if said.is_some() && !requested => did.cancel = false,
            Mutation::IgnoresLateFlags => {
                if let (true, Some(marks)) = (said.is_some() && before.is_stopping(), after.marks_mut()) {
                    let restart_requested = marks.restart_requested;
                    *marks = before.marks();
                    marks.restart_requested = restart_requested;
                }
            }
            Mutation::ForgetsEviction => {
                if let (Some(Said { evict: false, .. }), Some(marks)) = (said, after.marks_mut()) {
                    marks.evicted = false;
                }
            }
            Mutation::ForgetsTheStatusFn => {
                if let (Some(Said { status_fn: None, .. }), Some(stopping)) = (said, after.stopping_mut()) {
                    stopping.status_fn = None;
                }
            }
            Mutation::MovesOnFailure if failed => {
                if let Stage::Sync(form) = after.stage {
                    after.stage = Stage::Terminating(Stopping {
                        of: StopOf::Started { form, noticed: true },
                        flags: Marks::default(),
                        grace: form.own_grace(),
                        forced: false,
                        waiters: Vec::new(),
                        status_fn: None,
                    });
                    (after.pending, after.due) = (Some(Asked::Config(form)), false);
                }
            }
            Mutation::KeepsTheFinished if after.is_finished() => {
                (did.forget, did.end) = (false, false);
            }
            Mutation::ReplaysAtOnce => {
                if let (Seen::Known { desired: false }, Some(form)) = (seen, after.active())
                    && after.running.is_none()
                    && after.pending.is_none()
                {
                    after.pending = Some(Asked::Config(form));
                    did.wake = true;
                }
            }
            Mutation::LeavesDue => {
                if let Seen::Done { end: End::Ended | End::Succeeded, .. } = seen {
                    after.due = true;
                }
            }
            Mutation::LeavesTheQueueToTheDead => did.leave = false,
            // Done where the surroundings use a step, or to those of the cases above that do not apply.
            _ => {}
        }
    }
}
