//! The laws of the controller, checked by stateright in every state that small configurations can reach.
//!
//! Watches show each change at any time, or list anew. Calls succeed, are refused, or have no answer, and then the server performs
//! them at once, later or never. The leader changes at any point, with calls in flight: the same process leads again and knows its
//! unanswered creates, or another process leads after the time of a lease. Users change objects meanwhile.

use std::time::Duration;

use stateright::{Checker, Model, Property};

use super::world::{CLAIMS, KINDS, LATEST, Outcome, World};
use super::*;
use crate::resource_claim::unanswered::UnansweredCreates;

/// What users do, in this order, at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    End(&'static str),
    Delete(&'static str),
    /// A pod of the same name and another UID appears.
    CreateAgain(&'static str),
    /// The scheduler reserves all claims for a pod.
    Reserve(&'static str),
    DeleteClaims,
    /// A pod on a node is being deleted, and its containers still run.
    BeginDeletion(&'static str),
    /// A client that does not know the names of claims writes the status of a pod.
    EraseNames(&'static str),
}

/// A configuration: the objects at the start, the changes, and how often events may occur.
#[derive(Clone)]
struct Configuration {
    objects: Vec<Object>,
    changes: &'static [Change],
    left: Left,
    mutation: Option<Mutation>,
}

/// How often each event may still occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Left {
    /// Failed calls.
    faults: u8,
    /// Changes of the leader.
    terms: u8,
    /// Lists of a watch.
    lists: u8,
    /// Steps of time that pass.
    waits: u8,
    /// The calls in flight at one time.
    workers: usize,
}

/// How the world is broken on purpose, to check that a law then fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// The next term does not know the creates without an answer.
    ForgetsCreates,
    /// The first lists of a term show an old state.
    ListsOldState,
    /// The server performs a create longer after its answer was lost than the controller waits.
    PerformsTooLate,
    /// A list of the watch counts as sent when it ends.
    SendsListAtItsEnd,
}

#[derive(Clone, Debug, PartialEq, Hash)]
struct State {
    world: World,
    /// The number of changes that users have made.
    changes: usize,
    left: Left,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Show(usize),
    List(usize),
    BeginList,
    EndList,
    Begin(Key),
    Answer(usize, Outcome),
    PerformLate(usize),
    NextTerm { are_performed: bool },
    Restart { are_performed: bool },
    Wait,
    Change(Change),
}

impl Model for Configuration {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { world: World::new(self.objects.clone()), changes: 0, left: self.left }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (world, left) = (&state.world, state.left);
        if world.broken.is_some() {
            return;
        }
        let is_listing = world.listing.is_some();
        let hidden = |kind: &usize| !(world.hidden[*kind].is_empty() || (*kind == CLAIMS && is_listing));
        actions.extend((0..KINDS).filter(hidden).map(Action::Show));
        if left.lists > 0 {
            // A list that shows what the watch has shown changes nothing.
            actions.extend((0..KINDS).filter(hidden).map(Action::List));
        }
        if is_listing {
            actions.push(Action::EndList);
        } else if left.lists > 0 && left.waits > 0 && !world.core.unanswered.is_empty() {
            // A list of claims also settles creates, which depends on the time that passes during the list.
            actions.push(Action::BeginList);
        }
        if world.running.len() < left.workers {
            actions.extend(world.idle().cloned().map(Action::Begin));
        }
        for at in 0..world.running.len() {
            actions.push(Action::Answer(at, Outcome::Performed));
            if left.faults > 0 {
                let lost = [true, false].map(|is_performed| Outcome::Lost { is_performed });
                let failures = [Outcome::Refused, Outcome::Late].into_iter().chain(lost);
                actions.extend(failures.map(|outcome| Action::Answer(at, outcome)));
            }
        }
        actions.extend((0..world.late.len()).map(Action::PerformLate));
        if left.terms > 0 {
            for are_performed in [true, false] {
                actions.extend([Action::NextTerm { are_performed }, Action::Restart { are_performed }]);
            }
        }
        if left.waits > 0 {
            actions.push(Action::Wait);
        }
        actions.extend(self.changes.get(state.changes).copied().map(Action::Change));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let State { mut world, mut changes, mut left } = last.clone();
        match action {
            Action::Show(kind) => world.show(kind),
            Action::List(kind) => {
                left.lists -= 1;
                world.list(kind);
            }
            Action::BeginList => {
                left.lists -= 1;
                world.begin_list();
            }
            Action::EndList => self.end_list(&mut world),
            Action::Begin(key) => world.begin(key),
            Action::Answer(at, outcome) => {
                left.faults -= u8::from(outcome != Outcome::Performed);
                world.step(at, outcome);
            }
            Action::PerformLate(at) => world.perform_late(at),
            Action::NextTerm { are_performed } => {
                left.terms -= 1;
                self.next_term(&mut world, are_performed);
            }
            Action::Restart { are_performed } => {
                left.terms -= 1;
                world.restart(are_performed);
            }
            Action::Wait => {
                left.waits -= 1;
                self.wait(&mut world);
            }
            Action::Change(change) => {
                changes += 1;
                change.make(&mut world);
            }
        }
        Some(State { world, changes, left })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no call breaks a law", |_, state: &State| state.world.broken.is_none()),
            Property::always("without faults the controller comes to the right rest", |_, state: &State| {
                let mut world = state.world.clone();
                if world.running.is_empty() {
                    world.settle();
                }
                world.broken.is_none()
            }),
            Property::sometimes("the controller rests after all changes", |model: &Configuration, state: &State| {
                let world = &state.world;
                let is_shown = world.hidden.iter().all(std::collections::VecDeque::is_empty);
                state.changes == model.changes.len() && is_shown && world.queue.is_empty() && world.running.is_empty()
            }),
        ]
    }
}

impl Configuration {
    fn next_term(&self, world: &mut World, are_performed: bool) {
        match self.mutation {
            Some(Mutation::ForgetsCreates) => {
                world.next_term(are_performed);
                world.begin_term(UnansweredCreates::default());
            }
            Some(Mutation::ListsOldState) => {
                let server = world.server.clone();
                world.server.claims.clear();
                world.restart(false);
                world.server = server;
            }
            Some(Mutation::PerformsTooLate | Mutation::SendsListAtItsEnd) | None => world.next_term(are_performed),
        }
    }

    fn end_list(&self, world: &mut World) {
        if self.mutation == Some(Mutation::SendsListAtItsEnd) {
            world.core.claims_list_began = Some(world.now);
        }
        world.end_list();
    }

    /// Lets so much time pass that the controller no longer waits for a create.
    fn wait(&self, world: &mut World) {
        if self.mutation == Some(Mutation::PerformsTooLate) {
            let late = std::mem::take(&mut world.late);
            world.pass_time(Duration::from_secs(10));
            world.late = late;
        } else {
            world.pass_time(LATEST + Duration::from_secs(1));
        }
    }
}

impl Change {
    fn make(self, world: &mut World) {
        let server = &mut world.server;
        let known = |name| server.pods[&object(name)].clone();
        match self {
            Change::End(name) => server.put(in_phase(known(name), "Succeeded").into()),
            Change::Delete(name) => server.remove(&known(name).into()),
            Change::CreateAgain(name) => {
                let mut new = pod(name, &[("res", "tpl")]);
                new.metadata.uid = Some(format!("{name}-uid-2"));
                server.put(new.into());
            }
            Change::Reserve(name) => {
                let pod = known(name);
                for claim in server.claims.clone().into_values() {
                    server.put(with_finalizer(reserved(allocated(claim), &[consumer(&pod)])).into());
                }
            }
            Change::BeginDeletion(name) => server.put(deleting(known(name)).into()),
            Change::EraseNames(name) => server.erase_names(known(name)),
            Change::DeleteClaims => server.claims.clone().keys().for_each(|key| server.delete_claim(key)),
        }
        world.collect_events();
    }
}

fn left(faults: u8, terms: u8, lists: u8, waits: u8) -> Left {
    Left { faults, terms, lists, waits, workers: 2 }
}

fn one_worker(left: Left) -> Left {
    Left { workers: 1, ..left }
}

/// A pod with one claim from a template.
fn one_entry() -> Vec<Object> {
    vec![template("tpl").into(), pod("p", &[("res", "tpl")]).into()]
}

/// A pod on a node whose allocated claim is reserved for it.
fn running_pod() -> Vec<Object> {
    let pod = on_node(recorded(pod("p", &[("res", "tpl")]), &[("res", Some("p-res"))]));
    let claim = with_finalizer(allocated(generated("p-res", &pod_owner(&pod))));
    vec![template("tpl").into(), reserved(claim, &[consumer(&pod)]).into(), pod.into()]
}

/// Checks every state of one world, for each combination of events.
fn check(objects: &[Object], changes: &'static [Change], combinations: &[Left]) {
    for left in combinations {
        let depth = podwright_random::depth();
        let left = Left { faults: left.faults + depth, workers: left.workers.max(1 + usize::from(depth)), ..*left };
        let configuration = Configuration { objects: objects.to_vec(), changes, left, mutation: None };
        let checker = configuration.checker().threads(2).spawn_dfs().join();
        eprintln!("{} states, {left:?}", checker.unique_state_count());
        checker.assert_properties();
    }
}

#[test]
fn generation_of_one_claim_keeps_the_laws() {
    check(&one_entry(), &[], &[left(2, 0, 1, 1), left(1, 1, 0, 1)]);
}

/// The watch may show a claim after it was deleted, while the result of the next create is not known.
#[test]
fn claim_that_is_deleted_before_it_is_recorded_keeps_the_laws() {
    check(&one_entry(), &[Change::DeleteClaims], &[one_worker(left(2, 0, 0, 1))]);
}

#[test]
fn generation_of_two_claims_keeps_the_laws() {
    let objects = [template("tpl").into(), pod("p", &[("res", "tpl"), ("own", "tpl")]).into()];
    check(&objects, &[], &[left(1, 0, 0, 0), left(0, 1, 0, 0)]);
}

// Takes over 20 s: three changes come at any point of the work on the claims of two pods, with a failed call or a change of the leader.
#[test]
fn claims_of_a_pod_that_is_replaced_keep_the_laws() {
    let changes = &[Change::Reserve("p"), Change::Delete("p"), Change::CreateAgain("p")];
    // With two workers there are four times as many states. `make soak` checks them.
    check(&one_entry(), changes, &[one_worker(left(1, 0, 0, 0)), one_worker(left(0, 1, 0, 0))]);
}

#[test]
fn claims_of_a_pod_that_ends_keep_the_laws() {
    check(&running_pod(), &[Change::End("p")], &[left(2, 1, 1, 0)]);
}

#[test]
fn claims_of_a_pod_that_is_being_deleted_keep_the_laws() {
    let changes = &[Change::EraseNames("p"), Change::BeginDeletion("p"), Change::EraseNames("p")];
    check(&running_pod(), changes, &[one_worker(left(1, 0, 0, 0)), one_worker(left(0, 1, 0, 0))]);
}

#[test]
fn claims_that_are_deleted_keep_the_laws() {
    check(&running_pod(), &[Change::DeleteClaims, Change::Delete("p")], &[left(1, 0, 0, 0), left(0, 1, 0, 0)]);
}

#[test]
fn claim_of_a_user_with_a_replaced_consumer_keeps_the_laws() {
    let (p, q) = (pod_with_claim("p", "shared"), pod_with_claim("q", "shared"));
    let claim = with_finalizer(reserved(allocated(claim("shared")), &[consumer(&p), consumer(&q)]));
    let objects = [template("tpl").into(), claim.into(), p.into(), q.into()];
    let combinations = [left(1, 0, 0, 0), left(0, 1, 0, 0)].map(one_worker);
    check(&objects, &[Change::Delete("p"), Change::CreateAgain("p")], &combinations);
}

#[test]
fn claim_of_a_pod_group_keeps_the_laws() {
    let pod = in_group(pod("r", &[("res", "tpl")]), "g");
    let objects = [template("tpl").into(), group("g", &[("res", "tpl")]).into(), pod.into()];
    check(&objects, &[], &[left(1, 0, 0, 0), left(0, 1, 0, 0)]);
}

/// A term that forgets creates, lists an old state, waits too briefly for a create, or takes a list for a newer one breaks a law.
#[test]
fn broken_worlds_break_a_law() {
    let of_terms = [Mutation::ForgetsCreates, Mutation::ListsOldState, Mutation::PerformsTooLate];
    let of_terms = of_terms.map(|mutation| (mutation, left(1, 1, 0, 1)));
    for (mutation, left) in of_terms.into_iter().chain([(Mutation::SendsListAtItsEnd, left(1, 0, 1, 1))]) {
        let objects = one_entry();
        let broken = Configuration { objects, changes: &[], left, mutation: Some(mutation) };
        let checker = broken.checker().spawn_dfs().join();
        let broken = checker.discoveries().keys().any(|name| *name != "the controller rests after all changes");
        assert!(broken, "no law noticed {mutation:?}");
    }
}
