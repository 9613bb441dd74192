//! The queue of the full name, with its mutations.

use super::moves::Machine;
use super::mutation::Mutation;
use crate::ids::PodUid;
use crate::pod_worker::static_names::StaticNameQueue;

impl Machine {
    pub(super) fn claim(&self, queue: &mut StaticNameQueue, uid: &PodUid) -> bool {
        if self.mutates(Mutation::AssignsNameTwice)
            && let Some(started) = queue.started().filter(|started| *started != uid).cloned()
        {
            let _next = queue.leave(&started);
        }
        queue.claim(uid)
    }

    pub(super) fn leave(&self, queue: &mut StaticNameQueue, uid: &PodUid) -> Option<PodUid> {
        let started = queue.started().cloned();
        if self.mutates(Mutation::ReleasesNameOfOtherPod)
            && let Some(started) = &started
        {
            let _next = queue.leave(started);
        }
        if self.mutates(Mutation::KeepsNameOfRemovedPod) && started.as_ref() == Some(uid) {
            return None;
        }
        queue.leave(uid)
    }
}
