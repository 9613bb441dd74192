//! The laws: invariants of each step of a record, and of each state of the world.
//!
//! A law that a step breaks is written into the state after the step, so that the checker finds it as a property of a state and
//! prints the path to it.

use stateright::Property;

use super::CheckedScenario;
use super::frozen::{Form, Frozen, PendingTarget, Stage, StopOf, Waiters};
use super::moves::{Machine, StepEffects};
use super::world::{End, Life, Pod, Uid, World};
use crate::pod_worker::lifecycle::{Hook, Lifecycle};
use crate::pod_worker::published::Published;
use crate::pod_worker::update::UpdateKind;
use crate::ports::Observed;

macro_rules! laws {
    ($($law:ident: $text:literal,)*) => {
        /// A law, named for its invariant (POD-I) or its upstream weakness (POD-W).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Law { $($law),* }

        impl Law {
            pub(super) const ALL: &[Law] = &[$(Law::$law),*];

            pub(super) const fn name(self) -> &'static str {
                match self { $(Law::$law => $text),* }
            }

            pub(super) fn property(self) -> Property<CheckedScenario> {
                #[expect(unreachable_patterns, reason = "the law of liveness comes first")]
                match self {
                    Law::I9Rest => Property::always(self.name(), |checked, world| checked.come_to_rest(world)),
                    $(Law::$law => Property::always(self.name(), |_, world: &World| !world.broken.has(Law::$law)),)*
                }
            }
        }
    };
}

laws! {
    I1: "POD-I1: after the worker noticed a stop, no setup of the pod runs or begins",
    I2: "POD-I2: a record never goes back, and is dropped only when it has finished or never ran",
    I3: "POD-I3: a pod has at most one hook call at a time, and none without a record",
    I4Kill: "POD-I4: a request to stop is never lost",
    I4Newest: "POD-I4: the worker takes the newest update next",
    I5: "POD-I5: the grace period never grows",
    I6: "POD-I6: nothing runs in a terminated pod, and a terminate hook succeeded",
    I7: "POD-I7: only its cleanup finishes a pod that ran",
    I8: "POD-I8: at most one static pod of a full name is started",
    I9: "POD-I9: a worker with work is awake, and a sleeping worker has a due time",
    I9Rest: "POD-I9, POD-W9: once faults stop, every pod comes to rest in its desired state",
    I10: "POD-I10: a spec is published once it was taken, not before",
    W1: "POD-W1: a pod that may run publishes the spec that it occupies the node with",
    W2Notified: "POD-W2: no caller waits once nothing can run",
    W2Early: "POD-W2: no caller is notified that nothing can run while something can",
    W3: "POD-W3, POD-U16: a request to stop cancels the running setup",
    W4Cancel: "POD-W4: the setup of a pod that becomes an orphan is cancelled",
    W4Grace: "POD-W4: a pod that becomes an orphan is stopped with its own grace period",
    W5: "POD-W5: no grace period is longer than a requested one, zero included",
    W6: "POD-W6: a shorter grace period interrupts the running stop, whatever began it",
    W7: "POD-W7: a late deletion or eviction counts too",
    W8: "POD-W8: the options of a stop are kept",
    W12: "POD-W12: a hook that fails or panics, or a lost worker, changes no stage",
    W13RuntimeOnly: "POD-W13: a pod with a spec is never stopped as a runtime-only pod",
    W13Reported: "POD-W13: a pod that was reported to have ended does not run again",
    W14: "POD-W14: only an observed pod counts as ended",
    W31: "POD-W31: the first waiter is awake while its name is free",
    W32: "POD-W32: a static pod stopped before its start and event in the runtime is stopped there",
    W33: "POD-W33: a requeue does not shorten the backoff",
    W35: "POD-W35: a due time ends with a call or a transition",
    W37: "POD-W37: no directory is removed of a pod that is desired, known, or running",
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Broken(u64);

impl Broken {
    pub(super) fn add(&mut self, law: Law) {
        self.0 |= 1 << law as u64;
    }

    pub(super) fn has(self, law: Law) -> bool {
        self.0 & (1 << law as u64) != 0
    }

    pub(super) fn is_any(self) -> bool {
        self.0 != 0
    }
}

/// An update as data.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) kind: UpdateKind,
    pub(super) target: PendingTarget,
    pub(super) waiter: Option<u8>,
    pub(super) evict: bool,
    pub(super) status_fn: Option<u8>,
    pub(super) grace: Option<i64>,
}

impl Request {
    pub(super) fn config(kind: UpdateKind, form: Form) -> Self {
        Request { kind, target: PendingTarget::Config(form), waiter: None, evict: false, status_fn: None, grace: None }
    }

    /// The kill of a runtime-only pod by housekeeping.
    pub(super) fn runtime() -> Self {
        Request { target: PendingTarget::Runtime, grace: Some(1), ..Request::config(UpdateKind::Kill, Form::Plain) }
    }

    pub(super) fn form(&self) -> Option<Form> {
        match self.target {
            PendingTarget::Config(form) => Some(form),
            PendingTarget::Runtime => None,
        }
    }

    /// The shortest grace period that it requests, by its options or by the pod's deletion.
    fn grace(&self) -> Option<u32> {
        let given = self.grace.map(|seconds| u32::try_from(seconds.max(1)).expect("they are small"));
        let deletion = self.form().filter(|form| form.is_deleting()).map(Form::own_grace);
        given.into_iter().chain(deletion).min()
    }
}

/// An event of a record, as the laws see it.
#[derive(Clone, Debug)]
pub(super) enum RecordEvent {
    NewRecord(Request),
    Update(Request),
    Take,
    Done { hook: Hook, end: End },
    Due,
    Known { desired: bool },
}

impl Life {
    /// Only requests to a pod that is terminating count. A create that arrives then is for the next record.
    pub(super) fn remember(&mut self, event: &RecordEvent, after: &Frozen) {
        if let RecordEvent::NewRecord(_) = event {
            self.stopped |= after.has_ended();
        }
        if after.lifecycle() != Lifecycle::Terminating {
            self.requested_grace = None;
        } else if let Some(grace) = requested_grace_of(event) {
            self.requested_grace = Some(self.requested_grace.map_or(grace, |known| known.min(grace)));
        }
    }
}

fn requested_grace_of(event: &RecordEvent) -> Option<u32> {
    match event {
        RecordEvent::NewRecord(request) => request.grace(),
        RecordEvent::Update(request) if request.kind != UpdateKind::Create => request.grace(),
        RecordEvent::Update(_)
        | RecordEvent::Take
        | RecordEvent::Done { .. }
        | RecordEvent::Due
        | RecordEvent::Known { .. } => None,
    }
}

impl World {
    /// The laws of one step of one record. `self` is as it was before the effects.
    pub(super) fn check_step(
        &mut self,
        uid: Uid,
        event: &RecordEvent,
        before: Option<&Frozen>,
        after: &Frozen,
        done: &StepEffects,
    ) {
        let pod = self.pod(uid);
        let mut broken = self.broken;
        let mut holds = |law, is: bool| {
            if !is {
                broken.add(law);
            }
        };
        step_of_any_kind(pod, event, before, after, done, &mut holds);
        match event {
            RecordEvent::NewRecord(_) => {
                let is_ended = after.lifecycle() == Lifecycle::Terminated;
                holds(Law::W14, !is_ended || pod.view == Observed::Stopped);
            }
            RecordEvent::Update(request) => {
                if let Some(before) = before {
                    update(pod, request, before, after, done, &mut holds);
                }
            }
            RecordEvent::Take => {
                if let Some(before) = before {
                    take(pod, before, after, done, &mut holds);
                }
            }
            RecordEvent::Done { end, .. } => {
                let moved = before.map(Frozen::lifecycle) != Some(after.lifecycle());
                holds(Law::W12, !(moved && *end == End::Failed));
                holds(Law::W35, !(moved && after.due));
            }
            RecordEvent::Due => {}
            RecordEvent::Known { .. } => {
                if let Some(before) = before {
                    known(pod, before, after, done, &mut holds);
                }
            }
        }
        self.broken = broken;
    }

    /// The laws of a state.
    pub(super) fn check_state(&mut self, machine: &Machine) {
        let mut broken = self.broken;
        let mut holds = |law, is: bool| {
            if !is {
                broken.add(law);
            }
        };
        for uid in self.uids() {
            let pod = self.pod(uid);
            let Some(record) = &pod.record else {
                holds(Law::W2Notified, pod.waiting.is_empty());
                holds(Law::I3, pod.call.is_none());
                continue;
            };
            holds(Law::W2Notified, !record.has_ended() || pod.waiting.is_empty());
            holds(Law::I3, record.running == pod.call.map(|call| call.hook));
            if pod.call.is_some_and(|call| call.hook == Hook::Sync) {
                let record = record.thaw(uid, &machine.objects, &mut Waiters::default());
                holds(Law::I1, Published::of(&record).should_containers_be_terminating() == Some(false));
                holds(Law::I1, !record.is_terminated());
            }
            holds(Law::I6, !(record.has_ended() && pod.is_running()) || pod.life.excused);
            holds(Law::I6, !record.has_ended() || pod.life.stopped || !pod.life.called);
            holds(Law::I7, !record.is_finished() || pod.life.cleaned || !pod.life.called);
            if let Some(stopping) = record.stopping() {
                holds(Law::W5, pod.life.requested_grace.is_none_or(|grace| stopping.grace <= grace));
            }
            let is_runtime_only = record.stopping().is_some_and(|stopping| stopping.of == StopOf::Runtime);
            if pod.life.called && !record.has_ended() && !is_runtime_only {
                holds(Law::W1, record.active().is_some());
            }
            holds(Law::W35, pod.call.is_none() || !record.due);
            if pod.is_idle() && !pod.woken {
                let refused = record.stage == Stage::Waiting { refused: true };
                holds(Law::I9, record.due && (refused || !pod.has_work()));
            }
        }
        if machine.statics {
            let started = |pod: &Pod| {
                pod.life.set_up
                    && matches!(pod.lifecycle(), Some(Lifecycle::Sync | Lifecycle::Terminating | Lifecycle::Terminated))
            };
            holds(Law::I8, self.those(started).count_ones() <= 1);
        }
        if self.queue.started().is_none()
            && let Some(first) = self.queue.waiting().next()
        {
            let pod = self.pod(machine.objects.which(first));
            holds(Law::W31, pod.woken && pod.has_work());
        }
        self.broken = broken;
    }
}

type Holds<'a> = dyn FnMut(Law, bool) + 'a;

fn step_of_any_kind(
    pod: &Pod,
    event: &RecordEvent,
    before: Option<&Frozen>,
    after: &Frozen,
    done: &StepEffects,
    holds: &mut Holds<'_>,
) {
    // The waiters are notified in the step after the terminate hook, or when the record is forgotten.
    let has_ended = after.has_ended() || done.forget;
    let killed = |number| matches!(event, RecordEvent::NewRecord(request) | RecordEvent::Update(request) if request.waiter == Some(number));
    let never_ran = done.end && !pod.life.called;
    holds(
        Law::W2Early,
        done.notified.is_empty()
            || has_ended
            || never_ran
            || done.notified.iter().any(|number| killed(*number) && has_ended),
    );
    let Some(before) = before else { return };
    holds(Law::I2, after.lifecycle() >= before.lifecycle());
    if done.forget {
        let runtime_only_stopped =
            matches!(event, RecordEvent::Done { hook: Hook::TerminatingRuntime, end: End::Succeeded });
        holds(Law::I2, before.is_finished() || runtime_only_stopped || !pod.life.called);
        holds(Law::I3, pod.call.is_none());
        return;
    }
    if let (Some(old), Some(new)) = (before.stopping(), after.stopping()) {
        holds(Law::I5, new.grace <= old.grace);
        holds(Law::W8, new.forced || !old.forced);
        holds(Law::W8, new.status_fn.is_some() || old.status_fn.is_none());
        let shorter = new.grace < old.grace;
        holds(Law::W6, !shorter || pod.call.is_none() || done.cancel);
    }
    let (old, new) = (before.flags(), after.flags());
    holds(Law::W8, (new.evicted || !old.evicted) && (new.deleted || !old.deleted));
    holds(Law::W8, new.restart_requested || !old.restart_requested);
    if !matches!(event, RecordEvent::Take) && !after.is_finished() {
        holds(Law::I10, before.active() == after.active());
    }
}

fn update(pod: &Pod, request: &Request, before: &Frozen, after: &Frozen, done: &StepEffects, holds: &mut Holds<'_>) {
    let for_next_life = before.is_stopping() && request.kind == UpdateKind::Create;
    let late_runtime_kill = request.target == PendingTarget::Runtime && before.has_ended();
    if for_next_life || late_runtime_kill || before.is_finished() {
        return;
    }
    let target = match request.target {
        PendingTarget::Config(form) => PendingTarget::Config(form),
        // A known spec takes precedence over the runtime's view.
        PendingTarget::Runtime => match (before.pending, before.active()) {
            (Some(PendingTarget::Config(form)), _) | (_, Some(form)) => PendingTarget::Config(form),
            (Some(PendingTarget::Runtime) | None, None) => PendingTarget::Runtime,
        },
    };
    holds(Law::I4Newest, after.pending == Some(target));
    holds(Law::I9, done.wake);
    let form = match target {
        PendingTarget::Config(form) => Some(form),
        PendingTarget::Runtime => None,
    };
    let is_deleted = request.target == PendingTarget::Runtime || form.is_some_and(Form::is_deleting);
    let is_stop = request.kind == UpdateKind::Kill || is_deleted || form.is_some_and(Form::is_failed);
    holds(Law::I4Kill, !is_stop || after.is_stopping());
    holds(Law::W7, !is_deleted || after.flags().deleted);
    holds(Law::W7, !request.evict || after.flags().evicted);
    if let (Some(stopping), Some(status_fn)) = (after.stopping(), request.status_fn) {
        holds(Law::W8, stopping.status_fn == Some(status_fn));
    }
    if let (Some(stopping), Some(waiter)) = (after.stopping(), request.waiter) {
        holds(Law::W2Notified, stopping.waiters.contains(&waiter));
    }
    let requested = !before.is_stopping() && after.is_stopping();
    holds(Law::W3, !requested || pod.call.is_none() || done.cancel);
}

fn take(pod: &Pod, before: &Frozen, after: &Frozen, done: &StepEffects, holds: &mut Holds<'_>) {
    let Some(called) = done.called else {
        let unstarted = matches!(before.stopping().map(|stopping| stopping.of), Some(StopOf::Unstarted { .. }));
        let is_seen = pod.view == Observed::Running
            || before.stopping().is_some_and(|s| s.of == StopOf::Unstarted { observed_runtime: true });
        holds(Law::W32, !(unstarted && is_seen && after.is_finished()));
        return;
    };
    holds(Law::I3, pod.call.is_none());
    let taken = match before.pending {
        Some(PendingTarget::Config(form)) => Some(form),
        Some(PendingTarget::Runtime) | None => None,
    };
    holds(Law::I4Newest, called.form == taken);
    holds(Law::I1, called.hook != Hook::Sync || after.lifecycle() == Lifecycle::Sync);
    if let (Some(stopping), Hook::Terminating) = (after.stopping(), called.hook) {
        holds(Law::I5, called.grace == Some(stopping.grace));
        holds(Law::W8, called.status_fn == stopping.status_fn);
    }
}

fn known(pod: &Pod, before: &Frozen, after: &Frozen, done: &StepEffects, holds: &mut Holds<'_>) {
    if done.forget {
        return;
    }
    if before.failing.is_some() && before.is_stopping() && before.pending.is_none() {
        holds(Law::W33, after.pending.is_none());
    }
    if let (false, Some(stopping)) = (before.is_stopping(), after.stopping()) {
        holds(Law::W4Cancel, pod.call.is_none() || done.cancel);
        let own = before.active().map_or(1, Form::own_grace);
        holds(Law::W4Grace, stopping.grace == own);
        holds(Law::W7, stopping.flags.deleted);
    }
}
