//! The invariants of claims, checked by stateright in every state that small configurations can reach.
//!
//! Pods prepare and release their claims in every order. Drivers succeed, fail before or after they did what was asked, and answer
//! late. An operator gives drivers up, also while they are called. Running pods lose devices, and prepare their claims again. The file is
//! written or not, or written although the write failed. The agent is killed at any point, with calls and a write in flight, and restarts
//! from the file; then the pods whose containers run keep running.

mod properties;
mod scenarios;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

use self::state::{Call, Pod, Snapshot, State, pod_uid};
use crate::claims::fault::{ClaimFault, DriverAnswer};
use crate::claims::record::{NeededClaim, ReleaseDuty};
use crate::claims::step::{Event, Method};
use crate::claims::table::ClaimTable;
use crate::ids::{ClaimName, DriverName};
use crate::ports::{ClaimRef, PreparedDevice};

/// A configuration: the claims that each pod needs, and how many faults, crashes, decisions of an operator and losses of devices may
/// occur.
struct World {
    pods: Vec<Vec<NeededClaim>>,
    faults: u8,
    crashes: u8,
    give_ups: u8,
    losses: u8,
    /// How the step is broken on purpose, to check that the invariants then fail.
    mutation: Option<Mutation>,
}

#[derive(Clone, Copy)]
enum Mutation {
    /// A call to a driver does not wait for the file.
    CallsBeforeFile,
    /// A claim leaves the file before its drivers have answered.
    ForgetsBeforeAnswer,
    /// The end of the call of a driver that was given up is not awaited.
    ForgetsAbandonedCalls,
    /// The claims of a pod whose devices were lost stay prepared.
    IgnoresLostDevices,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Prepare(usize),
    Stop(usize),
    Release(usize),
    LoseDevices(usize),
    BeginSave,
    Saved,
    NotSaved { is_written: bool },
    Answer { call: usize, succeeds: bool, is_done: bool },
    Unsent { call: usize },
    GiveUp { claim: ClaimName, driver: DriverName },
    Crash { is_written: bool, is_done: bool },
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
            may_stay: BTreeSet::new(),
            lost: BTreeSet::new(),
            pods: self.pods.iter().map(|_| Pod::Waiting).collect(),
            operations: 0,
            faults: self.faults,
            crashes: self.crashes,
            give_ups: self.give_ups,
            losses: self.losses,
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
            if *pod == Pod::Running && state.losses > 0 {
                actions.push(Action::LoseDevices(index));
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
        if state.give_ups > 0 {
            for (claim, record) in &state.table.records {
                for (driver, part) in &record.drivers {
                    let is_called = state.table.waiting_for(driver, claim).is_some();
                    if is_called || part.duty == ReleaseDuty::Unprepare {
                        actions.push(Action::GiveUp { claim: claim.clone(), driver: driver.clone() });
                    }
                }
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
            Action::Stop(index) => {
                state.pods[index] = Pod::Stopped;
                state.lost.retain(|(pod, ..)| *pod != index);
            }
            Action::LoseDevices(index) => {
                state.losses -= 1;
                // A container of the pod cannot be created, so the pod prepares its claims again.
                state.pods[index] = Pod::Waiting;
                let parts =
                    self.pods[index].iter().flat_map(|claim| claim.drivers.iter().map(move |driver| (driver, claim)));
                state.lost.extend(parts.map(|(driver, claim)| (index, driver.clone(), claim.uid.clone())));
                if !matches!(self.mutation, Some(Mutation::IgnoresLostDevices)) {
                    state.perform(Event::DevicesLost { pod: pod_uid(index) }, self.mutation);
                }
            }
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
                if succeeds && call.method == Method::Prepare {
                    for claim in &call.claims {
                        if state.is_awaited(&call, claim) {
                            state.may_stay.remove(&(call.driver.clone(), claim.uid.clone()));
                            state.lost.retain(|(_, driver, uid)| (driver, uid) != (&call.driver, &claim.uid));
                        }
                    }
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
                        claims: call.claims.iter().map(|claim| claim.name.clone()).collect(),
                        error: "unavailable".to_owned(),
                    };
                    // A call that was not sent was not performed. Another call that was not performed may have been sent.
                    DriverAnswer { succeeded: BTreeMap::new(), faults: vec![fault], is_unsent }
                };
                let Call { operation, driver, claims, .. } = call;
                state.perform(Event::Answered { operation, driver, claims, answer }, self.mutation);
            }
            Action::GiveUp { claim, driver } => {
                state.give_ups -= 1;
                let uid = state.table.record(&claim)?.uid.clone();
                state.may_stay.insert((driver.clone(), uid));
                let operation = state.next_operation();
                state.perform(Event::GiveUp { operation, claim, driver }, self.mutation);
                if matches!(self.mutation, Some(Mutation::ForgetsAbandonedCalls)) {
                    state.table.abandoned.clear();
                }
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
                // The file may lack that a driver has prepared the claim again.
                for record in state.file.values() {
                    let given_up = record.drivers.iter().filter(|(_, driver)| driver.duty == ReleaseDuty::GivenUp);
                    state.may_stay.extend(given_up.map(|(driver, _)| (driver.clone(), record.uid.clone())));
                }
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
        properties::all()
    }

    fn within_boundary(&self, state: &State) -> bool {
        // Each pod may try a few times.
        let retries = self.faults + self.crashes + 2 * self.give_ups + self.losses;
        state.operations <= 2 * self.pods.len() as u64 + u64::from(retries)
    }
}
