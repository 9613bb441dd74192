//! Invariants of admission, checked by stateright in every state that small nodes can reach.
//!
//! Pods arrive, change, leave, end by themselves, and stop, in every order, also while other pods wait, and while pods are being
//! stopped for a critical pod. A stop may also fail for so long that no pod waits for it. The functions that decide are the real
//! ones: `judge` with the real predicates, `choose_victims`, [`Admitted`] and [`AdmissionQueue`]. [`Node`] models the dispatcher
//! and the engine, which apply the results: which pods count, when the queue is judged again, and that a victim keeps its resources
//! until it has stopped.
//!
//! There is no time and no disk. A pod that was admitted is never judged again, and a pod that left comes back only after its
//! containers have ended.
//!
//! `PODWRIGHT_DEPTH=1` adds larger nodes.

mod laws;
mod mutation;
mod node;
mod scenarios;

use std::collections::BTreeSet;

use stateright::{Checker, Model, Path, Property};

use laws::Law;
use mutation::Mutation;
use node::{Action, Node, World};
use scenarios::{DEEP, SCENARIOS, Scenario};

/// A scenario under the checker.
struct CheckedScenario {
    scenario: &'static Scenario,
    node: Node,
}

impl CheckedScenario {
    fn of(scenario: &'static Scenario, mutation: Option<Mutation>) -> Self {
        CheckedScenario { scenario, node: Node::of(scenario, mutation) }
    }
}

impl Model for CheckedScenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::empty(self.scenario.pods.len())]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_none() {
            world.actions(self.scenario.gets_stuck, actions);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        Some(self.node.after(world, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        Law::ALL.iter().map(|law| law.property()).collect()
    }
}

/// The path to a broken law, one action in a line.
fn described(scenario: &Scenario, path: Path<World, Action>) -> String {
    let named = path.into_actions().into_iter().map(|action| action.described(scenario));
    named.enumerate().fold(String::new(), |text, (i, action)| format!("{text}\n  {:>2}. {action}", i + 1))
}

// Takes over 20 s: it has 40,000 states, and from each of them the node runs on until it is at rest.
#[test]
fn every_reachable_state_of_admission_keeps_the_laws() {
    let deep: &[&'static Scenario] = if podwright_random::depth() > 0 { &DEEP } else { &[] };
    let mut wrong = String::new();
    for scenario in SCENARIOS.iter().chain(deep).copied() {
        let checker = CheckedScenario::of(scenario, None).checker().spawn_bfs().join();
        for (law, path) in checker.discoveries() {
            wrong += &format!("\n{}: {law:?} is broken by{}", scenario.name, described(scenario, path));
        }
        let found = checker.unique_state_count();
        if let Some(pinned) = scenario.states
            && found != pinned
        {
            wrong += &format!("\n{}: {found} states instead of {pinned}", scenario.name);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

// Takes over 20 s: every mutation is a check of its own, and computes without optimization.
#[test]
fn each_law_of_admission_is_broken_by_the_listed_mutations_only() {
    let mut wrong = String::new();
    for (mutation, scenario, laws) in Mutation::ALL {
        let broken = CheckedScenario::of(scenario, Some(*mutation)).checker().spawn_bfs().join().discoveries();
        let found: BTreeSet<&str> = broken.keys().copied().collect();
        if found != laws.iter().map(|law| law.name()).collect() {
            let paths = broken.into_iter().map(|(law, path)| format!("\n  {law}{}", described(scenario, path)));
            wrong += &format!("\n{mutation:?} should break {laws:?}, and breaks{}", paths.collect::<String>());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    for law in Law::ALL {
        assert!(Mutation::ALL.iter().any(|(_, _, laws)| laws.contains(law)), "nothing breaks {:?}", law.name());
    }
}
