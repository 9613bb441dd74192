//! The claims of the node, and the operations on them. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::fault::ClaimFault;
use super::record::{ClaimRecord, NeededClaim};
use crate::ids::{ClaimName, DriverName, PodUid};

/// The number of an operation, unique in the lifetime of the agent.
pub type OperationId = u64;

/// The claims that pods of this node refer to, and the operations on them that have not ended.
///
/// Operations on one claim run one after the other, in the order of their arrival. A prepare of several claims begins when no other
/// operation on any of them comes first, because each driver gets one request with all claims of the pod. A release begins for each
/// claim alone. While a prepare of several claims waits for one of them, other operations on the others overtake it. So a driver that
/// does not answer for one claim delays no operation on another claim. After 16 prepares have overtaken a prepare, the next ones wait
/// for it.
///
/// If an operator gives a driver up before it has answered a call, the operation of the call continues without the answer. The call may
/// still run at the driver. Until it has ended, a prepare that would call the driver for the claim waits, and every other operation may
/// overtake this prepare.
///
/// No two operations wait for each other: a release waits only for operations that have begun and for operations on one claim, and a
/// prepare waits only for releases and for earlier prepares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClaimTable {
    pub(super) records: BTreeMap<ClaimName, ClaimRecord>,
    /// For each pod, the claims whose records refer to it.
    pub(super) pods: BTreeMap<PodUid, BTreeSet<ClaimName>>,
    pub(super) operations: BTreeMap<OperationId, Operation>,
    /// For each pod, its operations.
    operations_of: BTreeMap<PodUid, BTreeSet<OperationId>>,
    /// The calls whose answers nobody awaits, because the driver was given up for the claim. Each stays here until it ends.
    pub(super) abandoned: BTreeSet<(OperationId, DriverName, ClaimName)>,
    /// The operations that wait until the file has a version.
    pub(super) saving: BTreeSet<(u64, OperationId)>,
    /// For each claim, the operations on it. If one runs, it is the first.
    pub(super) queues: BTreeMap<ClaimName, VecDeque<OperationId>>,
    /// Operations that may begin now, because they have arrived, another one has left a queue, or an abandoned call has ended.
    pub(super) candidates: BTreeSet<OperationId>,
    /// The claims whose records in the file are out of date, with the version of their last change.
    pub(super) unsaved: BTreeMap<ClaimName, u64>,
    /// Grows with each change that the file must have.
    pub(super) version: u64,
}

/// The number of prepares that overtake a waiting prepare of several claims. Without a limit, it could wait for ever.
const MOST_OVERTAKEN: u8 = 16;

/// The pod of a claim in the file to which no pod refers. It counts as ended, so that the claim is released. Neither this agent nor a
/// kubelet writes such a claim.
const UNKNOWN_POD: &str = "unknown";

/// An operation on the claims of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Operation {
    pub(super) pod: PodUid,
    pub(super) kind: OperationKind,
    /// The claims that the operation waits for, or works on. A claim leaves when its work is done.
    pub(super) claims: BTreeSet<ClaimName>,
    pub(super) stage: Stage,
    pub(super) faults: Vec<ClaimFault>,
    /// The number of prepares that have overtaken this one.
    overtaken: u8,
}

impl Operation {
    /// Whether this is a prepare that may wait for another claim than the one in whose queue it is.
    fn waits_for_several(&self) -> bool {
        self.stage == Stage::Queued && self.claims.len() > 1
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum OperationKind {
    Prepare(Arc<BTreeMap<ClaimName, NeededClaim>>),
    Release,
    /// In no queue, because it waits for no other operation.
    GiveUp,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Waits for earlier operations on the same claims.
    Queued,
    /// The references are being written, before any driver is called. `added` are the claims that the pod did not refer to before.
    Recording { version: u64, added: BTreeSet<ClaimName> },
    /// The drivers are called, or the results are being written. A release is here from its arrival.
    Working(BTreeMap<ClaimName, ClaimWork>),
}

/// The work on one claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ClaimWork {
    /// A release waits for the operations on this claim that come first.
    Queued,
    /// These drivers have not answered.
    Called { waiting: BTreeSet<DriverName>, failed: bool },
    /// The result is being written. `removes` says whether the claim then leaves the table.
    Saving { version: u64, removes: bool },
}

impl ClaimTable {
    /// A table of the claims that an earlier agent recorded.
    pub fn restore(mut records: BTreeMap<ClaimName, ClaimRecord>) -> Self {
        let mut pods: BTreeMap<PodUid, BTreeSet<ClaimName>> = BTreeMap::new();
        for (name, record) in &mut records {
            if record.pods.is_empty() {
                record.pods.insert(PodUid::new(UNKNOWN_POD));
            }
            record.pods.iter().for_each(|pod| {
                pods.entry(pod.clone()).or_default().insert(name.clone());
            });
        }
        ClaimTable { records, pods, ..ClaimTable::default() }
    }

    /// The claims.
    pub fn records(&self) -> &BTreeMap<ClaimName, ClaimRecord> {
        &self.records
    }

    /// A claim.
    pub fn record(&self, name: &ClaimName) -> Option<&ClaimRecord> {
        self.records.get(name)
    }

    /// The claims that a pod refers to.
    pub fn claims_of<'a>(&'a self, pod: &'a PodUid) -> impl Iterator<Item = (&'a ClaimName, &'a ClaimRecord)> {
        let names = self.pods.get(pod).into_iter().flatten();
        names.filter_map(|name| self.records.get_key_value(name))
    }

    /// Whether a pod refers to a claim.
    pub fn holds(&self, pod: &PodUid) -> bool {
        self.pods.contains_key(pod)
    }

    /// The pods that refer to claims.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.keys()
    }

    /// The version of the table, and the claims whose records in the file are out of date: each with its record, or `None` if the
    /// claim leaves the file.
    pub fn unsaved(&self) -> (u64, Vec<(&ClaimName, Option<&ClaimRecord>)>) {
        let record = |name| self.records.get(name).filter(|_| !self.is_being_removed(name));
        (self.version, self.unsaved.keys().map(|name| (name, record(name))).collect())
    }

    /// The records that the file must contain.
    pub fn saved_records(&self) -> impl Iterator<Item = (&ClaimName, &ClaimRecord)> {
        self.records.iter().filter(|(name, _)| !self.is_being_removed(name))
    }

    /// Whether drivers have unprepared the claim, and only its removal from the file is missing.
    fn is_being_removed(&self, name: &ClaimName) -> bool {
        let first = self.queues.get(name).and_then(VecDeque::front);
        let Some(Stage::Working(work)) = first.and_then(|id| self.operations.get(id)).map(|operation| &operation.stage)
        else {
            return false;
        };
        matches!(work.get(name), Some(ClaimWork::Saving { removes: true, .. }))
    }

    /// The claims that operations of a pod wait for, each with the drivers that have not answered, or without a driver if an
    /// earlier operation on the claim runs.
    pub(super) fn running(&self, pod: &PodUid) -> Vec<(ClaimName, Option<DriverName>)> {
        let mut running = Vec::new();
        for (_, operation) in self.operations_of(pod) {
            match &operation.stage {
                Stage::Queued => running.extend(
                    operation
                        .claims
                        .iter()
                        .map(|name| (name.clone(), self.unanswered_driver(operation, name).cloned())),
                ),
                Stage::Recording { .. } => {}
                Stage::Working(works) => running.extend(works.iter().flat_map(|(name, work)| {
                    let waiting = match work {
                        ClaimWork::Called { waiting, .. } => waiting.iter().cloned().map(Some).collect(),
                        ClaimWork::Queued => vec![None],
                        ClaimWork::Saving { .. } => Vec::new(),
                    };
                    waiting.into_iter().map(|driver| (name.clone(), driver))
                })),
            }
        }
        running
    }

    /// The operations of a pod.
    pub(super) fn operations_of(&self, pod: &PodUid) -> impl Iterator<Item = (OperationId, &Operation)> {
        let ids = self.operations_of.get(pod).into_iter().flatten();
        ids.filter_map(|id| self.operations.get(id).map(|operation| (*id, operation)))
    }

    pub(super) fn changed(&mut self, name: &ClaimName) {
        self.version += 1;
        self.unsaved.insert(name.clone(), self.version);
    }

    /// Adds a reference. Returns whether it is new.
    pub(super) fn add_pod(&mut self, name: &ClaimName, pod: &PodUid) -> bool {
        let Some(record) = self.records.get_mut(name) else { return false };
        self.pods.entry(pod.clone()).or_default().insert(name.clone());
        record.pods.insert(pod.clone())
    }

    pub(super) fn remove_pod(&mut self, name: &ClaimName, pod: &PodUid) {
        if let Some(record) = self.records.get_mut(name) {
            record.pods.remove(pod);
        }
        if let Some(names) = self.pods.get_mut(pod) {
            names.remove(name);
            if names.is_empty() {
                self.pods.remove(pod);
            }
        }
    }

    pub(super) fn remove_record(&mut self, name: &ClaimName) {
        let pods = self.records.get(name).map(|record| record.pods.clone()).unwrap_or_default();
        pods.iter().for_each(|pod| self.remove_pod(name, pod));
        self.records.remove(name);
    }

    /// Adds an operation to the queues of its claims.
    pub(super) fn enqueue(&mut self, id: OperationId, pod: PodUid, kind: OperationKind, claims: BTreeSet<ClaimName>) {
        let is_prepare = matches!(kind, OperationKind::Prepare(_));
        for name in &claims {
            let queue = self.queues.entry(name.clone()).or_default();
            let may_wait_for_another_claim =
                |id: &OperationId| self.operations.get(id).is_some_and(Operation::waits_for_several);
            let overtaken = if is_prepare { None } else { queue.iter().position(may_wait_for_another_claim) };
            queue.insert(overtaken.unwrap_or(queue.len()), id);
        }
        let stage = if is_prepare {
            Stage::Queued
        } else {
            Stage::Working(claims.iter().map(|name| (name.clone(), ClaimWork::Queued)).collect())
        };
        self.add_operation(id, pod, kind, claims, stage);
        self.candidates.insert(id);
    }

    pub(super) fn add_operation(
        &mut self,
        id: OperationId,
        pod: PodUid,
        kind: OperationKind,
        claims: BTreeSet<ClaimName>,
        stage: Stage,
    ) {
        self.operations_of.entry(pod.clone()).or_default().insert(id);
        self.operations.insert(id, Operation { pod, kind, claims, stage, faults: Vec::new(), overtaken: 0 });
    }

    /// Takes an operation out of the queue of a claim, because it is done with the claim.
    pub(super) fn leave(&mut self, id: OperationId, name: &ClaimName) {
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.claims.remove(name);
        }
        let Some(queue) = self.queues.get_mut(name) else { return };
        queue.retain(|waiting| *waiting != id);
        if queue.is_empty() {
            self.queues.remove(name);
        }
        self.reconsider(name);
    }

    /// The call of a driver that was given up for a claim has ended. Returns whether there was one.
    pub(super) fn end_abandoned(&mut self, id: OperationId, driver: &DriverName, name: &ClaimName) -> bool {
        let was_abandoned = self.abandoned.remove(&(id, driver.clone(), name.clone()));
        if was_abandoned {
            self.reconsider(name);
        }
        was_abandoned
    }

    /// Makes those operations on a claim candidates that may begin now.
    fn reconsider(&mut self, name: &ClaimName) {
        for next in self.queues.get(name).into_iter().flatten() {
            self.candidates.insert(*next);
            let lets_others_pass = |next: &Operation| may_be_overtaken(next) || self.waits_for_abandoned_call(next);
            if !self.operations.get(next).is_some_and(lets_others_pass) {
                break;
            }
        }
    }

    /// Removes an operation that has ended, from the queues too.
    pub(super) fn remove_operation(&mut self, id: OperationId) {
        let Some(operation) = self.operations.remove(&id) else { return };
        operation.claims.iter().for_each(|name| self.leave(id, name));
        if let Some(ids) = self.operations_of.get_mut(&operation.pod) {
            ids.remove(&id);
            if ids.is_empty() {
                self.operations_of.remove(&operation.pod);
            }
        }
    }

    /// The next operation that may begin: a release that is next in the queue of one of its claims, or a prepare that overtakes only
    /// prepares that wait for another claim.
    pub(super) fn next_ready(&mut self) -> Option<OperationId> {
        while let Some(id) = self.candidates.pop_first() {
            let Some(operation) = self.operations.get(&id) else { continue };
            let is_ready = match &operation.stage {
                Stage::Queued => {
                    !self.waits_for_abandoned_call(operation)
                        && operation.claims.iter().all(|name| self.may_begin(id, name))
                }
                Stage::Recording { .. } => false,
                Stage::Working(_) => self.ready_claims(id).next().is_some(),
            };
            if is_ready {
                return Some(id);
            }
        }
        None
    }

    /// The claims whose release has not begun, and in whose queues only prepares that wait for abandoned calls come before it.
    pub(super) fn ready_claims(&self, id: OperationId) -> impl Iterator<Item = &ClaimName> {
        let works = match self.operations.get(&id).map(|operation| &operation.stage) {
            Some(Stage::Working(works)) => Some(works),
            Some(Stage::Queued | Stage::Recording { .. }) | None => None,
        };
        let queued = works.into_iter().flatten().filter(|(_, work)| **work == ClaimWork::Queued);
        let is_waiting = move |other: OperationId| {
            self.operations.get(&other).is_some_and(|other| self.waits_for_abandoned_call(other))
        };
        queued.map(|(name, _)| name).filter(move |name| self.before(id, name).all(is_waiting))
    }

    /// Whether a prepare waits for the end of an abandoned call.
    fn waits_for_abandoned_call(&self, operation: &Operation) -> bool {
        operation.stage == Stage::Queued
            && operation.claims.iter().any(|name| self.unanswered_driver(operation, name).is_some())
    }

    /// The driver that a prepare would call for a claim, and whose abandoned call for the claim has not ended.
    fn unanswered_driver(&self, operation: &Operation, name: &ClaimName) -> Option<&DriverName> {
        let OperationKind::Prepare(needed) = &operation.kind else { return None };
        let drivers = &needed.get(name)?.drivers;
        let abandoned = self.abandoned.iter().filter(|(_, _, claim)| claim == name);
        abandoned.map(|(_, driver, _)| driver).find(|driver| drivers.contains(*driver))
    }

    /// The operation that waits for the answer of a driver for a claim.
    pub(super) fn waiting_for(&self, driver: &DriverName, name: &ClaimName) -> Option<OperationId> {
        let id = self.queues.get(name)?.front()?;
        let Stage::Working(works) = &self.operations.get(id)?.stage else { return None };
        let ClaimWork::Called { waiting, .. } = works.get(name)? else { return None };
        waiting.contains(driver).then_some(*id)
    }

    fn is_first(&self, id: OperationId, name: &ClaimName) -> bool {
        self.queues.get(name).and_then(VecDeque::front) == Some(&id)
    }

    /// The operations before this one in the queue of a claim.
    fn before(&self, id: OperationId, name: &ClaimName) -> impl Iterator<Item = OperationId> {
        let queue = self.queues.get(name).into_iter().flatten().copied();
        queue.take_while(move |other| *other != id)
    }

    /// Whether only prepares that it may overtake are before an operation. Those that could begin have a smaller number, so that they
    /// have begun.
    fn may_begin(&self, id: OperationId, name: &ClaimName) -> bool {
        self.before(id, name).all(|other| self.operations.get(&other).is_some_and(may_be_overtaken))
    }

    /// Makes a waiting operation that begins the first in the queues of its claims.
    pub(super) fn overtake(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get(&id).filter(|operation| operation.stage == Stage::Queued) else {
            return;
        };
        let mut overtaken = BTreeSet::new();
        for name in operation.claims.clone() {
            if self.is_first(id, &name) {
                continue;
            }
            overtaken.extend(self.before(id, &name));
            self.move_to_front(id, &name);
        }
        // Each counts once, also if it waits for several of these claims.
        for other in overtaken {
            if let Some(other) = self.operations.get_mut(&other) {
                other.overtaken = other.overtaken.saturating_add(1);
            }
        }
    }

    /// Makes an operation that begins the first in the queue of a claim.
    pub(super) fn move_to_front(&mut self, id: OperationId, name: &ClaimName) {
        if let Some(queue) = self.queues.get_mut(name).filter(|queue| queue.front() != Some(&id)) {
            queue.retain(|waiting| *waiting != id);
            queue.push_front(id);
        }
    }
}

fn may_be_overtaken(operation: &Operation) -> bool {
    operation.waits_for_several() && operation.overtaken < MOST_OVERTAKEN
}
