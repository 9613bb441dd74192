//! The state of the model: the table of claims, its file, the drivers and the pods.

use std::collections::{BTreeMap, BTreeSet};

use super::Mutation;
use crate::claims::file;
use crate::claims::record::ClaimRecord;
use crate::claims::step::{Effect, Event, Method};
use crate::claims::table::{ClaimTable, OperationId};
use crate::ids::{ClaimName, ClaimUid, DriverName, PodUid};
use crate::ports::ClaimRef;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pod {
    /// Not prepared, and no operation under way.
    Waiting,
    Preparing(OperationId),
    Running,
    Stopped,
    Releasing(OperationId),
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) operation: OperationId,
    pub(super) driver: DriverName,
    pub(super) method: Method,
    pub(super) claims: Vec<ClaimRef>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Snapshot {
    pub(super) version: u64,
    pub(super) records: Vec<(ClaimName, Option<ClaimRecord>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) table: ClaimTable,
    pub(super) file: BTreeMap<ClaimName, ClaimRecord>,
    pub(super) saving: Option<Snapshot>,
    pub(super) save_requested: bool,
    pub(super) calls: Vec<Call>,
    pub(super) prepared: BTreeSet<(DriverName, ClaimUid)>,
    /// The claims for which an operator gave the driver up, until the driver has prepared them again. They may stay prepared.
    pub(super) may_stay: BTreeSet<(DriverName, ClaimUid)>,
    /// What pods have lost, until the driver has prepared it again.
    pub(super) lost: BTreeSet<(usize, DriverName, ClaimUid)>,
    pub(super) pods: Vec<Pod>,
    pub(super) operations: OperationId,
    pub(super) faults: u8,
    pub(super) crashes: u8,
    pub(super) give_ups: u8,
    pub(super) losses: u8,
}

pub(super) fn pod_uid(index: usize) -> PodUid {
    PodUid::new(&format!("p-{index}"))
}

impl State {
    pub(super) fn perform(&mut self, event: Event, mutation: Option<Mutation>) {
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

    pub(super) fn apply(&mut self, call: &Call) {
        for claim in &call.claims {
            let key = (call.driver.clone(), claim.uid.clone());
            match call.method {
                Method::Prepare => self.prepared.insert(key),
                Method::Unprepare => self.prepared.remove(&key),
            };
        }
    }

    pub(super) fn write(&mut self, snapshot: &Snapshot) {
        for (name, record) in &snapshot.records {
            match record {
                Some(record) => self.file.insert(name.clone(), on_disk(name, record)),
                None => self.file.remove(name),
            };
        }
    }

    /// Whether the operation of a call waits for its answer for a claim.
    pub(super) fn is_awaited(&self, call: &Call, claim: &ClaimRef) -> bool {
        !self.table.abandoned.contains(&(call.operation, call.driver.clone(), claim.name.clone()))
    }

    pub(super) fn next_operation(&mut self) -> OperationId {
        self.operations += 1;
        self.operations
    }
}

/// The record as a later agent reads it.
fn on_disk(name: &ClaimName, record: &ClaimRecord) -> ClaimRecord {
    let mut read = file::read(&[file::write(name, Some(record))]).expect("a written record can be read");
    read.remove(name).expect("the record is of this claim")
}
