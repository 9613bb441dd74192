//! The laws of the controller, checked by stateright in every state that small configurations can reach.
//!
//! Watches show each change at any time, or list anew. Pods are evaluated later than they are marked. Calls succeed, are refused, or have
//! no answer, and then the server has performed them or not. Another leader takes over at any point, while the server may still perform the
//! writes of the earlier one. Users change objects meanwhile.

mod counts;
mod laws;
mod world;

use std::num::NonZeroU64;

use stateright::{Checker, HasDiscoveries, Model, Property};

use self::world::{KINDS, Outcome, PODS, World};
use super::*;

/// What users do, in this order, at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UserChange {
    /// The driver removes the taint from the slice.
    Lift,
    /// The driver taints the device again.
    Taint,
    DeleteSlice,
    DeletePod,
    /// A pod of the same name and another UID appears, and the claim is reserved for it.
    ReplacePod,
    /// The claim loses its consumers.
    Release,
    DeleteRule,
    /// The annotation of the rule raises its limit to this number.
    Continue(u64),
}

/// A configuration: the objects at the start, the changes, and how often events may occur.
#[derive(Clone)]
struct Configuration {
    objects: Vec<Change>,
    changes: &'static [UserChange],
    left: Left,
    limit: Option<u64>,
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
    /// Steps of ten seconds that pass.
    waits: u8,
    /// The calls in flight at one time.
    workers: usize,
    /// Whether the items begin in their order, and the watch of pods shows each change at once.
    in_order: bool,
}

/// How the world is broken on purpose, to check that a law then fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// The server ignores the UID of a deletion.
    IgnoresUid,
    /// Pods that are marked are not evaluated.
    ForgetsMarks,
    /// The items of evaluated pods are not queued.
    ForgetsItems,
    /// The watch of rules does not show the condition of the limit that an earlier leader has written late.
    HidesLateLimits,
    /// The writes of the condition of the limit are lost when the leader changes.
    LosesLimits,
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
    Fill,
    Begin(Item),
    Answer(usize, Outcome),
    PerformLate(usize),
    NextLeader,
    Wait,
    Change(UserChange),
}

impl Model for Configuration {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let settings = Settings { max_evictions_per_rule: self.limit.and_then(NonZeroU64::new), ..Settings::default() };
        let world = World::new(settings, &self.objects, self.mutation);
        vec![State { world, changes: 0, left: self.left }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (world, left) = (&state.world, state.left);
        if world.broken.is_some() {
            return;
        }
        let is_hidden = |kind: &usize| !world.hidden[*kind].is_empty();
        if left.in_order && is_hidden(&PODS) {
            actions.push(Action::Show(PODS));
            return;
        }
        actions.extend((0..KINDS).filter(is_hidden).map(Action::Show));
        if left.lists > 0 {
            // A list that shows what the watch has shown changes nothing.
            actions.extend((0..KINDS).filter(is_hidden).map(Action::List));
        }
        if world.core.has_work() {
            actions.push(Action::Fill);
        } else if world.running.len() < left.workers {
            // The controller evaluates before it takes an item.
            let choices = if left.in_order { 1 } else { usize::MAX };
            actions.extend(world.due().into_iter().take(choices).map(Action::Begin));
        }
        for at in 0..world.running.len() {
            actions.push(Action::Answer(at, Outcome::Performed));
            if left.faults > 0 {
                let lost = [true, false].map(|is_performed| Outcome::Lost { is_performed });
                actions.extend([Outcome::Refused].into_iter().chain(lost).map(|outcome| Action::Answer(at, outcome)));
            }
        }
        actions.extend((0..world.late.len()).map(Action::PerformLate));
        if left.terms > 0 {
            actions.push(Action::NextLeader);
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
            Action::Fill => world.fill(),
            Action::Begin(item) => world.begin(item),
            Action::Answer(at, outcome) => {
                left.faults -= u8::from(outcome != Outcome::Performed);
                world.step(at, outcome);
            }
            Action::PerformLate(at) => world.perform_late(at),
            Action::NextLeader => {
                left.terms -= 1;
                world.begin_term();
            }
            Action::Wait => {
                left.waits -= 1;
                world.now = world.now + std::time::Duration::from_secs(10);
            }
            Action::Change(change) => {
                changes += 1;
                world.change(change);
            }
        }
        Some(State { world, changes, left })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no step breaks a law", |_, state: &State| state.world.broken.is_none()),
            Property::always("without faults the controller comes to the right rest", |_, state: &State| {
                let mut world = state.world.clone();
                if world.running.is_empty() {
                    world.settle();
                }
                world.broken.is_none()
            }),
            Property::sometimes("the controller rests after all changes", |model: &Configuration, state: &State| {
                state.changes == model.changes.len() && state.world.rests()
            }),
        ]
    }
}

fn left(faults: u8, terms: u8, lists: u8, waits: u8) -> Left {
    Left { faults, terms, lists, waits, workers: 2, in_order: false }
}

fn one_worker(left: Left) -> Left {
    Left { workers: 1, ..left }
}

/// Checks every state of one world, for each combination of events.
fn check(objects: &[Change], changes: &'static [UserChange], limit: Option<u64>, combinations: &[Left]) {
    for left in combinations {
        let left = Left { faults: left.faults + podwright_random::depth(), ..*left };
        let configuration = Configuration { objects: objects.to_vec(), changes, left, limit, mutation: None };
        let checker = configuration.checker().threads(2).spawn_dfs().join();
        eprintln!("{} states, {left:?}", checker.unique_state_count());
        checker.assert_properties();
    }
}

/// Pod `p` of a tainted device.
fn tainted() -> Vec<Change> {
    vec![Change::Slice(tainted_slice()), Change::Claim(claim()), Change::Pod(pod())]
}

/// Pod `p`, which tolerates the taint of a rule for 10 s.
fn ruled() -> Vec<Change> {
    let claim = tolerating(claim(), &[for_seconds(10)]);
    vec![Change::Rule(rule()), Change::Claim(claim), Change::Pod(pod())]
}

#[test]
fn eviction_for_a_slice_keeps_the_laws() {
    check(&tainted(), &[], None, &[left(2, 1, 1, 0)]);
}

#[test]
fn taint_that_is_lifted_and_added_again_keeps_the_laws() {
    let changes = &[UserChange::Lift, UserChange::Taint];
    check(&tainted(), changes, None, &[left(1, 0, 0, 0), left(0, 1, 0, 0), left(0, 0, 1, 0)]);
}

#[test]
fn slice_that_is_deleted_keeps_the_laws() {
    check(&tainted(), &[UserChange::DeleteSlice], None, &[left(1, 1, 1, 0)]);
}

#[test]
fn pod_that_is_replaced_keeps_the_laws() {
    let changes = &[UserChange::DeletePod, UserChange::ReplacePod];
    check(&tainted(), changes, None, &[left(1, 0, 0, 0), left(0, 1, 0, 0), left(0, 0, 1, 0)]);
}

#[test]
fn claim_that_is_released_keeps_the_laws() {
    check(&tainted(), &[UserChange::Release], None, &[left(1, 1, 1, 0)]);
}

#[test]
fn rule_that_is_deleted_keeps_the_laws() {
    check(&ruled(), &[UserChange::DeleteRule], None, &[left(0, 0, 0, 1), one_worker(left(1, 0, 0, 1))]);
}

/// Two leaders overlap: the server performs the writes of the first one while the second one works.
#[test]
fn late_writes_of_an_earlier_leader_keep_the_laws() {
    check(&ruled(), &[], None, &[one_worker(left(0, 1, 0, 1))]);
}

/// These pods, and a rule for all of them.
fn of_a_rule(pods: &[&str]) -> Vec<Change> {
    let users = pods.iter().flat_map(|&pod| [Change::Claim(claim_for(pod, pod)), Change::Pod(pod_of(pod, &[pod]))]);
    [Change::Rule(rule())].into_iter().chain(users).collect()
}

fn two_of_a_rule() -> Vec<Change> {
    of_a_rule(&["p", "q"])
}

fn three_of_a_rule() -> Vec<Change> {
    of_a_rule(&["p", "q", "s"])
}

#[test]
fn limit_of_a_rule_keeps_the_laws() {
    check(&two_of_a_rule(), &[UserChange::Continue(2)], Some(1), &[one_worker(left(0, 0, 0, 0))]);
}

/// The leader changes at any time, also between the write of the condition of the limit and the deletion. The write reaches the server at
/// any time, or never.
#[test]
fn limit_holds_for_all_leaders_together() {
    check(&two_of_a_rule(), &[], Some(1), &[one_worker(left(0, 1, 0, 0))]);
    for limit in [1, 2] {
        let in_order = Left { in_order: true, ..left(0, 1, 0, 0) };
        let workers = if podwright_random::depth() > 0 { 2 } else { 1 };
        check(&three_of_a_rule(), &[], Some(limit), &[Left { workers, ..in_order }]);
    }
}

/// A pod that is due at once, and one that tolerates the taint for this time.
fn two_at_two_times(seconds: i64) -> Vec<Change> {
    let later = tolerating(claim_for("q", "q"), &[for_seconds(seconds)]);
    let users = [Change::Claim(claim_for("p", "p")), Change::Pod(pod_of("p", &["p"])), Change::Claim(later)];
    [Change::Rule(rule())].into_iter().chain(users).chain([Change::Pod(pod_of("q", &["q"]))]).collect()
}

/// A pod that becomes due after the other one has gone needs one more write of the number.
#[test]
fn limit_holds_while_the_number_is_written_for_pods_of_different_times() {
    check(&two_at_two_times(10), &[], Some(1), &[one_worker(Left { in_order: true, ..left(0, 1, 0, 1) })]);
}

/// The write of a number has no answer yet while another pod becomes due or is deleted. The number is lowered, because a user has deleted
/// the pod for which it was stored, while another pod becomes due. And two pods may go before the next write.
#[test]
fn limit_with_larger_worlds_keeps_the_laws() {
    if podwright_random::depth() == 0 {
        return;
    }
    let in_order = |waits| Left { in_order: true, ..left(0, 1, 0, waits) };
    for limit in [1, 2] {
        check(&two_at_two_times(10), &[], Some(limit), &[in_order(1)]);
    }
    check(&two_at_two_times(20), &[UserChange::DeletePod], Some(1), &[in_order(2)]);
    check(&of_a_rule(&["p", "q", "s", "t", "u"]), &[], Some(20), &[in_order(0)]);
}

/// A leader that stores the number too late lets the next one exceed the limit.
#[test]
fn limit_that_is_lost_with_its_leader_breaks_the_law() {
    for limit in [1, 2] {
        let objects = three_of_a_rule();
        let left = Left { in_order: true, ..one_worker(left(0, 1, 0, 0)) };
        let mutation = Some(Mutation::LosesLimits);
        let broken = Configuration { objects, changes: &[], left, limit: Some(limit), mutation };
        let checker = broken.checker().finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
        let law = checker.discoveries().into_values().find_map(|path| {
            let mut world = path.last_state().world.clone();
            if world.broken.is_none() && world.running.is_empty() {
                world.settle();
            }
            world.broken
        });
        assert!(law.as_ref().is_some_and(|law| law.starts_with(counts::BEYOND_LIMIT)), "limit {limit}: {law:?}");
    }
}

/// A world that deletes the wrong pod, forgets pods or items, or hides late conditions of the limit breaks a law.
#[test]
fn broken_worlds_break_a_law() {
    let replaced = |mutation| Configuration {
        objects: tainted(),
        changes: &[UserChange::DeletePod, UserChange::ReplacePod],
        left: left(0, 0, 0, 0),
        limit: None,
        mutation: Some(mutation),
    };
    let limited = Configuration {
        objects: two_of_a_rule(),
        changes: &[],
        left: one_worker(left(0, 1, 0, 0)),
        limit: Some(1),
        mutation: Some(Mutation::HidesLateLimits),
    };
    let others = [Mutation::IgnoresUid, Mutation::ForgetsMarks, Mutation::ForgetsItems].map(replaced);
    for broken in others.into_iter().chain([limited]) {
        let mutation = broken.mutation;
        let checker = broken.checker().finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
        let broken = checker.discoveries().keys().any(|name| *name != "the controller rests after all changes");
        assert!(broken, "no law noticed {mutation:?}");
    }
}
