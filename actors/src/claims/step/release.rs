//! The beginning of a release, and what releases a claim without one of its drivers.

use std::collections::{BTreeMap, BTreeSet};

use super::{Calls, Effect, Method, add_call};
use crate::claims::record::ReleaseDuty;
use crate::claims::table::{ClaimTable, ClaimWork, Operation, OperationId, OperationKind, Stage};
use crate::ids::{ClaimName, DriverName, PodUid};

impl ClaimTable {
    /// Ends the prepares of a pod that have not begun, because the pod stops.
    pub(super) fn withdraw(&mut self, pod: &PodUid, effects: &mut Vec<Effect>) {
        let is_waiting = |operation: &Operation| {
            operation.stage == Stage::Queued && matches!(operation.kind, OperationKind::Prepare(_))
        };
        let waiting: Vec<_> = self.operations_of(pod).filter(|(_, o)| is_waiting(o)).map(|(id, _)| id).collect();
        for id in waiting {
            self.remove_operation(id);
            effects.push(Effect::Done { operation: id, faults: Vec::new() });
        }
    }

    /// Releases the claims in whose queues the release is the first now.
    pub(super) fn begin_release(&mut self, id: OperationId, pod: &PodUid, effects: &mut Vec<Effect>) {
        let names: BTreeSet<_> = self.ready_claims(id).cloned().collect();
        let mut work = BTreeMap::new();
        let mut calls = Calls::new();
        for name in names.iter().cloned() {
            self.move_to_front(id, &name);
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

    /// Gives a driver up for a claim, and ends the wait for its answer. The driver may have performed the call, or may still perform it.
    /// Whatever it answers, it is not called to unprepare the claim before it has prepared the claim again.
    pub(super) fn give_up(
        &mut self,
        id: OperationId,
        name: &ClaimName,
        driver: &DriverName,
        effects: &mut Vec<Effect>,
    ) {
        let caller = self.waiting_for(driver, name);
        let record = self.records.get_mut(name).and_then(|record| record.drivers.get_mut(driver));
        let mut is_given_up = false;
        if let Some(record) = record {
            let is_new = caller.is_some() || record.duty == ReleaseDuty::Unprepare;
            if is_new {
                record.duty = ReleaseDuty::GivenUp;
            }
            is_given_up = record.duty == ReleaseDuty::GivenUp;
            if is_new {
                self.changed(name);
            }
        }
        let mut work = BTreeMap::new();
        if is_given_up && self.unsaved.contains_key(name) {
            work.insert(name.clone(), ClaimWork::Saving { version: self.version, removes: false });
        }
        self.add_operation(id, PodUid::new(""), OperationKind::GiveUp, BTreeSet::new(), Stage::Queued);
        self.work(id, BTreeSet::new(), work, Calls::new(), Method::Unprepare, effects);
        if let Some(caller) = caller {
            self.abandon(caller, name, driver, effects);
        }
    }
}
