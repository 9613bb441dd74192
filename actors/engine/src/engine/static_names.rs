//! The start order of static pods, for every full name.

use dashmap::DashMap;

use crate::ids::{FullName, PodUid};
use crate::pod_worker::static_names::StaticNameQueue;

/// One queue for each full name. Its methods are called under a cell's lock and take no other lock.
#[derive(Debug, Default)]
pub(super) struct StaticNames(DashMap<FullName, StaticNameQueue, foldhash::fast::RandomState>);

impl StaticNames {
    pub(super) fn join(&self, name: &FullName, uid: &PodUid) {
        self.0.entry(name.clone()).or_default().join(uid);
    }

    pub(super) fn claim(&self, name: &FullName, uid: &PodUid) -> bool {
        self.0.get_mut(name).is_some_and(|mut queue| queue.claim(uid))
    }

    pub(super) fn is_turn(&self, name: &FullName, uid: &PodUid) -> bool {
        self.0.get(name).is_some_and(|queue| queue.is_turn(uid))
    }

    /// Removes a pod from the queue. Returns the pod to wake, if the name is now free for it.
    pub(super) fn leave(&self, name: &FullName, uid: &PodUid) -> Option<PodUid> {
        let next = self.0.get_mut(name)?.leave(uid);
        self.0.remove_if(name, |_, queue| queue.is_empty());
        next
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn started(&self, name: &FullName) -> Option<PodUid> {
        self.0.get(name)?.started().cloned()
    }

    pub(super) fn waiting(&self, name: &FullName) -> Vec<PodUid> {
        self.0.get(name).map(|queue| queue.waiting().cloned().collect()).unwrap_or_default()
    }
}
