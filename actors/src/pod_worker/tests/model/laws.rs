//! What must hold: of each step of a record, and of each state of the world.
//!
//! A law that a step breaks is written into the state that the step leads to, so that the checker finds it as a property
//! of a state and shows the way to it.

use stateright::Property;

use super::Lives;
use super::frozen::{Asked, Form, Frozen, Stage, StopOf, Waiters};
use super::moves::{Did, Machine};
use super::world::{End, Life, Pod, Uid, World};
use crate::pod_worker::lifecycle::{Hook, Lifecycle};
use crate::pod_worker::update::UpdateKind;
use crate::ports::Observed;

macro_rules! laws {
    ($($law:ident: $text:literal,)*) => {
        /// A law, named for the invariant (I) or the upstream weakness (W) behind it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Law { $($law),* }

        impl Law {
            pub(super) const ALL: &[Law] = &[$(Law::$law),*];

            pub(super) const fn name(self) -> &'static str {
                match self { $(Law::$law => $text),* }
            }

            pub(super) fn property(self) -> Property<Lives> {
                #[expect(unreachable_patterns, reason = "the law that looks ahead comes first")]
                match self {
                    Law::I9Rest => Property::always(self.name(), |lives, world| lives.come_to_rest(world)),
                    $(Law::$law => Property::always(self.name(), |_, world: &World| !world.broken.has(Law::$law)),)*
                }
            }
        }
    };
}

laws! {
    I1: "I1: from when its stop is noticed, no setup of a pod runs or begins",
    I2: "I2: a record only moves forward, and goes only when it is over or never ran",
    I3: "I3: no two hook calls of a pod at a time, nor a call without its record",
    I4Kill: "I4: a request to stop is never lost",
    I4Newest: "I4: the newest update is what is taken next",
    I5: "I5: the grace never grows",
    I6: "I6: nothing runs in a pod that is terminated, and a terminate hook said so",
    I7: "I7: a pod that ran is finished by its cleanup and by nothing else",
    I8: "I8: at most one static pod of a full name is started",
    I9: "I9: what has work is awake, and what sleeps will wake",
    I9Rest: "I9, W9: once faults stop, every pod comes to rest where it should",
    I10: "I10: a spec is seen once it was taken, not before",
    W1: "W1: a pod that may run shows the spec it occupies the node with",
    W2Told: "W2: nobody waits once nothing can run",
    W2Early: "W2: nobody is told that nothing can run while something can",
    W3: "W3, U16: a request to stop cancels the setup under way",
    W4Cancel: "W4: a pod that becomes an orphan has its setup cancelled",
    W4Grace: "W4: a pod that becomes an orphan is stopped by its own grace",
    W5: "W5: no grace is longer than one that was asked for, zero included",
    W6: "W6: a shorter grace interrupts the stop under way, whatever began it",
    W7: "W7: deletion and eviction count when they come late too",
    W8: "W8: what a stop was asked with is kept",
    W12: "W12: a hook that fails or panics, or a lost worker, moves no pod",
    W13Stranger: "W13: a pod that has a spec is never stopped as a stranger",
    W13Told: "W13: what was told to have ended is not run again",
    W14: "W14: only a pod that was looked at is taken as ended",
    W31: "W31: the first waiter is awake as long as its name is free",
    W32: "W32: a static pod stopped before its start, and seen in the runtime, is stopped there",
    W33: "W33: a replay does not jump the backoff",
    W35: "W35: nothing stays due beside a call, or past a move",
    W37: "W37: no directory goes of a pod that is wanted, known, or runs",
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

/// What an update says.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) kind: UpdateKind,
    pub(super) target: Asked,
    pub(super) waiter: Option<u8>,
    pub(super) evict: bool,
    pub(super) status_fn: Option<u8>,
    pub(super) grace: Option<i64>,
}

impl Said {
    pub(super) fn config(kind: UpdateKind, form: Form) -> Self {
        Said { kind, target: Asked::Config(form), waiter: None, evict: false, status_fn: None, grace: None }
    }

    /// As K12 asks.
    pub(super) fn runtime() -> Self {
        Said { target: Asked::Runtime, grace: Some(1), ..Said::config(UpdateKind::Kill, Form::Plain) }
    }

    pub(super) fn form(&self) -> Option<Form> {
        match self.target {
            Asked::Config(form) => Some(form),
            Asked::Runtime => None,
        }
    }

    /// The shortest grace that it asks for, be it by the caller's words or by the pod's deletion.
    fn grace(&self) -> Option<u32> {
        let given = self.grace.map(|seconds| u32::try_from(seconds.max(1)).expect("they are small"));
        let deletion = self.form().filter(|form| form.is_deleting()).map(Form::own_grace);
        given.into_iter().chain(deletion).min()
    }
}

/// An event of a record, as the laws see it.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    Birth(Said),
    Update(Said),
    Take,
    Done { hook: Hook, end: End },
    Due,
    Known { desired: bool },
}

impl Life {
    /// Only what is asked of a pod that stops counts; a create that comes meanwhile is for the next life.
    pub(super) fn remember(&mut self, seen: &Seen, after: &Frozen) {
        if let Seen::Birth(_) = seen {
            self.stopped |= after.is_over();
        }
        if after.lifecycle() != Lifecycle::Terminating {
            self.asked = None;
        } else if let Some(grace) = asked_grace(seen) {
            self.asked = Some(self.asked.map_or(grace, |known| known.min(grace)));
        }
    }
}

fn asked_grace(seen: &Seen) -> Option<u32> {
    match seen {
        Seen::Birth(said) => said.grace(),
        Seen::Update(said) if said.kind != UpdateKind::Create => said.grace(),
        Seen::Update(_) | Seen::Take | Seen::Done { .. } | Seen::Due | Seen::Known { .. } => None,
    }
}

impl World {
    /// The laws of one step of one record. `self` is as it was before the effects.
    pub(super) fn look_at_step(&mut self, uid: Uid, seen: &Seen, before: Option<&Frozen>, after: &Frozen, did: &Did) {
        let pod = self.pod(uid);
        let mut broken = self.broken;
        let mut holds = |law, is: bool| {
            if !is {
                broken.add(law);
            }
        };
        step_of_any_kind(pod, seen, before, after, did, &mut holds);
        match seen {
            Seen::Birth(_) => {
                let is_ended = after.lifecycle() == Lifecycle::Terminated;
                holds(Law::W14, !is_ended || pod.view == Observed::Stopped);
            }
            Seen::Update(said) => {
                if let Some(before) = before {
                    update(pod, said, before, after, did, &mut holds);
                }
            }
            Seen::Take => {
                if let Some(before) = before {
                    take(pod, before, after, did, &mut holds);
                }
            }
            Seen::Done { end, .. } => {
                let moved = before.map(Frozen::lifecycle) != Some(after.lifecycle());
                holds(Law::W12, !(moved && *end == End::Failed));
                holds(Law::W35, !(moved && after.due));
            }
            Seen::Due => {}
            Seen::Known { .. } => {
                if let Some(before) = before {
                    known(pod, before, after, did, &mut holds);
                }
            }
        }
        self.broken = broken;
    }

    /// The laws of a state.
    pub(super) fn look_at_laws(&mut self, machine: &Machine) {
        let mut broken = self.broken;
        let mut holds = |law, is: bool| {
            if !is {
                broken.add(law);
            }
        };
        for uid in self.uids() {
            let pod = self.pod(uid);
            let Some(record) = &pod.record else {
                holds(Law::W2Told, pod.waiting.is_empty());
                holds(Law::I3, pod.call.is_none());
                continue;
            };
            holds(Law::W2Told, !record.is_over() || pod.waiting.is_empty());
            holds(Law::I3, record.running == pod.call.map(|call| call.hook));
            if pod.call.is_some_and(|call| call.hook == Hook::Sync) {
                let real = record.thaw(uid, &machine.objects, &mut Waiters::default());
                holds(Law::I1, !real.should_containers_be_terminating() && !real.is_terminated());
            }
            holds(Law::I6, !(record.is_over() && pod.is_running()) || pod.life.excused);
            holds(Law::I6, !record.is_over() || pod.life.stopped || !pod.life.called);
            holds(Law::I7, !record.is_finished() || pod.life.cleaned || !pod.life.called);
            if let Some(stopping) = record.stopping() {
                holds(Law::W5, pod.life.asked.is_none_or(|asked| stopping.grace <= asked));
            }
            let is_stranger = record.stopping().is_some_and(|stopping| stopping.of == StopOf::Runtime);
            if pod.life.called && !record.is_over() && !is_stranger {
                holds(Law::W1, record.active().is_some());
            }
            holds(Law::W35, pod.call.is_none() || !record.due);
            if pod.is_idle() && !pod.rung {
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
            holds(Law::W31, pod.rung && pod.has_work());
        }
        self.broken = broken;
    }
}

type Holds<'a> = dyn FnMut(Law, bool) + 'a;

fn step_of_any_kind(pod: &Pod, seen: &Seen, before: Option<&Frozen>, after: &Frozen, did: &Did, holds: &mut Holds<'_>) {
    // In the state after a terminate hook the notifiers are told with the move, or with the record's end.
    let is_over = after.is_over() || did.forget;
    let killed = |number| matches!(seen, Seen::Birth(said) | Seen::Update(said) if said.waiter == Some(number));
    let never_ran = did.end && !pod.life.called;
    holds(
        Law::W2Early,
        did.told.is_empty() || is_over || never_ran || did.told.iter().any(|number| killed(*number) && is_over),
    );
    let Some(before) = before else { return };
    holds(Law::I2, after.lifecycle() >= before.lifecycle());
    if did.forget {
        let stranger_stopped = matches!(seen, Seen::Done { hook: Hook::TerminatingRuntime, end: End::Succeeded });
        holds(Law::I2, before.is_finished() || stranger_stopped || !pod.life.called);
        holds(Law::I3, pod.call.is_none());
        return;
    }
    if let (Some(old), Some(new)) = (before.stopping(), after.stopping()) {
        holds(Law::I5, new.grace <= old.grace);
        holds(Law::W8, new.forced || !old.forced);
        holds(Law::W8, new.status_fn.is_some() || old.status_fn.is_none());
        let shorter = new.grace < old.grace;
        holds(Law::W6, !shorter || pod.call.is_none() || did.cancel);
    }
    let (old, new) = (before.marks(), after.marks());
    holds(Law::W8, (new.evicted || !old.evicted) && (new.deleted || !old.deleted));
    holds(Law::W8, new.restart_requested || !old.restart_requested);
    if !matches!(seen, Seen::Take) && !after.is_finished() {
        holds(Law::I10, before.active() == after.active());
    }
}

fn update(pod: &Pod, said: &Said, before: &Frozen, after: &Frozen, did: &Did, holds: &mut Holds<'_>) {
    let for_next_life = before.is_stopping() && said.kind == UpdateKind::Create;
    let late_stranger = said.target == Asked::Runtime && before.is_over();
    if for_next_life || late_stranger || before.is_finished() {
        return;
    }
    let wanted = match said.target {
        Asked::Config(form) => Asked::Config(form),
        // A spec beats the runtime's word wherever there is one.
        Asked::Runtime => match (before.pending, before.active()) {
            (Some(Asked::Config(form)), _) | (_, Some(form)) => Asked::Config(form),
            (Some(Asked::Runtime) | None, None) => Asked::Runtime,
        },
    };
    holds(Law::I4Newest, after.pending == Some(wanted));
    holds(Law::I9, did.wake);
    let form = match wanted {
        Asked::Config(form) => Some(form),
        Asked::Runtime => None,
    };
    let is_deleted = said.target == Asked::Runtime || form.is_some_and(Form::is_deleting);
    let is_stop = said.kind == UpdateKind::Kill || is_deleted || form.is_some_and(Form::is_failed);
    holds(Law::I4Kill, !is_stop || after.is_stopping());
    holds(Law::W7, !is_deleted || after.marks().deleted);
    holds(Law::W7, !said.evict || after.marks().evicted);
    if let (Some(stopping), Some(status_fn)) = (after.stopping(), said.status_fn) {
        holds(Law::W8, stopping.status_fn == Some(status_fn));
    }
    if let (Some(stopping), Some(waiter)) = (after.stopping(), said.waiter) {
        holds(Law::W2Told, stopping.waiters.contains(&waiter));
    }
    let requested = !before.is_stopping() && after.is_stopping();
    holds(Law::W3, !requested || pod.call.is_none() || did.cancel);
}

fn take(pod: &Pod, before: &Frozen, after: &Frozen, did: &Did, holds: &mut Holds<'_>) {
    let Some(called) = did.called else {
        let unstarted = matches!(before.stopping().map(|stopping| stopping.of), Some(StopOf::Unstarted { .. }));
        let seen = pod.view == Observed::Running
            || before.stopping().is_some_and(|s| s.of == StopOf::Unstarted { observed_runtime: true });
        holds(Law::W32, !(unstarted && seen && after.is_finished()));
        return;
    };
    holds(Law::I3, pod.call.is_none());
    let taken = match before.pending {
        Some(Asked::Config(form)) => Some(form),
        Some(Asked::Runtime) | None => None,
    };
    holds(Law::I4Newest, called.form == taken);
    holds(Law::I1, called.hook != Hook::Sync || after.lifecycle() == Lifecycle::Sync);
    if let (Some(stopping), Hook::Terminating) = (after.stopping(), called.hook) {
        holds(Law::I5, called.grace == Some(stopping.grace));
        holds(Law::W8, called.status_fn == stopping.status_fn);
    }
}

fn known(pod: &Pod, before: &Frozen, after: &Frozen, did: &Did, holds: &mut Holds<'_>) {
    if did.forget {
        return;
    }
    if before.failing.is_some() && before.is_stopping() && before.pending.is_none() {
        holds(Law::W33, after.pending.is_none());
    }
    if let (false, Some(stopping)) = (before.is_stopping(), after.stopping()) {
        holds(Law::W4Cancel, pod.call.is_none() || did.cancel);
        let own = before.active().map_or(1, Form::own_grace);
        holds(Law::W4Grace, stopping.grace == own);
        holds(Law::W7, stopping.flags.deleted);
    }
}
