//! The admission of the simulated node, which checks its rejections.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_core::admission::{AdmissionHandler, Admitted, NodeCapacity, Rejection};
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_ports::Clock;

use super::checks;
use super::disk::Disk;
use super::machine::{CPU_MILLIS, MEMORY, Machine};

/// The capacity of the node, with the check that no pod is rejected for what other pods are about to give back (POD-S100).
pub(super) struct CheckedCapacity {
    machine: Arc<Machine>,
    disk: Arc<Disk>,
    capacity: NodeCapacity,
    /// For each pod, whether it fits once the others have given that back, as of its last judgement.
    fits_later: Mutex<BTreeMap<PodUid, bool>>,
}

impl CheckedCapacity {
    pub(super) fn new(machine: Arc<Machine>, disk: Arc<Disk>) -> Self {
        let capacity = NodeCapacity::new(CPU_MILLIS, MEMORY, 500);
        CheckedCapacity { machine, disk, capacity, fits_later: Mutex::default() }
    }

    /// The agent has published an event of a pod. An event of a rejection comes before the next judgement of the pod.
    pub(super) fn event_recorded(&self, uid: &PodUid, reason: &str) {
        if checks::LACKS.contains(&reason) && self.fits_later.lock().get(uid) == Some(&true) {
            self.machine.violated(format!("{uid}: is rejected with {reason}, and fits once other pods have stopped"));
        }
    }
}

impl AdmissionHandler for CheckedCapacity {
    fn admit(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection> {
        if let Some(agent) = self.machine.agent() {
            let fits = checks::fits_later(&agent, &self.disk, pod, others, self.machine.clock.now());
            self.fits_later.lock().insert(pod.uid().clone(), fits);
        }
        self.capacity.admit(pod, others)
    }
}
