//! The ends of writes of the file.

use std::collections::BTreeSet;

use super::Effect;
use crate::claims::fault::ClaimFault;
use crate::claims::record::ClaimRecord;
use crate::claims::table::{ClaimTable, ClaimWork, OperationId, OperationKind, Stage};
use crate::ids::ClaimName;

impl ClaimTable {
    /// The file was written up to a version, or could not be.
    pub(super) fn saved(&mut self, saved: u64, fault: Option<&ClaimFault>, effects: &mut Vec<Effect>) {
        if fault.is_none() {
            self.unsaved.retain(|_, version| *version > saved);
        }
        let later = self.saving.split_off(&(saved.saturating_add(1), OperationId::MIN));
        let waiting = std::mem::replace(&mut self.saving, later);
        let ids: BTreeSet<_> = waiting.into_iter().map(|(_, id)| id).collect();
        for id in ids {
            let Some(operation) = self.operations.get_mut(&id) else { continue };
            match &mut operation.stage {
                Stage::Recording { version, added } if *version <= saved => {
                    let added = std::mem::take(added);
                    match fault {
                        None => self.call_to_prepare(id, effects),
                        Some(fault) => {
                            self.undo(id, &added, effects);
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
                        if removes && fault.is_none() {
                            self.remove_record(&name);
                        }
                        match (fault, &released) {
                            (None, Some(_)) => effects.push(Effect::Released(name.clone())),
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
    fn undo(&mut self, id: OperationId, added: &BTreeSet<ClaimName>, effects: &mut Vec<Effect>) {
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
            effects.push(Effect::Released(name.clone()));
        }
    }
}
