//! The beginning of a prepare: references in the records, and then the calls.

use std::collections::{BTreeMap, BTreeSet};

use super::{Calls, Effect, Method, add_call};
use crate::claims::fault::ClaimFault;
use crate::claims::record::{ClaimRecord, NeededClaim, ReleaseDuty};
use crate::claims::table::{ClaimTable, ClaimWork, OperationId, OperationKind, Stage};
use crate::ids::{ClaimName, PodUid};

impl ClaimTable {
    /// Adds the references of the pod.
    pub(super) fn begin_prepare(
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
            // The record of a kubelet has no results.
            is_changed |= record.results.is_none();
            record.results = Some(claim.results.clone());
            for driver in &claim.drivers {
                match record.drivers.get_mut(driver) {
                    // The file must lack this before the call.
                    Some(known) if known.duty == ReleaseDuty::NotSent => known.duty = ReleaseDuty::None,
                    Some(_) => continue,
                    None => {
                        record.drivers.insert(driver.clone(), Default::default());
                        record.is_prepared = false;
                    }
                }
                is_changed = true;
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
            self.saving.insert((version, id));
            effects.push(Effect::Save);
        } else {
            self.call_to_prepare(id, effects);
        }
    }

    /// Calls the drivers of all claims that are not prepared. The references are on disk.
    pub(super) fn call_to_prepare(&mut self, id: OperationId, effects: &mut Vec<Effect>) {
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
}
