//! The laws of the controller under random orders of events, passes that interleave, failed calls, lost answers, lagging watches, lists
//! and restarts.

use std::time::Duration;

use proptest::prelude::*;

use super::world::{CLAIMS, KINDS, Outcome, World, consumers};
use super::*;
use crate::resource_claim::owners::{OwnerId, is_done, node_name};

const PODS: [&str; 3] = ["p", "q", "r"];
const TEMPLATES: [&str; 2] = ["tpl", "tpl-2"];
#[derive(Clone, Debug)]
enum Action {
    Show(usize),
    List(usize),
    BeginList,
    EndList,
    Begin(u8),
    Step(u8, Outcome),
    LoseWorker {
        pass: u8,
        is_performed: bool,
    },
    Restart {
        are_performed: bool,
    },
    /// The process loses its lease, and leads again.
    NextTerm {
        are_performed: bool,
    },
    /// A short time passes.
    Tick,
    PerformLate(u8),
    Wait,
    CreatePod(u8),
    Bind(u8),
    End(u8),
    DeletePod(u8),
    /// A pod on a node is being deleted, and its containers still run.
    BeginDeletion(u8),
    /// A client that does not know the names of claims writes the status of a pod.
    EraseNames(u8),
    PutTemplate(u8),
    RemoveTemplate(u8),
    Allocate(u8),
    Reserve {
        pod: u8,
        claim: u8,
    },
    DeleteClaim(u8),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let outcome = prop_oneof![
        6 => Just(Outcome::Performed),
        1 => Just(Outcome::Refused),
        1 => any::<bool>().prop_map(|is_performed| Outcome::Lost { is_performed }),
        1 => Just(Outcome::Late),
    ];
    let action = prop_oneof![
        10 => (0..KINDS).prop_map(Action::Show),
        1 => (0..KINDS).prop_map(Action::List),
        1 => Just(Action::BeginList),
        2 => Just(Action::EndList),
        8 => any::<u8>().prop_map(Action::Begin),
        14 => (any::<u8>(), outcome).prop_map(|(pass, outcome)| Action::Step(pass, outcome)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(pass, is_performed)| Action::LoseWorker { pass, is_performed }),
        1 => any::<bool>().prop_map(|are_performed| Action::Restart { are_performed }),
        1 => any::<bool>().prop_map(|are_performed| Action::NextTerm { are_performed }),
        3 => Just(Action::Tick),
        2 => any::<u8>().prop_map(Action::PerformLate),
        1 => Just(Action::Wait),
        4 => any::<u8>().prop_map(Action::CreatePod),
        2 => any::<u8>().prop_map(Action::Bind),
        1 => any::<u8>().prop_map(Action::End),
        1 => any::<u8>().prop_map(Action::DeletePod),
        1 => any::<u8>().prop_map(Action::BeginDeletion),
        1 => any::<u8>().prop_map(Action::EraseNames),
        3 => any::<u8>().prop_map(Action::PutTemplate),
        1 => any::<u8>().prop_map(Action::RemoveTemplate),
        3 => any::<u8>().prop_map(Action::Allocate),
        3 => (any::<u8>(), any::<u8>()).prop_map(|(pod, claim)| Action::Reserve { pod, claim }),
        1 => any::<u8>().prop_map(Action::DeleteClaim),
    ];
    proptest::collection::vec(action, 0..150)
}

/// A world that users change.
struct UserWorld {
    world: World,
    pods: u32,
}

fn nth<T: Clone>(of: impl IntoIterator<Item = T>, number: u8) -> Option<T> {
    let all: Vec<_> = of.into_iter().collect();
    (!all.is_empty()).then(|| all[usize::from(number) % all.len()].clone())
}

fn index<T>(of: &[T], number: u8) -> Option<usize> {
    (!of.is_empty()).then(|| usize::from(number) % of.len())
}

impl UserWorld {
    fn new() -> Self {
        let objects = [Object::from(group("g", &[("res", "tpl")])), template("tpl").into()];
        UserWorld { world: World::new(objects), pods: 0 }
    }

    fn edit_pod(&mut self, number: u8, edit: impl FnOnce(Pod) -> Pod) {
        if let Some(pod) = nth(self.world.server.pods.values().cloned(), number) {
            self.world.server.put(edit(pod).into());
        }
    }

    fn edit_claim(&mut self, number: u8, edit: impl FnOnce(ResourceClaim) -> ResourceClaim) {
        if let Some(claim) = nth(self.world.server.claims.values().cloned(), number) {
            self.world.server.put(edit(claim).into());
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Show(kind) => self.world.show(kind),
            Action::List(kind) => self.world.list(kind),
            Action::BeginList => self.world.begin_list(),
            Action::EndList => self.world.end_list(),
            Action::Begin(number) => {
                if let Some(key) = nth(self.world.idle().cloned(), number) {
                    self.world.begin(key);
                }
            }
            Action::Step(number, outcome) => {
                if let Some(at) = index(&self.world.running, number) {
                    self.world.step(at, outcome);
                }
            }
            Action::LoseWorker { pass, is_performed } => {
                if let Some(at) = index(&self.world.running, pass) {
                    self.world.lose_worker(at, is_performed);
                }
            }
            Action::Restart { are_performed } => self.world.restart(are_performed),
            Action::NextTerm { are_performed } => self.world.next_term(are_performed),
            Action::Tick => self.world.pass_time(Duration::from_secs(3)),
            Action::PerformLate(number) => {
                if let Some(at) = index(&self.world.late, number) {
                    self.world.perform_late(at);
                }
            }
            Action::Wait => self.world.pass_time(Duration::from_secs(31)),
            Action::CreatePod(number) => {
                let name = PODS[usize::from(number) % PODS.len()];
                if !self.world.server.pods.contains_key(&object(name)) {
                    self.pods += 1;
                    let mut new = pod(name, &[("res", "tpl"), ("own", "tpl-2"), ("none", "tpl")]);
                    new = recorded(new, &[("none", None)]);
                    new.metadata.uid = Some(format!("pod-{}", self.pods));
                    let new = if name == "r" { in_group(new, "g") } else { new };
                    self.world.server.put(new.into());
                }
            }
            Action::Bind(number) => self.edit_pod(number, on_node),
            Action::End(number) => self.edit_pod(number, |pod| in_phase(pod, "Succeeded")),
            Action::DeletePod(number) => {
                if let Some(pod) = nth(self.world.server.pods.values().cloned().collect::<Vec<_>>(), number) {
                    self.world.server.remove(&pod.into());
                }
            }
            Action::BeginDeletion(number) => {
                self.edit_pod(number, |pod| if node_name(&pod).is_some() { deleting(pod) } else { pod });
            }
            Action::EraseNames(number) => {
                if let Some(pod) = nth(self.world.server.pods.values().cloned(), number) {
                    self.world.server.erase_names(pod);
                }
            }
            Action::PutTemplate(number) => self.world.server.put(template(TEMPLATES[usize::from(number) % 2]).into()),
            Action::RemoveTemplate(number) => {
                self.world.server.remove(&template(TEMPLATES[usize::from(number) % 2]).into())
            }
            Action::Allocate(number) => self.edit_claim(number, |claim| with_finalizer(allocated(claim))),
            Action::Reserve { pod, claim } => {
                let alive: Vec<_> = self.world.server.pods.values().filter(|pod| !is_done(pod)).cloned().collect();
                let Some(pod) = nth(alive, pod) else { return };
                let id = pod_owner(&pod).id();
                let own = self
                    .world
                    .server
                    .claims
                    .values()
                    .filter(|claim| OwnerId::of_claim(&claim.metadata).as_ref() == Some(&id));
                let Some(mut claim) = nth(own.cloned().collect::<Vec<_>>(), claim) else { return };
                if !consumers(&claim).contains(&id.uid) && claim.metadata.deletion_timestamp.is_none() {
                    let status = claim.status.get_or_insert_default();
                    status.reserved_for.get_or_insert_default().push(consumer(&pod));
                    self.world.server.put(claim.into());
                }
            }
            Action::DeleteClaim(number) => {
                if let Some(key) = nth(self.world.server.claims.keys().cloned().collect::<Vec<_>>(), number) {
                    self.world.server.delete_claim(&key);
                }
            }
        }
        self.world.collect_events();
    }
}

/// The first law that is broken by the actions, or afterwards, when the watches catch up and nothing fails any more.
fn broken_law(actions: Vec<Action>) -> Option<String> {
    let mut run = UserWorld::new();
    for action in actions {
        run.act(action);
        if run.world.broken.is_some() {
            return run.world.broken;
        }
    }
    TEMPLATES.iter().for_each(|name| run.world.server.put(template(name).into()));
    run.world.collect_events();
    run.world.settle();
    run.world.broken
}

proptest! {
    #![proptest_config(podwright_random::cases(600))]

    /// No claim of a pod or group has two claims, no entry of a status gets lost unless a client erases it, no consumer that runs is
    /// dropped, nothing is reserved for a pod that has ended, and in the end each pod has its claims.
    #[test]
    fn laws_hold_under_every_order(actions in actions()) {
        prop_assert_eq!(broken_law(actions), None);
    }
}

/// The pod q has a new claim, and the write of its status is in flight. The write also has the entry that says that another claim of
/// the spec is not needed.
fn writing_status() -> Vec<Action> {
    use Outcome::Performed;
    vec![
        Action::Begin(0),
        Action::Step(0, Performed),
        Action::CreatePod(1),
        Action::Show(0),
        Action::Begin(0),
        Action::Step(1, Performed),
    ]
}

/// The write of the term that has ended brings back an entry that a client has erased. The next term has seen the pod without the
/// entry, and has generated the claim.
#[test]
fn claim_replaces_an_erased_entry_that_a_write_of_the_last_term_brings_back() {
    let mut actions = writing_status();
    actions.extend([
        Action::CreatePod(0),
        Action::EraseNames(1),
        Action::NextTerm { are_performed: true },
        // The claims of g and q, the pods p and q, and the group.
        Action::Begin(3),
    ]);
    assert_eq!(broken_law(actions), None);
}

/// The write brings back the entry that a client has erased, but its answer is lost, and the watch shows only that the entry is erased.
#[test]
fn claim_replaces_an_erased_entry_that_a_write_without_an_answer_brings_back() {
    let mut actions = writing_status();
    actions.extend([
        Action::EraseNames(0),
        Action::Step(1, Outcome::Lost { is_performed: true }),
        Action::Show(0),
        Action::Begin(0),
        Action::Step(1, Outcome::Performed),
        Action::Step(1, Outcome::Performed),
    ]);
    assert_eq!(broken_law(actions), None);
}

/// A read has shown that the first claim of the group was deleted, and the next create has no answer. Then the watch shows the first claim,
/// and later its deletion. That claim says nothing about the create, which the server performs at last.
#[test]
fn claim_that_was_read_as_deleted_settles_no_create_when_the_watch_shows_it() {
    use Outcome::{Late, Performed, Refused};
    let actions = vec![
        Action::Begin(0),
        Action::Step(0, Performed),
        // No watch has shown the claim for 31 s, so the next pass reads it.
        Action::Wait,
        Action::Step(0, Refused),
        Action::Begin(0),
        Action::DeleteClaim(0),
        Action::Step(0, Performed),
        Action::Step(0, Late),
        Action::Tick,
        Action::Show(CLAIMS),
        // The claim and the group.
        Action::Begin(47),
        Action::Show(CLAIMS),
        Action::LoseWorker { pass: 0, is_performed: false },
        Action::Begin(137),
    ];
    assert_eq!(broken_law(actions), None);
}

/// The server has performed a create without an answer, and a user has deleted the claim before a list. So the next pass creates another
/// one, again without an answer. Then the watch shows the first claim, and later its deletion.
#[test]
fn deleted_claim_of_one_lost_create_does_not_settle_the_next_one() {
    use Outcome::{Late, Lost, Performed};
    let of_group = (vec![], 3);
    let of_pod = (vec![Action::CreatePod(0), Action::Show(0)], 0);
    for (mut actions, kind) in [of_group, of_pod] {
        actions.extend([
            Action::Begin(0),
            Action::Step(0, Lost { is_performed: true }),
            Action::DeleteClaim(0),
            Action::Wait,
            Action::Begin(0),
            // The list, and the create.
            Action::Step(0, Performed),
            Action::Step(0, Late),
            Action::Show(CLAIMS),
            // After the claim, the owner is the first one in the queue.
            Action::Begin(1),
            Action::Step(0, Performed),
            Action::Show(CLAIMS),
            Action::Show(kind),
            Action::Begin(1),
        ]);
        assert_eq!(broken_law(actions), None);
    }
}

/// A pass is dropped 31 s after it has sent a create, and the server performs the create after the list of the next pass.
#[test]
fn create_of_a_dropped_pass_may_be_performed_after_the_drop() {
    let actions = vec![
        Action::Begin(0),
        Action::Wait,
        Action::LoseWorker { pass: 0, is_performed: true },
        Action::Begin(0),
        Action::Step(0, Outcome::Performed),
    ];
    assert_eq!(broken_law(actions), None);
}
