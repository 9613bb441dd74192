//! Mutations: state machines with one fault each. Each law is broken by at least one of them.

use super::frozen::{Form, Frozen, FrozenFlags, PendingTarget, Stage, StopOf, Stopping};
use super::laws::{Law, RecordEvent, Request};
use super::moves::StepEffects;
use super::scenarios::{self, Scenario};
use super::world::End;
use crate::pod_worker::lifecycle::Hook;
use crate::pod_worker::update::UpdateKind;

/// A fault. Most mutations change the result of a real step. The others change how its caller uses the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    NoticesDuringSetup,
    ReturnsToSync,
    ForgetsRunningHook,
    LosesKills,
    KeepsOlderUpdate,
    LengthensGrace,
    SkipsStop,
    SkipsCleanup,
    ForgetsStartedPod,
    /// In the caller: every pod may start.
    StartsWaitingPods,
    /// In the queue of a name: every pod that claims the name gets it.
    AssignsNameTwice,
    /// In the queue: a pod that leaves frees the name of another pod.
    ReleasesNameOfOtherPod,
    /// In the queue: a pod that leaves keeps the name.
    KeepsNameOfRemovedPod,
    LosesWakeUp,
    LosesRetry,
    PublishesSpecEarly,
    HidesSpec,
    LosesNotifiers,
    LosesNotifiersOfUnstartedPod,
    NotifiesEarly,
    KeepsSetupRunning,
    KeepsSetupOfOrphanRunning,
    StopsOrphanWithLongGrace,
    TreatsZeroGraceAsUnset,
    IgnoresShorterGrace,
    IgnoresLateFlags,
    ForgetsEviction,
    ForgetsStatusFunction,
    MovesOnFailure,
    /// In the pass: a pod with a spec is stopped as a runtime-only pod.
    StopsRejectedAsRuntimeOnly,
    /// In the caller: an end is reported before it is on disk.
    ReportsEndBeforeWrite,
    /// In the caller: a new agent does not read the ends on disk.
    ForgetsFinalStatuses,
    /// In the caller: a pod without an observation counts as a pod without running containers.
    TreatsUnobservedAsStopped,
    /// In the caller: the next pod of a name is not woken.
    SkipsWakeUpOfNextPod,
    /// In the caller: a call starts without an observation of the pod.
    SkipsObservation,
    RetriesOrphanAtOnce,
    KeepsDueTime,
    KeepsRemovedPodInQueue,
    /// In the pass: the directories of known pods are removed.
    RemovesDirectoriesOfKnownPods,
    KeepsFinishedRecord,
    /// In the pass: zombie containers are not stopped.
    KeepsZombies,
}

impl Mutation {
    /// Each mutation with the scenario that shows it, and exactly the laws that it breaks there.
    pub(super) const ALL: &[(Mutation, &Scenario, &[Law])] = &[
        (Mutation::NoticesDuringSetup, &scenarios::STOPS, &[Law::I1]),
        (Mutation::ReturnsToSync, &scenarios::STOPS, &[Law::I2]),
        (Mutation::ForgetsStartedPod, &scenarios::ORPHANS, &[Law::I2]),
        (Mutation::ForgetsRunningHook, &scenarios::STOPS, &[Law::I3]),
        (Mutation::LosesKills, &scenarios::STOPS, &[Law::I4Kill]),
        (Mutation::KeepsOlderUpdate, &scenarios::STOPS, &[Law::I4Newest]),
        (Mutation::LengthensGrace, &scenarios::STOPS, &[Law::I5]),
        (Mutation::SkipsStop, &scenarios::STOPS, &[Law::I6]),
        (Mutation::SkipsCleanup, &scenarios::STOPS, &[Law::I7]),
        (Mutation::StartsWaitingPods, &scenarios::NAMES, &[Law::I8, Law::W31]),
        (Mutation::AssignsNameTwice, &scenarios::NAMES, &[Law::I8]),
        (Mutation::ReleasesNameOfOtherPod, &scenarios::NAMES_AGAIN, &[Law::I8]),
        (Mutation::KeepsNameOfRemovedPod, &scenarios::NAMES, &[Law::I9Rest]),
        (Mutation::LosesWakeUp, &scenarios::STOPS, &[Law::I9]),
        (Mutation::LosesRetry, &scenarios::STOPS, &[Law::I9]),
        (Mutation::KeepsFinishedRecord, &scenarios::ORPHANS, &[Law::I9Rest]),
        (Mutation::KeepsZombies, &scenarios::ZOMBIES, &[Law::I9Rest]),
        (Mutation::PublishesSpecEarly, &scenarios::STOPS, &[Law::I10]),
        (Mutation::HidesSpec, &scenarios::STOPS, &[Law::W1]),
        (Mutation::LosesNotifiers, &scenarios::STOPS, &[Law::W2Notified]),
        (Mutation::LosesNotifiersOfUnstartedPod, &scenarios::ORPHANS, &[Law::W2Notified]),
        (Mutation::NotifiesEarly, &scenarios::STOPS, &[Law::W2Early]),
        (Mutation::KeepsSetupRunning, &scenarios::STOPS, &[Law::W3]),
        (Mutation::KeepsSetupOfOrphanRunning, &scenarios::RESTARTS, &[Law::W4Cancel]),
        (Mutation::StopsOrphanWithLongGrace, &scenarios::RESTARTS, &[Law::W4Grace]),
        (Mutation::TreatsZeroGraceAsUnset, &scenarios::STOPS, &[Law::W5]),
        (Mutation::IgnoresShorterGrace, &scenarios::STOPS, &[Law::W6]),
        (Mutation::IgnoresLateFlags, &scenarios::STOPS, &[Law::W7]),
        (Mutation::ForgetsEviction, &scenarios::STOPS, &[Law::W8]),
        (Mutation::ForgetsStatusFunction, &scenarios::STOPS, &[Law::W8]),
        (Mutation::MovesOnFailure, &scenarios::STOPS, &[Law::W12]),
        (Mutation::StopsRejectedAsRuntimeOnly, &scenarios::RESTARTS, &[Law::W13RuntimeOnly]),
        (Mutation::ReportsEndBeforeWrite, &scenarios::ENDS, &[Law::W13Reported]),
        (Mutation::ForgetsFinalStatuses, &scenarios::ENDS, &[Law::W13Reported]),
        (Mutation::TreatsUnobservedAsStopped, &scenarios::RESTARTS, &[Law::I6, Law::W14]),
        (Mutation::SkipsWakeUpOfNextPod, &scenarios::NAMES, &[Law::W31]),
        (Mutation::KeepsRemovedPodInQueue, &scenarios::NAMES, &[Law::W31]),
        (Mutation::SkipsObservation, &scenarios::STATIC_RESTARTS, &[Law::I6, Law::W32]),
        (Mutation::RetriesOrphanAtOnce, &scenarios::ORPHANS, &[Law::W33]),
        (Mutation::KeepsDueTime, &scenarios::STOPS, &[Law::W35]),
        (Mutation::RemovesDirectoriesOfKnownPods, &scenarios::ORPHANS, &[Law::W37]),
    ];

    pub(super) fn apply(
        self,
        event: &RecordEvent,
        before: Option<&Frozen>,
        after: &mut Frozen,
        done: &mut StepEffects,
    ) {
        let Some(before) = before else { return };
        let request = match event {
            RecordEvent::Update(request) => Some(request),
            RecordEvent::NewRecord(_)
            | RecordEvent::Take
            | RecordEvent::Done { .. }
            | RecordEvent::Due
            | RecordEvent::Known { .. } => None,
        };
        let requested = !before.is_stopping() && after.is_stopping();
        let failed = matches!(event, RecordEvent::Done { end: End::Failed, .. });
        match self {
            Mutation::NoticesDuringSetup => {
                if let (Some(_), Some(Stopping { of: StopOf::Started { noticed, .. }, .. })) =
                    (request, after.stopping_mut())
                {
                    *noticed = true;
                }
            }
            Mutation::ReturnsToSync => {
                if let (RecordEvent::Due, Some(form), Some(_)) = (event, before.active(), before.stopping())
                    && before.flags() == FrozenFlags::default()
                {
                    after.stage = Stage::Sync(form);
                }
            }
            Mutation::ForgetsStartedPod if after.has_ended() && before.running.is_none() => {
                done.forget |= matches!(event, RecordEvent::Known { desired: false });
            }
            Mutation::ForgetsRunningHook if done.called.is_some() => after.running = None,
            Mutation::LosesKills if requested => {
                if let Some(Request { kind: UpdateKind::Kill, evict: false, .. }) = request {
                    after.stage = before.stage.clone();
                    done.cancel = false;
                }
            }
            Mutation::KeepsOlderUpdate if request.is_some() && before.pending.is_some() => {
                after.pending = before.pending;
            }
            Mutation::LengthensGrace => {
                // Only if no grace period was requested, so that this law alone is broken.
                if let (Some(request), Some(old), Some(new)) = (request, before.stopping(), after.stopping_mut())
                    && request.kind == UpdateKind::Sync
                    && !old.forced
                    && !request.form().is_some_and(Form::is_deleting)
                {
                    new.grace = old.grace + 10;
                }
            }
            Mutation::SkipsStop => {
                if let (RecordEvent::Take, Some(stopping)) = (event, after.stopping().cloned())
                    && let StopOf::Started { form, .. } = stopping.of
                {
                    after.stage = Stage::Terminated { config: Some(form), flags: stopping.flags };
                    after.pending = Some(PendingTarget::Config(form));
                    (after.running, done.called, done.notified) = (None, None, stopping.waiters);
                    done.wake = true;
                }
            }
            Mutation::SkipsCleanup => {
                if let RecordEvent::Done { hook: Hook::Terminating, end: End::Succeeded } = event {
                    after.stage = Stage::Finished { flags: after.flags() };
                    after.pending = None;
                    (done.leave, done.end) = (true, true);
                }
            }
            Mutation::LosesWakeUp if request.is_some() => done.wake = false,
            Mutation::LosesRetry if failed => after.due = false,
            Mutation::PublishesSpecEarly => {
                if let (Stage::Sync(form), Some(PendingTarget::Config(newer)), Some(_)) =
                    (&mut after.stage, after.pending, request)
                {
                    *form = newer;
                }
            }
            Mutation::HidesSpec => {
                if let (RecordEvent::Take, Some(stopping)) = (event, after.stopping_mut()) {
                    stopping.of = StopOf::Unstarted { observed_runtime: true };
                }
            }
            Mutation::LosesNotifiersOfUnstartedPod => {
                if let RecordEvent::Known { .. } | RecordEvent::Take = event {
                    done.notified.clear();
                }
            }
            Mutation::NotifiesEarly => {
                if let (RecordEvent::Done { hook: Hook::Terminating, end: End::Failed }, Some(stopping)) =
                    (event, after.stopping_mut())
                {
                    done.notified = std::mem::take(&mut stopping.waiters);
                }
            }
            Mutation::KeepsSetupRunning if request.is_some() && requested => done.cancel = false,
            Mutation::KeepsSetupOfOrphanRunning if matches!(event, RecordEvent::Known { .. }) => done.cancel = false,
            Mutation::StopsOrphanWithLongGrace => {
                if let (RecordEvent::Known { .. }, true, Some(stopping)) = (event, requested, after.stopping_mut()) {
                    stopping.grace = 300;
                }
            }
            Mutation::TreatsZeroGraceAsUnset => {
                if let (Some(Request { grace: Some(0), .. }), true, Some(stopping)) =
                    (request, requested, after.stopping_mut())
                {
                    stopping.grace = 30;
                }
            }
            Mutation::IgnoresShorterGrace if request.is_some() && !requested => done.cancel = false,
            Mutation::IgnoresLateFlags => {
                if let (true, Some(flags)) = (request.is_some() && before.is_stopping(), after.flags_mut()) {
                    let restart_requested = flags.restart_requested;
                    *flags = before.flags();
                    flags.restart_requested = restart_requested;
                }
            }
            Mutation::ForgetsEviction => {
                if let (Some(Request { evict: false, .. }), Some(flags)) = (request, after.flags_mut()) {
                    flags.evicted = false;
                }
            }
            Mutation::ForgetsStatusFunction => {
                if let (Some(Request { status_fn: None, .. }), Some(stopping)) = (request, after.stopping_mut()) {
                    stopping.status_fn = None;
                }
            }
            Mutation::MovesOnFailure if failed => {
                if let Stage::Sync(form) = after.stage {
                    after.stage = Stage::Terminating(Stopping {
                        of: StopOf::Started { form, noticed: true },
                        flags: FrozenFlags::default(),
                        grace: form.own_grace(),
                        forced: false,
                        waiters: Vec::new(),
                        status_fn: None,
                    });
                    (after.pending, after.due) = (Some(PendingTarget::Config(form)), false);
                }
            }
            Mutation::KeepsFinishedRecord if after.is_finished() => {
                (done.forget, done.end) = (false, false);
            }
            Mutation::RetriesOrphanAtOnce => {
                if let (RecordEvent::Known { desired: false }, Some(form)) = (event, after.active())
                    && after.running.is_none()
                    && after.pending.is_none()
                {
                    after.pending = Some(PendingTarget::Config(form));
                    done.wake = true;
                }
            }
            Mutation::KeepsDueTime => {
                if let RecordEvent::Done { end: End::Ended | End::Succeeded, .. } = event {
                    after.due = true;
                }
            }
            Mutation::KeepsRemovedPodInQueue => done.leave = false,
            // The mutation is applied elsewhere, or its condition above does not hold.
            _ => {}
        }
    }
}
