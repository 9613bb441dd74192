//! One step of the operations on claims.
//!
//! ```text
//!                      +--> refused: an earlier claim of the name
//!  Prepare --> Queued -+--> Recording --saved--> Called --answers--> Saving --saved--> Done
//!                               +--not saved--> undone, Done with a fault
//!
//!  Release, each claim: Queued --> other pods remain: Saving -----------------------------> Done
//!                              +-> last pod: Called --all succeeded--> Saving, then removed --> Done
//!                                              +--one failed--> the claim stays, Done with a fault
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::fault::{ClaimFault, DriverAnswer};
use super::record::{ClaimRecord, NeededClaim, ReleaseDuty};
use super::table::{ClaimTable, ClaimWork, Operation, OperationId, OperationKind, Stage};
use crate::ids::{ClaimName, DriverName, PodUid};
use crate::ports::{ClaimRef, PreparedDevice};

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A pod needs its claims. All of them have been checked.
    Prepare {
        /// The operation.
        operation: OperationId,
        /// The pod.
        pod: PodUid,
        /// The claims, each once.
        claims: Vec<NeededClaim>,
    },
    /// A pod has stopped, and no longer needs its claims.
    Release {
        /// The operation.
        operation: OperationId,
        /// The pod.
        pod: PodUid,
    },
    /// An operator gives a driver up: claims are released without it.
    GiveUp {
        /// The operation.
        operation: OperationId,
        /// The claim.
        claim: ClaimName,
        /// The driver.
        driver: DriverName,
    },
    /// A driver has answered a call, or the call has failed or timed out. A successful unprepare has no devices.
    Answered {
        /// The operation of the call.
        operation: OperationId,
        /// The driver.
        driver: DriverName,
        /// The claims of the call.
        claims: Vec<ClaimRef>,
        /// The checked answer.
        answer: DriverAnswer<Vec<PreparedDevice>>,
    },
    /// The file contains all changes up to a version.
    Saved(u64),
    /// The file could not be written. It may contain some of the changes up to the version.
    NotSaved {
        /// The version.
        version: u64,
        /// The error.
        error: String,
    },
}

/// What the step asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Write the unsaved claims, and report [`Event::Saved`] or [`Event::NotSaved`].
    Save,
    /// Call a driver, and report [`Event::Answered`].
    Call {
        /// The operation.
        operation: OperationId,
        /// The driver.
        driver: DriverName,
        /// The method.
        method: Method,
        /// The claims.
        claims: Vec<ClaimRef>,
    },
    /// The operation has ended. It succeeded if there is no fault.
    Done {
        /// The operation.
        operation: OperationId,
        /// Why it failed.
        faults: Vec<ClaimFault>,
    },
}

/// A method of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Makes devices ready.
    Prepare,
    /// Gives devices back.
    Unprepare,
}

impl ClaimTable {
    /// One step. Total: no I/O, no clock, no panic.
    #[must_use]
    pub fn step(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Prepare { operation, pod, claims } => {
                let needed: BTreeMap<_, _> = claims.into_iter().map(|claim| (claim.name.clone(), claim)).collect();
                let names = needed.keys().cloned().collect();
                self.enqueue(operation, pod, OperationKind::Prepare(needed), names);
            }
            Event::Release { operation, pod } => {
                self.withdraw(&pod, &mut effects);
                // A prepare of the pod that has begun has recorded its references.
                let names = self.claims_of(&pod).map(|(name, _)| name.clone()).collect();
                self.enqueue(operation, pod, OperationKind::Release, names);
                self.end_if_done(operation, &mut effects);
            }
            Event::GiveUp { operation, claim, driver } => {
                let pod = PodUid::new("");
                self.enqueue(operation, pod, OperationKind::GiveUp(driver), BTreeSet::from([claim]));
            }
            Event::Answered { operation, driver, claims, answer } => {
                self.answered(operation, &driver, &claims, answer, &mut effects);
            }
            Event::Saved(version) => self.saved(version, None, &mut effects),
            Event::NotSaved { version, error } => {
                self.saved(version, Some(&ClaimFault::NotSaved(error)), &mut effects);
            }
        }
        while let Some(operation) = self.next_ready() {
            self.begin(operation, &mut effects);
        }
        effects
    }

    /// Ends the prepares of a pod that have not begun, because the pod stops.
    fn withdraw(&mut self, pod: &PodUid, effects: &mut Vec<Effect>) {
        let is_waiting = |operation: &Operation| {
            operation.pod == *pod
                && operation.stage == Stage::Queued
                && matches!(operation.kind, OperationKind::Prepare(_))
        };
        let waiting: Vec<_> = self.operations.iter().filter(|(_, o)| is_waiting(o)).map(|(id, _)| *id).collect();
        for id in waiting {
            self.leave_all(id);
            self.operations.remove(&id);
            effects.push(Effect::Done { operation: id, faults: Vec::new() });
        }
    }

    fn begin(&mut self, id: OperationId, effects: &mut Vec<Effect>) {
        let Some(operation) = self.operations.get(&id) else { return };
        let pod = operation.pod.clone();
        match operation.kind.clone() {
            OperationKind::Prepare(needed) => self.begin_prepare(id, &pod, &needed, effects),
            OperationKind::Release => self.begin_release(id, &pod, effects),
            OperationKind::GiveUp(driver) => self.give_up(id, &driver, effects),
        }
    }

    /// Adds the references of the pod.
    fn begin_prepare(
        &mut self,
        id: OperationId,
        pod: &PodUid,
        needed: &BTreeMap<ClaimName, NeededClaim>,
        effects: &mut Vec<Effect>,
    ) {
        let replaced = needed.values().filter_map(|claim| {
            let old = self.records.get(&claim.name)?;
            if old.uid != claim.uid {
                return Some(ClaimFault::Replaced { claim: claim.name.clone(), old: old.uid.clone() });
            }
            // A deleted pod may still use the devices of an earlier allocation.
            let is_reallocated = old.results.as_ref().is_some_and(|results| *results != claim.results);
            let is_used = old.pods.iter().any(|other| other != pod);
            (is_reallocated && is_used).then(|| ClaimFault::Reallocated { claim: claim.name.clone() })
        });
        let faults: Vec<_> = replaced.collect();
        if !faults.is_empty() {
            self.end(id, faults, effects);
            return;
        }
        let mut added = BTreeSet::new();
        for claim in needed.values() {
            let is_new = !self.records.contains_key(&claim.name);
            let record = self.records.entry(claim.name.clone()).or_insert_with(|| ClaimRecord::new(claim.uid.clone()));
            let mut is_changed = is_new;
            if record.results.as_ref().is_some_and(|results| *results != claim.results) {
                // The drivers of the earlier allocation stay until the release, without devices for containers.
                record.is_prepared = false;
                record.drivers.values_mut().for_each(|driver| driver.devices.clear());
                is_changed = true;
            }
            record.results = Some(claim.results.clone());
            for driver in &claim.drivers {
                if !record.drivers.contains_key(driver) {
                    record.drivers.insert(driver.clone(), Default::default());
                    record.is_prepared = false;
                    is_changed = true;
                }
            }
            if self.add_pod(&claim.name, pod) {
                added.insert(claim.name.clone());
                is_changed = true;
            }
            if is_changed {
                self.changed(&claim.name);
            }
        }
        let must_save = needed.keys().any(|name| self.unsaved.contains_key(name));
        let version = self.version;
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.stage = Stage::Recording { version, added };
        }
        if must_save {
            effects.push(Effect::Save);
        } else {
            self.call_to_prepare(id, effects);
        }
    }

    /// Calls the drivers of all claims that are not prepared. The references are on disk.
    fn call_to_prepare(&mut self, id: OperationId, effects: &mut Vec<Effect>) {
        let Some(operation) = self.operations.get(&id) else { return };
        let OperationKind::Prepare(needed) = operation.kind.clone() else { return };
        let mut work = BTreeMap::new();
        let mut calls = Calls::new();
        for claim in needed.values() {
            let Some(record) = self.records.get_mut(&claim.name).filter(|record| !record.is_prepared) else { continue };
            for driver in &claim.drivers {
                add_call(&mut calls, driver, &claim.name, record);
            }
            if claim.drivers.is_empty() {
                record.is_prepared = true;
            } else {
                let called = ClaimWork::Called { waiting: claim.drivers.clone(), failed: false };
                work.insert(claim.name.clone(), called);
            }
        }
        self.work(id, needed.keys().cloned().collect(), work, calls, Method::Prepare, effects);
    }

    /// Releases the claims in whose queues the release is the first now.
    fn begin_release(&mut self, id: OperationId, pod: &PodUid, effects: &mut Vec<Effect>) {
        let names: BTreeSet<_> = self.ready_claims(id).cloned().collect();
        let mut work = BTreeMap::new();
        let mut calls = Calls::new();
        for name in names.iter().cloned() {
            let Some(record) = self.records.get_mut(&name).filter(|record| record.pods.contains(pod)) else { continue };
            if record.pods.len() > 1 {
                self.remove_pod(&name, pod);
                self.changed(&name);
                work.insert(name, ClaimWork::Saving { version: self.version, removes: false });
                continue;
            }
            record.is_prepared = false;
            let waiting: BTreeSet<_> = record.drivers_to_unprepare().cloned().collect();
            if waiting.is_empty() {
                self.changed(&name);
                work.insert(name, ClaimWork::Saving { version: self.version, removes: true });
                continue;
            }
            for driver in &waiting {
                add_call(&mut calls, driver, &name, record);
            }
            work.insert(name, ClaimWork::Called { waiting, failed: false });
        }
        self.work(id, names, work, calls, Method::Unprepare, effects);
    }

    fn give_up(&mut self, id: OperationId, driver: &DriverName, effects: &mut Vec<Effect>) {
        let names = self.operations.get(&id).map(|operation| operation.claims.clone()).unwrap_or_default();
        let mut work = BTreeMap::new();
        for name in names.iter().cloned() {
            let record = self.records.get_mut(&name).and_then(|record| record.drivers.get_mut(driver));
            let Some(record) = record.filter(|record| record.duty == ReleaseDuty::Unprepare) else { continue };
            record.duty = ReleaseDuty::GivenUp;
            self.changed(&name);
            work.insert(name, ClaimWork::Saving { version: self.version, removes: false });
        }
        self.work(id, names, work, Calls::new(), Method::Unprepare, effects);
    }

    /// Sets the work of an operation on these claims. A claim without work leaves the operation.
    fn work(
        &mut self,
        id: OperationId,
        begun: BTreeSet<ClaimName>,
        work: BTreeMap<ClaimName, ClaimWork>,
        calls: Calls,
        method: Method,
        effects: &mut Vec<Effect>,
    ) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        let idle: Vec<_> = begun.into_iter().filter(|name| !work.contains_key(name)).collect();
        if work.values().any(|work| matches!(work, ClaimWork::Saving { .. })) {
            effects.push(Effect::Save);
        }
        match &mut operation.stage {
            Stage::Working(works) => {
                works.extend(work);
                idle.iter().for_each(|name| {
                    works.remove(name);
                });
            }
            stage @ (Stage::Queued | Stage::Recording { .. }) => *stage = Stage::Working(work),
        }
        for (driver, claims) in calls {
            effects.push(Effect::Call { operation: id, driver, method, claims });
        }
        for name in idle {
            self.leave(id, &name);
        }
        self.end_if_done(id, effects);
    }

    fn answered(
        &mut self,
        id: OperationId,
        driver: &DriverName,
        claims: &[ClaimRef],
        mut answer: DriverAnswer<Vec<PreparedDevice>>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        operation.faults.append(&mut answer.faults);
        let is_prepare = matches!(operation.kind, OperationKind::Prepare(_));
        let Stage::Working(works) = &mut operation.stage else { return };
        let mut all_answered = Vec::new();
        for claim in claims {
            let Some(ClaimWork::Called { waiting, failed }) = works.get_mut(&claim.name) else { continue };
            let devices = answer.succeeded.remove(&claim.name);
            *failed |= devices.is_none();
            waiting.remove(driver);
            if waiting.is_empty() {
                all_answered.push((claim.name.clone(), *failed));
            }
            let record = self.records.get_mut(&claim.name).and_then(|record| record.drivers.get_mut(driver));
            if let (true, Some(record)) = (is_prepare, record) {
                let was_given_up = record.duty == ReleaseDuty::GivenUp;
                match devices {
                    Some(devices) => {
                        record.duty = ReleaseDuty::Unprepare;
                        if was_given_up || record.devices != devices {
                            record.devices = devices;
                            self.version += 1;
                            self.unsaved.insert(claim.name.clone(), self.version);
                        }
                    }
                    // A driver that an operator gave up stays given up until it prepares the claim.
                    None if was_given_up || answer.is_unsent => {}
                    None => record.duty = ReleaseDuty::Unprepare,
                }
            }
        }
        for (name, failed) in all_answered {
            self.all_answered(id, &name, is_prepare, failed, effects);
        }
        self.end_if_done(id, effects);
    }

    /// All drivers of a claim have answered.
    fn all_answered(
        &mut self,
        id: OperationId,
        name: &ClaimName,
        is_prepare: bool,
        failed: bool,
        effects: &mut Vec<Effect>,
    ) {
        let mut removes = false;
        if let Some(record) = self.records.get_mut(name).filter(|_| !failed) {
            if is_prepare {
                record.is_prepared = true;
            } else {
                record.drivers.values_mut().for_each(|driver| driver.duty = ReleaseDuty::None);
                removes = true;
                self.changed(name);
            }
        }
        let version = self.version;
        let is_unsaved = self.unsaved.contains_key(name);
        let Some(Stage::Working(works)) = self.operations.get_mut(&id).map(|operation| &mut operation.stage) else {
            return;
        };
        if is_unsaved {
            works.insert(name.clone(), ClaimWork::Saving { version, removes });
            effects.push(Effect::Save);
        } else {
            works.remove(name);
            self.leave(id, name);
        }
    }

    /// The file was written up to a version, or could not be.
    fn saved(&mut self, saved: u64, fault: Option<&ClaimFault>, effects: &mut Vec<Effect>) {
        if fault.is_none() {
            self.unsaved.retain(|_, version| *version > saved);
        }
        let ids: Vec<_> = self.operations.keys().copied().collect();
        for id in ids {
            let Some(operation) = self.operations.get_mut(&id) else { continue };
            match &mut operation.stage {
                Stage::Recording { version, added } if *version <= saved => {
                    let added = std::mem::take(added);
                    match fault {
                        None => self.call_to_prepare(id, effects),
                        Some(fault) => {
                            self.undo(id, &added);
                            self.end(id, vec![fault.clone()], effects);
                        }
                    }
                }
                Stage::Working(works) => {
                    let is_saved =
                        |work: &ClaimWork| matches!(work, ClaimWork::Saving { version, .. } if *version <= saved);
                    let done: Vec<_> =
                        works.iter().filter(|(_, work)| is_saved(work)).map(|(name, _)| name.clone()).collect();
                    if done.is_empty() {
                        continue;
                    }
                    let done: Vec<_> = done.into_iter().map(|name| (works.remove(&name), name)).collect();
                    operation.faults.extend(fault.filter(|fault| !operation.faults.contains(fault)).cloned());
                    let released = (operation.kind == OperationKind::Release).then(|| operation.pod.clone());
                    for (work, name) in done {
                        let removes = matches!(work, Some(ClaimWork::Saving { removes: true, .. }));
                        match (fault, &released) {
                            (None, _) if removes => self.remove_record(&name),
                            // The pod holds the claim until the file no longer has its reference.
                            (Some(_), Some(pod)) if !removes && self.add_pod(&name, pod) => self.changed(&name),
                            (None | Some(_), _) => {}
                        }
                        self.leave(id, &name);
                    }
                    self.end_if_done(id, effects);
                }
                Stage::Queued | Stage::Recording { .. } => {}
            }
        }
    }

    /// Removes the references that could not be written. No driver was called for them.
    fn undo(&mut self, id: OperationId, added: &BTreeSet<ClaimName>) {
        let Some(pod) = self.operations.get(&id).map(|operation| operation.pod.clone()) else { return };
        for name in added {
            self.remove_pod(name, &pod);
            let is_idle =
                |record: &&ClaimRecord| record.pods.is_empty() && record.drivers_to_unprepare().next().is_none();
            if self.records.get(name).filter(is_idle).is_some() {
                self.remove_record(name);
            }
            // The file may have the reference.
            self.changed(name);
        }
    }

    fn end_if_done(&mut self, id: OperationId, effects: &mut Vec<Effect>) {
        let operation = self.operations.get_mut(&id);
        let Some(operation) = operation.filter(|o| matches!(&o.stage, Stage::Working(works) if works.is_empty()))
        else {
            return;
        };
        let faults = std::mem::take(&mut operation.faults);
        self.end(id, faults, effects);
    }

    fn end(&mut self, id: OperationId, faults: Vec<ClaimFault>, effects: &mut Vec<Effect>) {
        self.leave_all(id);
        self.operations.remove(&id);
        effects.push(Effect::Done { operation: id, faults });
    }
}

/// For each driver the claims of its call.
type Calls = BTreeMap<DriverName, Vec<ClaimRef>>;

fn add_call(calls: &mut Calls, driver: &DriverName, name: &ClaimName, record: &ClaimRecord) {
    let claim = ClaimRef { name: name.clone(), uid: record.uid.clone() };
    calls.entry(driver.clone()).or_default().push(claim);
}
