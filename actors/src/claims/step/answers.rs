//! The answers of drivers, and the end of the wait for an answer.

use std::collections::BTreeSet;

use super::Effect;
use crate::claims::fault::{ClaimFault, DriverAnswer};
use crate::claims::record::ReleaseDuty;
use crate::claims::table::{ClaimTable, ClaimWork, OperationId, OperationKind, Stage};
use crate::ids::{ClaimName, DriverName};
use crate::ports::{ClaimRef, PreparedDevice};

impl ClaimTable {
    pub(super) fn answered(
        &mut self,
        id: OperationId,
        driver: &DriverName,
        claims: &[ClaimRef],
        mut answer: DriverAnswer<Vec<PreparedDevice>>,
        effects: &mut Vec<Effect>,
    ) {
        let names = claims.iter().map(|claim| &claim.name);
        let late: BTreeSet<_> = names.filter(|name| self.end_abandoned(id, driver, name)).cloned().collect();
        let Some(operation) = self.operations.get_mut(&id) else { return };
        operation.faults.extend(answer.faults.into_iter().filter_map(|fault| fault.without(&late)));
        let is_prepare = matches!(operation.kind, OperationKind::Prepare(_));
        let Stage::Working(works) = &mut operation.stage else { return };
        let mut all_answered = Vec::new();
        for claim in claims.iter().filter(|claim| !late.contains(&claim.name)) {
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
                    None if was_given_up => {}
                    None if answer.is_unsent => {
                        if record.duty == ReleaseDuty::None {
                            record.duty = ReleaseDuty::NotSent;
                            self.version += 1;
                            self.unsaved.insert(claim.name.clone(), self.version);
                        }
                    }
                    None => record.duty = ReleaseDuty::Unprepare,
                }
            }
        }
        for (name, failed) in all_answered {
            self.all_answered(id, &name, is_prepare, failed, effects);
        }
        self.end_if_done(id, effects);
    }

    /// An operation continues without the answer of a driver that was given up.
    pub(super) fn abandon(
        &mut self,
        id: OperationId,
        name: &ClaimName,
        driver: &DriverName,
        effects: &mut Vec<Effect>,
    ) {
        self.abandoned.insert((id, driver.clone(), name.clone()));
        let Some(operation) = self.operations.get_mut(&id) else { return };
        let is_prepare = matches!(operation.kind, OperationKind::Prepare(_));
        let Stage::Working(works) = &mut operation.stage else { return };
        let Some(ClaimWork::Called { waiting, failed }) = works.get_mut(name) else { return };
        waiting.remove(driver);
        *failed |= is_prepare;
        let (is_last, failed) = (waiting.is_empty(), *failed);
        if is_prepare {
            operation.faults.push(ClaimFault::GivenUp { claim: name.clone(), driver: driver.clone() });
        }
        if is_last {
            self.all_answered(id, name, is_prepare, failed, effects);
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
            self.saving.insert((version, id));
            effects.push(Effect::Save);
        } else {
            works.remove(name);
            self.leave(id, name);
        }
    }
}
