//! Invariants of the core, checked by stateright in every state that small worlds can reach.
//!
//! The checker walks all orders of the events around one or two pods: changes of sources, requests to stop, hook calls that
//! succeed, fail or are cancelled, housekeeping passes with other events between their steps, and due times. A bounded number
//! of faults is added: crashes of the agent, lost workers, failed observations, wrong lists, and zombie containers. The
//! functions that decide are the real ones: `new_record` and `step`, the queue of a full name, the plan of the pass, and
//! `is_active`. What applies their results (the engine, the worker's loop, the pass) is modelled in [`moves`].
//!
//! Before a step a record is made from plain data, and afterwards it becomes plain data again; [`frozen`] lists what is left
//! out. There is no time: a due time may be reached at any point or never. So no order is left out and the worlds are finite;
//! the lengths of delays are tested by the tables beside this model. Hooks and containers are a few facts. A setup call may
//! start the containers at any point until it returns, even after it was cancelled. A terminate hook succeeds only after the
//! containers have ended. Cleanup does not succeed while a container runs. A hook that panics counts as a hook that fails.
//! Nothing is dispatched before the observer observed the pod, successfully or not, because the dispatcher waits for that. A
//! step and its effects are one action: both happen under the record's lock, and a crash between them leaves the same
//! containers and files as a crash before the step.
//!
//! The end of a pod is noted by a hook, then written to disk, then reported; a new agent reads what is on disk (see [`ends`]).
//! A disk that refuses writes for so long that the end is reported anyway is outside of the model. The real setup starts
//! nothing in a pod whose end is kept; the modelled setup does nothing more after it noted an end.
//!
//! One gap is known and excused: a static pod that is stopped before its start counts as never started if no observation of it
//! succeeded, because an embedder without a view of the runtime depends on that. A container that runs in it then is a zombie,
//! and the world comes to rest because the pass stops zombies.
//!
//! `PODWRIGHT_DEPTH=1` adds larger worlds.
//!
//! Of the upstream weaknesses POD-W1 to POD-W37, these are outside of the model, because the core does not decide them:
//!
//! | weakness | tested in |
//! |---|---|
//! | POD-W1 beyond "the spec is published": admission counts it | `engine/tests/queries.rs`, `actors/tests/node/admission.rs` |
//! | POD-W3 beyond the cancellation: it reaches pulls and stops | `container_manager/tests` |
//! | POD-W15, POD-W16, POD-W24: status | `status/tests/cache.rs`, `actors/tests/node/start_metrics.rs` |
//! | POD-W17: gauges | `actors/tests/node/observation.rs` |
//! | POD-W18, and times from updates | `pod_worker/tests.rs`, `actors/tests/node/start_metrics.rs` |
//! | POD-W19, POD-W22, POD-W23, POD-W34: containers | `container_manager/tests`, `containers/plan/tests`, `containers/backoff/tests.rs` |
//! | POD-W27: sources | `tests/it/sources.rs`, `actors/tests/node/static_pods.rs`, `tests/it/agent/bad_input.rs` |
//! | POD-W30: no waits in dispatch and pass | `actors/tests/node/stops.rs` |
//! | POD-W36: waits for a stop | `engine/tests/stops.rs` |
//! | POD-W10: volumes that cannot be unmounted | `actors/tests/node/orphans.rs`, `actors/tests/node/shutdown.rs` |
//! | POD-W11: an end is observed at once and not lost | `actors/tests/node/crashes.rs`, `status/tests/containers.rs` |
//! | POD-W25, POD-W26: events, relists and slow reads | `actors/tests/node/observation.rs`, `observer/pod_cache/tests.rs` |
//! | POD-W20, POD-W21: claims | `claims/tests.rs`, `claims/tests/model.rs`, `actors/tests/node/claims.rs` |
//! | POD-W28: a static pod that ended stays ended | `actors/tests/node/static_pods.rs`, `actors/tests/node/final_statuses.rs` |
//! | POD-W28: which ends of a static pod are final | `final_statuses/tests.rs` |
//! | POD-W28 in a mirror, POD-W29 | `actors/tests/node/mirrors.rs`, `actors/tests/node/status_writes.rs` |
//!
//! The others are laws of this model. Those of POD-W2, POD-W4 to POD-W9, POD-W13, POD-W14, POD-W31 to POD-W33 and POD-W35 are also tested
//! on the whole engine or node.

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
use world::{Action, Call, ContainersState, End, EndEntry, Pass, Pod, Uid, World};

/// A scenario under the checker.
struct CheckedScenario {
    scenario: Scenario,
    machine: Machine,
    resting: Resting,
}

impl CheckedScenario {
    fn of(scenario: Scenario, mutation: Option<Mutation>) -> Self {
        let lags = scenario.also.contains(&Also::Lag);
        let machine = Machine { objects: Objects::new(scenario.statics), statics: scenario.statics, lags, mutation };
        CheckedScenario { scenario, machine, resting: Resting::default() }
    }

    fn may(&self, also: Also) -> bool {
        self.scenario.also.contains(&also)
    }

    fn config_actions(&self, world: &World, uid: Uid, actions: &mut Vec<Action>) {
        let pod = world.pod(uid);
        let Some(config) = pod.config else {
            if pod.observed_once && (!self.may(Also::Edit) || may_be_edited(world, uid)) {
                actions.extend(self.scenario.adds.iter().map(|form| Action::Add(uid, *form)));
            }
            return;
        };
        if !self.may(Also::Edit) || uid == Uid::A {
            actions.push(Action::Remove(uid));
        }
        if !pod.delivered {
            if pod.observed_once {
                actions.push(Action::Deliver(uid));
            }
            if pod.observed_once
                && pod.view != Observed::Running
                && pod.entry == EndEntry::Nothing
                && self.may(Also::Rejection)
            {
                actions.push(Action::Reject(uid));
            }
            return;
        }
        let changes = self.scenario.changes.iter();
        // Neither a deletion nor the end of a pod is taken back.
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
            // One waiter is enough; two make many more states.
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
            if pod.woken {
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
        if pod.view != pod.observe() || !pod.observed_once {
            actions.push(Action::Observe(uid));
        }
        if world.left.lies > 0 && (pod.view != Observed::Never || !pod.observed_once) {
            actions.push(Action::FailObservation(uid));
        }
        let has_ended = pod.record.as_ref().is_some_and(Frozen::has_ended);
        if world.left.zombies > 0 && has_ended && !pod.is_running() {
            actions.push(Action::StartZombie(uid));
        }
    }

    fn call_actions(&self, uid: Uid, pod: &Pod, call: Call, actions: &mut Vec<Action>) {
        let returns = |end| Action::Return(uid, end);
        let has_final_report = self.has_final_report(pod, call);
        if has_final_report {
            actions.push(end_action(uid, pod));
            if pod.entry == EndEntry::Noted && self.machine.mutates(Mutation::ReportsEndBeforeWrite) {
                actions.push(Action::Report(uid));
            }
        }
        match (call.hook, pod.containers) {
            // The setup found that the pod ended, and only reports that.
            (Hook::Sync, _) if call.noted => {
                if !has_final_report {
                    actions.push(returns(End::Ended));
                }
                return;
            }
            (Hook::Sync, ContainersState::Running) => actions.push(returns(End::Continues)),
            (Hook::Sync, ContainersState::Nothing | ContainersState::Exited) => {
                actions.push(Action::Start(uid));
                if pod.containers == ContainersState::Exited && self.may(Also::Exit) && !has_final_report {
                    actions.push(returns(End::Ended));
                }
            }
            (Hook::Terminating | Hook::TerminatingRuntime, ContainersState::Running) => actions.push(Action::Stop(uid)),
            // A running container uses the pod's volumes, so cleanup does not succeed.
            (Hook::Terminated, ContainersState::Running) => {}
            (
                Hook::Terminating | Hook::TerminatingRuntime | Hook::Terminated,
                ContainersState::Nothing | ContainersState::Exited,
            ) => {
                if !has_final_report {
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

    fn check(self) -> impl Checker<CheckedScenario> {
        self.checker().spawn_bfs().join()
    }

    /// The shortest path to a broken law. The checker keeps the last path that it finds.
    fn shortest(scenario: &Scenario, law: &'static str) -> Path<World, Action> {
        (2..)
            .find_map(|depth| {
                let checked = CheckedScenario::of(*scenario, None);
                checked.checker().target_max_depth(depth).spawn_bfs().join().discovery(law)
            })
            .expect("the same law was found broken before")
    }
}

impl Model for CheckedScenario {
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
                Pass::Ordered { .. } => actions.push(Action::Apply),
                Pass::Applied { .. } => actions.push(Action::Tidy),
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

/// Whether the source may have a pod of an edited manifest.
fn may_be_edited(world: &World, uid: Uid) -> bool {
    match uid {
        Uid::A => world.pods.iter().all(|pod| pod.config.is_none()),
        Uid::B => world.pod(Uid::A).config.is_none(),
    }
}

/// The path to a broken law, one action in a line.
fn described(path: Path<World, Action>) -> String {
    path.into_actions()
        .iter()
        .enumerate()
        .fold(String::new(), |text, (i, action)| format!("{text}\n  {:>2}. {action:?}", i + 1))
}

/// The broken law or the wrong state count of a scenario.
fn check(scenario: &Scenario) -> Option<String> {
    let checker = CheckedScenario::of(*scenario, None).check();
    if let Some(law) = checker.discoveries().into_keys().min() {
        let way = described(CheckedScenario::shortest(scenario, law));
        return Some(format!("{}: broken is\n  {law}\nby{way}", scenario.name));
    }
    let (found, pinned) = (checker.unique_state_count(), scenario.states);
    (found != pinned).then(|| format!("{}: {found} states instead of {pinned}", scenario.name))
}

// Takes over 20 s: it has 145,000 states, and computes without optimization.
#[test]
fn every_reachable_state_keeps_the_laws() {
    let deep = if podwright_random::depth() > 0 { DEEP } else { &[] };
    let wrong: Vec<String> = QUICK.iter().chain(deep).filter_map(check).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// Takes over 20 s: every mutation is a check of its own, and computes without optimization.
#[test]
fn each_law_is_broken_by_the_listed_mutations_only() {
    let mut unlike = String::new();
    for (mutation, scenario, laws) in Mutation::ALL {
        let broken = CheckedScenario::of(**scenario, Some(*mutation)).check().discoveries();
        let found: BTreeSet<&str> = broken.keys().copied().collect();
        if found != laws.iter().map(|law| law.name()).collect() {
            let ways: String = broken.into_iter().map(|(law, path)| format!("\n  {law}{}", described(path))).collect();
            unlike += &format!("\n{mutation:?} in {:?} should break {laws:?}, and breaks{ways}", scenario.name);
        }
    }
    assert!(unlike.is_empty(), "{unlike}");
    for law in Law::ALL {
        assert!(Mutation::ALL.iter().any(|(_, _, laws)| laws.contains(law)), "nothing breaks {:?}", law.name());
    }
}
