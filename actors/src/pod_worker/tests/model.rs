//! The laws of the core, checked in every state that small worlds can come to.
//!
//! The checker (stateright) walks all orders of what may happen around one or two pods: what sources want, requests to
//! stop, hooks that do their work, fail or are cancelled, passes of housekeeping with other things between their steps,
//! due times, and, in bounded number, crashes of the agent, lost workers, failed looks, wrong lists, and containers that
//! come from nowhere. Decisions are made by the functions that ship: `new_record` and `step`, the name queue, the pass's plan
//! and `is_active`. What performs them (the engine's `settle`, the worker's loop, the pass) is done by hand in [`moves`].
//!
//! A record is taken out of its state before a step and put back as data after it; [`frozen`] says what is cut away. Time
//! is that a due time may come at any moment or never, so that no order is left out and the worlds are finite; how
//! long delays are is for the tables beside this model. Hooks and containers are a few facts: a setup under way may start
//! the containers at any moment until it returns, even after its cancellation; a terminate hook succeeds only once
//! they have ended; cleanup does not succeed while something runs. A hook that panics is a hook that fails, as the worker
//! tells it. Nothing is dispatched before the observer looked, successfully or not; this is what the dispatcher waits for.
//! A step and its effects are one action, because they are one under the record's lock, and because a crash after the step
//! leaves what a crash before the effects leaves: what runs, and what is on disk.
//!
//! An end is noted by a hook, then it is on disk, then it is told, and an agent that comes up reads what is on disk:
//! see [`ends`]. Outside is a disk that takes nothing for so long that an end is told all the same. The real setup
//! starts nothing in a pod of which it kept the end; here one that noted an end does nothing more and does not fail.
//!
//! One gap is known and excused in the laws: a static pod that is stopped before its start is taken as never started if
//! no look at it succeeded, and an embedder without a view of the runtime depends on that. What runs of it then is a stray,
//! and rest is reached because the pass stops strays.
//!
//! `PODWRIGHT_MODEL_DEPTH=1` adds larger worlds.
//!
//! Of the upstream weaknesses W1 to W37, these are outside, because the core has no word in them:
//!
//! | weakness | tested in |
//! |---|---|
//! | W1 beyond "the spec is shown": admission counts it | `engine/tests/queries.rs`, `tests/it/node/admission.rs` |
//! | W3 beyond the cancellation: it reaches pulls and stops | `containers/perform/tests` |
//! | W15, W16, W24: status | `status/tests/cache.rs`, `tests/it/node/start_metrics.rs` |
//! | W17: gauges | `tests/it/node/observation.rs` |
//! | W18, and times from updates | `pod_worker/tests.rs`, `tests/it/node/start_metrics.rs` |
//! | W19, W22, W23, W34: containers | `containers/perform/tests`, `containers/plan/tests`, `containers/backoff/tests.rs` |
//! | W27: sources | `tests/it/sources.rs`, `tests/it/node/static_pods.rs`, `tests/it/agent/bad_input.rs` |
//! | W30: no waits in dispatch and pass | `tests/it/node/stops.rs` |
//! | W36: waits for a stop | `engine/tests/stops.rs` |
//! | W10: volumes that do not come down | `tests/it/node/orphans.rs`, `tests/it/node/shutdown.rs` |
//! | W11: an end is seen at once and not lost | `tests/it/node/crashes.rs`, `status/tests/containers.rs` |
//! | W25, W26: events, relists and slow reads | `tests/it/node/observation.rs`, `observer/board/tests.rs` |
//! | W20, W21 | none: they wait for claims, which no hook releases yet |
//! | W28: a static pod ends, and stays so | `tests/it/node/static_pods.rs`, `tests/it/node/journal.rs` |
//! | W28: which ends of a static pod, evicted or other, count for good | `journal/tests.rs` |
//! | W28 in a mirror, W29 | none: they wait for statuses to be written to an API server |
//!
//! The others are laws here, and those of W2, W4 to W9, W13, W14, W31 to W33 and W35 are also tried on the whole engine
//! or node, in tests that bear their names.

mod ends;
mod frozen;
mod laws;
mod moves;
mod mutation;
mod names;
mod pass;
mod rest;
mod scenarios;
mod world;

use std::collections::BTreeSet;

use stateright::{Checker, Model, Path, Property};

use crate::pod_worker::lifecycle::Hook;
use crate::ports::Observed;
use ends::end_action;
use frozen::{Form, Frozen, Objects};
use laws::Law;
use moves::Machine;
use mutation::Mutation;
use rest::Resting;
use scenarios::{Also, DEEP, QUICK, Scenario};
use world::{Action, Call, End, Entry, Pass, Pod, Real, Uid, World};

/// A scenario under the checker.
struct Lives {
    scenario: Scenario,
    machine: Machine,
    resting: Resting,
}

impl Lives {
    fn of(scenario: Scenario, mutation: Option<Mutation>) -> Self {
        let lags = scenario.also.contains(&Also::Lag);
        let machine = Machine { objects: Objects::new(scenario.statics), statics: scenario.statics, lags, mutation };
        Lives { scenario, machine, resting: Resting::default() }
    }

    fn may(&self, also: Also) -> bool {
        self.scenario.also.contains(&also)
    }

    fn config_actions(&self, world: &World, uid: Uid, actions: &mut Vec<Action>) {
        let pod = world.pod(uid);
        let Some(config) = pod.config else {
            if pod.looked && (!self.may(Also::Edit) || may_be_edited(world, uid)) {
                actions.extend(self.scenario.adds.iter().map(|form| Action::Add(uid, *form)));
            }
            return;
        };
        if !self.may(Also::Edit) || uid == Uid::A {
            actions.push(Action::Remove(uid));
        }
        if !pod.delivered {
            if pod.looked {
                actions.push(Action::Deliver(uid));
            }
            if pod.looked && pod.view != Observed::Running && pod.entry == Entry::Nothing && self.may(Also::Rejection) {
                actions.push(Action::Reject(uid));
            }
            return;
        }
        let changes = self.scenario.changes.iter();
        // A deletion is never taken back, nor is the end of a pod.
        let may = |to: &&Form| {
            **to != config
                && (to.is_deleting() || !config.is_deleting())
                && (to.is_failed() || !config.is_failed())
                && **to != Form::Plain
        };
        actions.extend(changes.filter(may).map(|form| Action::Change(uid, *form)));
    }

    fn pod_actions(&self, world: &World, uid: Uid, actions: &mut Vec<Action>) {
        let pod = world.pod(uid);
        if pod.delivered && !pod.rejected {
            // One who waits is enough, and two make many more states.
            if pod.waiting.is_empty() {
                actions.extend(self.scenario.kills.iter().map(|kill| Action::Kill(uid, *kill)));
            }
            if self.may(Also::Recheck) && pod.record.is_some() {
                actions.push(Action::Recheck(uid));
            }
        }
        if self.may(Also::KillRuntime) {
            actions.push(Action::KillRuntime(uid));
        }
        if pod.is_idle() {
            if pod.rung {
                actions.push(Action::Take(uid));
            } else if pod.record.as_ref().is_some_and(|record| record.due) {
                actions.push(Action::Due(uid));
            }
        }
        if let Some(call) = pod.call {
            self.call_actions(uid, pod, call, actions);
        }
        if pod.is_running() && self.may(Also::Exit) {
            actions.push(Action::Exit(uid));
        }
        if pod.view != pod.observe() || !pod.looked {
            actions.push(Action::Look(uid));
        }
        if world.left.lies > 0 && (pod.view != Observed::Never || !pod.looked) {
            actions.push(Action::MissLook(uid));
        }
        let is_over = pod.record.as_ref().is_some_and(Frozen::is_over);
        if world.left.zombies > 0 && is_over && !pod.is_running() {
            actions.push(Action::Haunt(uid));
        }
    }

    fn call_actions(&self, uid: Uid, pod: &Pod, call: Call, actions: &mut Vec<Action>) {
        let returns = |end| Action::Return(uid, end);
        let has_last_word = self.has_last_word(pod, call);
        if has_last_word {
            actions.push(end_action(uid, pod));
            if pod.entry == Entry::Noted && self.machine.mutates(Mutation::TellsBeforeItIsWritten) {
                actions.push(Action::Tell(uid));
            }
        }
        match (call.hook, pod.real) {
            // It found the end of the pod, and does nothing but say so.
            (Hook::Sync, _) if call.noted => {
                if !has_last_word {
                    actions.push(returns(End::Ended));
                }
                return;
            }
            (Hook::Sync, Real::Running) => actions.push(returns(End::Continues)),
            (Hook::Sync, Real::Nothing | Real::Exited) => {
                actions.push(Action::Start(uid));
                if pod.real == Real::Exited && self.may(Also::Exit) && !has_last_word {
                    actions.push(returns(End::Ended));
                }
            }
            (Hook::Terminating | Hook::TerminatingRuntime, Real::Running) => actions.push(Action::Stop(uid)),
            // What runs keeps the pod's volumes in use, so that cleanup does not succeed.
            (Hook::Terminated, Real::Running) => {}
            (Hook::Terminating | Hook::TerminatingRuntime | Hook::Terminated, Real::Nothing | Real::Exited) => {
                if !has_last_word {
                    actions.push(returns(End::Succeeded));
                }
            }
        }
        if call.cancelled {
            actions.push(returns(End::Cancelled));
        }
        if self.may(Also::Failure) {
            actions.push(returns(End::Failed));
        }
    }

    fn check(self) -> impl Checker<Lives> {
        self.checker().spawn_bfs().join()
    }

    /// The shortest way to a broken law; the checker keeps the last one that it finds.
    fn shortest(scenario: &Scenario, law: &'static str) -> Path<World, Action> {
        (2..)
            .find_map(|depth| {
                let lives = Lives::of(*scenario, None);
                lives.checker().target_max_depth(depth).spawn_bfs().join().discovery(law)
            })
            .expect("it was found before")
    }
}

impl Model for Lives {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.machine.start(self.scenario.pods, self.scenario.faults)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_any() {
            return;
        }
        for uid in world.uids() {
            if !world.is_locked() {
                self.config_actions(world, uid, actions);
            }
            self.pod_actions(world, uid, actions);
            if world.left.losses > 0 && world.pod(uid).call.is_some() {
                actions.push(Action::Lose(uid));
            }
        }
        if !world.ready && world.pods.iter().all(|pod| pod.config.is_none() || pod.delivered) {
            actions.push(Action::Ready);
        }
        if self.may(Also::PassAtOnce) && world.ready {
            actions.push(Action::Pass);
            if world.left.lies > 0 {
                actions.extend(world.uids().map(Action::PassWrongly));
            }
        }
        if self.may(Also::Pass) {
            match &world.pass {
                Pass::Idle if !world.ready => {}
                Pass::Idle => actions.push(Action::Compare),
                Pass::Compared { .. } => {
                    actions.push(Action::List);
                    if world.left.lies > 0 {
                        actions.extend(world.uids().map(Action::ListWrongly));
                    }
                }
                Pass::Listed { .. } => actions.push(Action::Plan),
                Pass::Ordered { .. } => actions.push(Action::Obey),
                Pass::Settled { .. } => actions.push(Action::Tidy),
            }
        }
        if world.left.crashes > 0 {
            actions.push(Action::Crash);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        self.machine.after(world, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        Law::ALL.iter().map(|law| law.property()).collect()
    }
}

/// Whether a source may want a pod of an edited manifest.
fn may_be_edited(world: &World, uid: Uid) -> bool {
    match uid {
        Uid::A => world.pods.iter().all(|pod| pod.config.is_none()),
        Uid::B => world.pod(Uid::A).config.is_none(),
    }
}

/// The way to where a law is broken, one action in a line.
fn told(path: Path<World, Action>) -> String {
    path.into_actions()
        .iter()
        .enumerate()
        .fold(String::new(), |told, (i, action)| format!("{told}\n  {:>2}. {action:?}", i + 1))
}

/// What is wrong with a scenario.
fn check(scenario: &Scenario) -> Option<String> {
    let checker = Lives::of(*scenario, None).check();
    if let Some(law) = checker.discoveries().into_keys().min() {
        let way = told(Lives::shortest(scenario, law));
        return Some(format!("{}: broken is\n  {law}\nby{way}", scenario.name));
    }
    let (found, pinned) = (checker.unique_state_count(), scenario.states);
    (found != pinned).then(|| format!("{}: {found} states instead of {pinned}", scenario.name))
}

#[test]
fn every_life_keeps_the_laws() {
    let deep = std::env::var_os("PODWRIGHT_MODEL_DEPTH").map_or(&[][..], |_| DEEP);
    let wrong: Vec<String> = QUICK.iter().chain(deep).filter_map(check).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_law_is_broken_by_a_mutation_and_by_no_other_than_those_listed() {
    let mut unlike = String::new();
    for (mutation, scenario, laws) in Mutation::ALL {
        let broken = Lives::of(**scenario, Some(*mutation)).check().discoveries();
        let found: BTreeSet<&str> = broken.keys().copied().collect();
        if found != laws.iter().map(|law| law.name()).collect() {
            let ways: String = broken.into_iter().map(|(law, path)| format!("\n  {law}{}", told(path))).collect();
            unlike += &format!("\n{mutation:?} in {:?} should break {laws:?}, and breaks{ways}", scenario.name);
        }
    }
    assert!(unlike.is_empty(), "{unlike}");
    for law in Law::ALL {
        assert!(Mutation::ALL.iter().any(|(_, _, laws)| laws.contains(law)), "nothing breaks {:?}", law.name());
    }
}
