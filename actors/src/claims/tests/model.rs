//! The invariants of claims, checked by stateright in every state that small configurations can reach.
//!
//! Pods prepare and release their claims in every order. Drivers succeed, fail before or after they did what was asked, and answer
//! late. The file is written or not, or written although the write failed. The agent is killed at any point, with calls and a write
//! in flight, and restarts from the file; then the pods whose containers run keep running.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Checker, Model, Property};

use super::{allocated, needed};
use crate::claims::fault::{ClaimFault, DriverAnswer};
use crate::claims::file;
use crate::claims::record::{ClaimRecord, NeededClaim, ReleaseDuty};
use crate::claims::step::{Effect, Event, Method};
use crate::claims::table::{ClaimTable, OperationId};
use crate::ids::{ClaimName, ClaimUid, DriverName, PodUid};
use crate::ports::{ClaimRef, PreparedDevice};

/// A configuration: the claims that each pod needs, and how many faults and crashes may occur.
struct World {
    pods: Vec<Vec<NeededClaim>>,
    faults: u8,
    crashes: u8,
    /// How the step is broken on purpose, to check that the invariants then fail.
    mutation: Option<Mutation>,
}

#[derive(Clone, Copy)]
enum Mutation {
    /// A call to a driver does not wait for the file.
    CallsBeforeFile,
    /// A claim leaves the file before its drivers have answered.
    ForgetsBeforeAnswer,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Pod {
    /// Not prepared, and no operation under way.
    Waiting,
    Preparing(OperationId),
    Running,
    Stopped,
    Releasing(OperationId),
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Call {
    operation: OperationId,
    driver: DriverName,
    method: Method,
    claims: Vec<ClaimRef>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Snapshot {
    version: u64,
    records: Vec<(ClaimName, Option<ClaimRecord>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    table: ClaimTable,
    file: BTreeMap<ClaimName, ClaimRecord>,
    saving: Option<Snapshot>,
    save_requested: bool,
    calls: Vec<Call>,
    prepared: BTreeSet<(DriverName, ClaimUid)>,
    pods: Vec<Pod>,
    operations: OperationId,
    faults: u8,
    crashes: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Prepare(usize),
    Stop(usize),
    Release(usize),
    BeginSave,
    Saved,
    NotSaved { is_written: bool },
    Answer { call: usize, succeeds: bool, is_done: bool },
    Unsent { call: usize },
    Crash { is_written: bool, is_done: bool },
}

fn pod_uid(index: usize) -> PodUid {
    PodUid::new(&format!("p-{index}"))
}

impl State {
    fn perform(&mut self, event: Event, mutation: Option<Mutation>) {
        for effect in self.table.step(event) {
            match effect {
                Effect::Save => self.save_requested = true,
                Effect::Call { operation, driver, method, claims } => {
                    if matches!((mutation, method), (Some(Mutation::ForgetsBeforeAnswer), Method::Unprepare)) {
                        claims.iter().for_each(|claim| {
                            self.file.remove(&claim.name);
                        });
                    }
                    self.calls.push(Call { operation, driver, method, claims });
                }
                Effect::Done { operation, faults } => self.done(operation, faults.is_empty()),
                Effect::Released(_) => {}
            }
        }
        self.calls.sort_by_key(|call| (call.operation, call.driver.clone()));
        if matches!(mutation, Some(Mutation::CallsBeforeFile)) && self.save_requested && self.saving.is_none() {
            self.save_requested = false;
            let version = self.table.unsaved().0;
            self.perform(Event::Saved(version), None);
        }
        if self.table.operations.is_empty() && self.table.unsaved.is_empty() {
            // States that differ only in version numbers are equal.
            self.table.version = 0;
            self.save_requested = false;
        }
    }

    fn done(&mut self, operation: OperationId, success: bool) {
        for pod in &mut self.pods {
            *pod = match (&*pod, success) {
                (Pod::Preparing(id), true) if *id == operation => Pod::Running,
                (Pod::Preparing(id), false) if *id == operation => Pod::Waiting,
                (Pod::Releasing(id), true) if *id == operation => Pod::Gone,
                (Pod::Releasing(id), false) if *id == operation => Pod::Stopped,
                _ => continue,
            };
        }
    }

    fn apply(&mut self, call: &Call) {
        for claim in &call.claims {
            let key = (call.driver.clone(), claim.uid.clone());
            match call.method {
                Method::Prepare => self.prepared.insert(key),
                Method::Unprepare => self.prepared.remove(&key),
            };
        }
    }

    fn write(&mut self, snapshot: &Snapshot) {
        for (name, record) in &snapshot.records {
            match record {
                Some(record) => self.file.insert(name.clone(), on_disk(name, record)),
                None => self.file.remove(name),
            };
        }
    }

    fn next_operation(&mut self) -> OperationId {
        self.operations += 1;
        self.operations
    }
}

/// The record as a later agent reads it.
fn on_disk(name: &ClaimName, record: &ClaimRecord) -> ClaimRecord {
    let mut read = file::read(&[file::write(name, Some(record))]).expect("a written record can be read");
    read.remove(name).expect("the record is of this claim")
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            table: ClaimTable::default(),
            file: BTreeMap::new(),
            saving: None,
            save_requested: false,
            calls: Vec::new(),
            prepared: BTreeSet::new(),
            pods: self.pods.iter().map(|_| Pod::Waiting).collect(),
            operations: 0,
            faults: self.faults,
            crashes: self.crashes,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, pod) in state.pods.iter().enumerate() {
            match pod {
                Pod::Waiting => actions.extend([Action::Prepare(index), Action::Stop(index)]),
                Pod::Preparing(_) | Pod::Running => actions.push(Action::Stop(index)),
                Pod::Stopped => actions.push(Action::Release(index)),
                Pod::Releasing(_) | Pod::Gone => {}
            }
        }
        let may_fail = state.faults > 0;
        match &state.saving {
            None if state.save_requested => actions.push(Action::BeginSave),
            None => {}
            Some(_) => {
                actions.push(Action::Saved);
                if may_fail {
                    actions.extend([true, false].map(|is_written| Action::NotSaved { is_written }));
                }
            }
        }
        for call in 0..state.calls.len() {
            actions.push(Action::Answer { call, succeeds: true, is_done: true });
            if may_fail {
                actions.extend([true, false].map(|is_done| Action::Answer { call, succeeds: false, is_done }));
                actions.push(Action::Unsent { call });
            }
        }
        if state.crashes > 0 {
            let variants = [(true, true), (true, false), (false, true), (false, false)];
            actions.extend(variants.map(|(is_written, is_done)| Action::Crash { is_written, is_done }));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Prepare(index) => {
                let operation = state.next_operation();
                state.pods[index] = Pod::Preparing(operation);
                let claims = self.pods[index].clone();
                state.perform(Event::Prepare { operation, pod: pod_uid(index), claims }, self.mutation);
            }
            Action::Stop(index) => state.pods[index] = Pod::Stopped,
            Action::Release(index) => {
                let operation = state.next_operation();
                state.pods[index] = Pod::Releasing(operation);
                state.perform(Event::Release { operation, pod: pod_uid(index) }, self.mutation);
            }
            Action::BeginSave => {
                state.save_requested = false;
                let (version, records) = state.table.unsaved();
                let records: Vec<_> = records.into_iter().map(|(name, r)| (name.clone(), r.cloned())).collect();
                if records.is_empty() {
                    return Some(state);
                }
                state.saving = Some(Snapshot { version, records });
            }
            Action::Saved => {
                let snapshot = state.saving.take()?;
                state.write(&snapshot);
                state.perform(Event::Saved(snapshot.version), self.mutation);
                state.save_requested |= !state.table.unsaved.is_empty();
            }
            Action::NotSaved { is_written } => {
                state.faults -= 1;
                let snapshot = state.saving.take()?;
                if is_written {
                    state.write(&snapshot);
                }
                let error = "disk full".to_owned();
                state.perform(Event::NotSaved { version: snapshot.version, error }, self.mutation);
                // The write is repeated.
                state.save_requested |= !state.table.unsaved.is_empty();
            }
            Action::Answer { .. } | Action::Unsent { .. } => {
                let (call, succeeds, is_done, is_unsent) = match action {
                    Action::Answer { call, succeeds, is_done } => (call, succeeds, is_done, false),
                    Action::Unsent { call } => (call, false, false, true),
                    _ => return None,
                };
                let call = state.calls.remove(call);
                if is_done {
                    state.apply(&call);
                }
                let answer = if succeeds {
                    let device = PreparedDevice { device: "g0".to_owned(), ..PreparedDevice::default() };
                    let of = |claim: &ClaimRef| (claim.name.clone(), vec![device.clone()]);
                    DriverAnswer {
                        succeeded: call.claims.iter().map(of).collect(),
                        faults: Vec::new(),
                        is_unsent: false,
                    }
                } else {
                    state.faults -= 1;
                    let fault = ClaimFault::Call {
                        driver: call.driver.clone(),
                        claims: Vec::new(),
                        error: "unavailable".to_owned(),
                    };
                    // A call that was not sent was not performed. Another call that was not performed may have been sent.
                    DriverAnswer { succeeded: BTreeMap::new(), faults: vec![fault], is_unsent }
                };
                let Call { operation, driver, claims, .. } = call;
                state.perform(Event::Answered { operation, driver, claims, answer }, self.mutation);
            }
            Action::Crash { is_written, is_done } => {
                state.crashes -= 1;
                if let Some(snapshot) = state.saving.take().filter(|_| is_written) {
                    state.write(&snapshot);
                }
                for call in std::mem::take(&mut state.calls) {
                    if is_done {
                        state.apply(&call);
                    }
                }
                state.table = ClaimTable::restore(state.file.clone());
                state.save_requested = false;
                for (index, pod) in state.pods.iter_mut().enumerate() {
                    match pod {
                        Pod::Preparing(_) => *pod = Pod::Waiting,
                        Pod::Releasing(_) => *pod = Pod::Stopped,
                        // The pass over ended pods releases it.
                        Pod::Gone if state.table.holds(&pod_uid(index)) => *pod = Pod::Stopped,
                        Pod::Waiting | Pod::Running | Pod::Stopped | Pod::Gone => {}
                    }
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a running pod has its devices", |world: &World, state: &State| {
                world.pods.iter().zip(&state.pods).filter(|(_, pod)| **pod == Pod::Running).all(|(claims, _)| {
                    let parts = claims.iter().flat_map(|claim| claim.drivers.iter().map(move |driver| (driver, claim)));
                    parts
                        .into_iter()
                        .all(|(driver, claim)| state.prepared.contains(&(driver.clone(), claim.uid.clone())))
                })
            }),
            Property::always("the file has every claim that a driver has prepared", |_, state: &State| {
                let has = |(driver, uid): &(DriverName, ClaimUid)| {
                    state.file.values().any(|record| record.uid == *uid && record.drivers.contains_key(driver))
                };
                state.prepared.iter().all(has)
            }),
            Property::always("a driver that got a call is not recorded as one that got none", |_, state: &State| {
                let is_unsent = |(driver, uid): &(DriverName, ClaimUid)| {
                    let records = state.file.values().chain(state.table.records.values());
                    let of_claim = records.filter(|record| record.uid == *uid);
                    of_claim.filter_map(|r| r.drivers.get(driver)).any(|driver| driver.duty == ReleaseDuty::NotSent)
                };
                !state.prepared.iter().any(is_unsent)
            }),
            Property::always(
                "no other devices are prepared for a claim that a pod uses",
                |world: &World, state: &State| {
                    let prepares = state.calls.iter().filter(|call| call.method == Method::Prepare);
                    let pods = || world.pods.iter().zip(&state.pods).enumerate();
                    prepares.flat_map(|call| call.claims.iter().map(move |claim| (call, claim))).all(|(call, claim)| {
                        let of = |claims: &[NeededClaim]| claims.iter().find(|one| one.uid == claim.uid).cloned();
                        let caller = state.table.operations.get(&call.operation).map(|operation| operation.pod.clone());
                        let called =
                            pods().find(|(index, _)| Some(pod_uid(*index)) == caller).and_then(|(_, (c, _))| of(c));
                        pods().filter(|(_, (_, pod))| **pod == Pod::Running).all(|(_, (claims, _))| {
                            of(claims).zip(called.as_ref()).is_none_or(|(used, called)| used.results == called.results)
                        })
                    })
                },
            ),
            Property::always("calls for one claim belong to one operation", |_, state: &State| {
                let mut owners = BTreeMap::new();
                let claims = state.calls.iter().flat_map(|call| call.claims.iter().map(move |claim| (call, claim)));
                claims
                    .into_iter()
                    .all(|(call, claim)| *owners.entry(claim.name.clone()).or_insert(call.operation) == call.operation)
            }),
            Property::always("a claim is unprepared only for its last pod", |world: &World, state: &State| {
                let unprepares = state.calls.iter().filter(|call| call.method == Method::Unprepare);
                unprepares.flat_map(|call| &call.claims).all(|claim| {
                    let is_used = world.pods.iter().zip(&state.pods).any(|(claims, pod)| {
                        *pod == Pod::Running && claims.iter().any(|needed| needed.uid == claim.uid)
                    });
                    !is_used && state.table.record(&claim.name).is_none_or(|record| record.pods.len() <= 1)
                })
            }),
            Property::always(
                "the file has the reference of a pod before a driver prepares for it",
                |_, state: &State| {
                    let prepares = state.calls.iter().filter(|call| call.method == Method::Prepare);
                    prepares.flat_map(|call| call.claims.iter().map(move |claim| (call, claim))).all(|(call, claim)| {
                        let Some(operation) = state.table.operations.get(&call.operation) else { return true };
                        state.file.get(&claim.name).is_some_and(|record| record.pods.contains(&operation.pod))
                    })
                },
            ),
            Property::always("a pod that is gone holds nothing", |_, state: &State| {
                let gone = state.pods.iter().enumerate().filter(|(_, pod)| **pod == Pod::Gone);
                gone.into_iter().all(|(index, _)| {
                    let uid = pod_uid(index);
                    // After a failed write, the file may have the pod until the next write.
                    let may_have = |name: &ClaimName| state.table.unsaved.contains_key(name);
                    let is_in_file = state.file.iter().any(|(name, r)| r.pods.contains(&uid) && !may_have(name));
                    !state.table.holds(&uid) && !is_in_file
                })
            }),
            Property::always("nothing is left after the last pod", |_, state: &State| {
                let is_over = state.pods.iter().all(|pod| *pod == Pod::Gone) && state.table.unsaved.is_empty();
                !is_over || state.prepared.is_empty() && state.file.is_empty() && state.table.records.is_empty()
            }),
            Property::always("an operation that waits has something to wait for", |_, state: &State| {
                let is_idle = state.calls.is_empty() && state.saving.is_none() && !state.save_requested;
                !is_idle || state.table.operations.is_empty()
            }),
            Property::sometimes("all pods are gone", |_, state: &State| state.pods.iter().all(|pod| *pod == Pod::Gone)),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        // Each pod may try a few times.
        state.operations <= 2 * self.pods.len() as u64 + u64::from(self.faults) + u64::from(self.crashes)
    }
}

/// Two pods share a claim of two drivers, and one of them has a claim of its own.
fn shared() -> Vec<Vec<NeededClaim>> {
    let cam = needed("cam", "c-1", &["a", "b"]);
    vec![vec![cam.clone(), needed("own", "c-2", &["a"])], vec![cam]]
}

/// The claim of the second pod has replaced that of the first one, under the same name.
fn replaced() -> Vec<Vec<NeededClaim>> {
    vec![vec![needed("cam", "c-1", &["a"])], vec![needed("cam", "c-9", &["a", "b"])]]
}

/// The second pod waits for the claim of the first one, while the third pod overtakes it.
fn overtaken() -> Vec<Vec<NeededClaim>> {
    let (cam, mic) = (needed("cam", "c-1", &["a"]), needed("mic", "c-2", &["a"]));
    vec![vec![cam.clone()], vec![cam, mic.clone()], vec![mic]]
}

/// The control plane has allocated another device to the claim after the first pod was deleted by force.
fn reallocated() -> Vec<Vec<NeededClaim>> {
    ["g0", "g1"].map(|device| vec![allocated("cam", "c-1", &["a"], device)]).into()
}

fn check(pods: Vec<Vec<NeededClaim>>, faults: u8, crashes: u8) -> usize {
    let world = World { pods, faults: faults + podwright_random::depth(), crashes, mutation: None };
    let checker = world.checker().threads(2).spawn_dfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

#[test]
fn shared_claims_keep_the_invariants() {
    let states = check(shared(), 1, 0);
    eprintln!("{states} states");
    assert!(states > 1_000);
}

#[test]
fn replaced_claims_keep_the_invariants() {
    let states = check(replaced(), 1, 1);
    eprintln!("{states} states");
    assert!(states > 1_000);
}

#[test]
fn overtaken_prepares_keep_the_invariants() {
    let states = check(overtaken(), 0, 0);
    eprintln!("{states} states");
    assert!(states > 1_000);
}

#[test]
fn reallocated_claims_keep_the_invariants() {
    let states = check(reallocated(), 1, 1);
    eprintln!("{states} states");
    assert!(states > 1_000);
}

#[test]
fn claims_keep_the_invariants_over_a_crash() {
    let states = check(vec![vec![needed("cam", "c-1", &["a"])]; 2], 1, 1);
    eprintln!("{states} states");
    assert!(states > 1_000);
}

/// A step that calls a driver before the file is written, or forgets a claim too early, breaks an invariant.
#[test]
fn broken_steps_break_an_invariant() {
    for mutation in [Mutation::CallsBeforeFile, Mutation::ForgetsBeforeAnswer] {
        let world =
            World { pods: vec![vec![needed("cam", "c-1", &["a"])]], faults: 1, crashes: 1, mutation: Some(mutation) };
        let checker = world.checker().spawn_dfs().join();
        let broken = checker.discoveries().keys().any(|name| *name != "all pods are gone");
        assert!(broken, "no invariant noticed the broken step");
    }
}
