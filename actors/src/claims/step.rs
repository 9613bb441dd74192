//! One step of the operations on claims. Pure.
//!
//! ```text
//!                      +--> refused: an earlier claim of the name
//!  Prepare --> Queued -+--> Recording --saved--> Called --answers--> Saving --saved--> Done
//!                               +--not saved--> undone, Done with a fault
//!
//!  Release, each claim: Queued --> other pods remain: Saving -----------------------------> Done
//!                              +-> last pod: Called --all succeeded--> Saving, then removed --> Done
//!                                              +--one failed--> the claim stays, Done with a fault
//!
//!  GiveUp --> recorded --saved--> Done. A release that is Called continues as if the driver had succeeded, a prepare as if it had failed.
//! ```

mod answers;
mod prepare;
mod release;
mod saved;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::fault::{ClaimFault, DriverAnswer};
use super::record::{ClaimRecord, NeededClaim};
use super::table::{ClaimTable, ClaimWork, OperationId, OperationKind, Stage};
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
    /// A device of a pod is missing on the node: what drivers prepared for the pod is gone.
    DevicesLost {
        /// The pod.
        pod: PodUid,
    },
    /// An operator gives a driver up: the claim is released without it. An operation that waits for its answer continues at once.
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
    /// A pod no longer refers to a claim. A prepare that failed because of that reference may succeed.
    Released(ClaimName),
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
                self.enqueue(operation, pod, OperationKind::Prepare(Arc::new(needed)), names);
            }
            Event::Release { operation, pod } => {
                self.withdraw(&pod, &mut effects);
                // A prepare of the pod that has begun has recorded its references.
                let names = self.claims_of(&pod).map(|(name, _)| name.clone()).collect();
                self.enqueue(operation, pod, OperationKind::Release, names);
                self.end_if_done(operation, &mut effects);
            }
            Event::DevicesLost { pod } => {
                for name in self.pods.get(&pod).into_iter().flatten() {
                    if let Some(record) = self.records.get_mut(name) {
                        record.is_prepared = false;
                    }
                }
            }
            Event::GiveUp { operation, claim, driver } => {
                self.give_up(operation, &claim, &driver, &mut effects);
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

    fn begin(&mut self, id: OperationId, effects: &mut Vec<Effect>) {
        self.overtake(id);
        let Some(operation) = self.operations.get(&id) else { return };
        let pod = operation.pod.clone();
        match operation.kind.clone() {
            OperationKind::Prepare(needed) => self.begin_prepare(id, &pod, &needed, effects),
            OperationKind::Release => self.begin_release(id, &pod, effects),
            OperationKind::GiveUp => {}
        }
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
        let versions = work.values().filter_map(|work| match work {
            ClaimWork::Saving { version, .. } => Some((*version, id)),
            ClaimWork::Queued | ClaimWork::Called { .. } => None,
        });
        let waiting = self.saving.len();
        self.saving.extend(versions);
        if self.saving.len() > waiting {
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
        self.remove_operation(id);
        effects.push(Effect::Done { operation: id, faults });
    }
}

/// For each driver the claims of its call.
type Calls = BTreeMap<DriverName, Vec<ClaimRef>>;

fn add_call(calls: &mut Calls, driver: &DriverName, name: &ClaimName, record: &ClaimRecord) {
    let claim = ClaimRef { name: name.clone(), uid: record.uid.clone() };
    calls.entry(driver.clone()).or_default().push(claim);
}
