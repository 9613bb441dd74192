//! The pods that wait for their eviction, those that were evicted, and the pods that must be evaluated.

use std::collections::{HashMap, HashSet, VecDeque};

use podwright_model::ids::PodUid;
use podwright_model::time::Time;

use super::api::{ObjectKey, PodId};
use super::eviction::Eviction;

/// Whether a pod is to be evicted now.
#[derive(Debug)]
pub(super) enum Due {
    /// No eviction of the pod is pending.
    Never,
    At(Time),
    Now(Eviction),
}

#[derive(Clone, Debug)]
pub(super) struct PendingEviction {
    eviction: Eviction,
    /// Whether the event of the deletion was recorded.
    is_announced: bool,
}

/// The pods that wait for their eviction, and those that were evicted and still exist.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingEvictions {
    pub(super) pods: HashMap<PodId, PendingEviction>,
    pub(super) evicted: HashSet<PodUid>,
}

impl PendingEvictions {
    /// Replaces the eviction of a pod. Returns the former one.
    pub(super) fn insert(&mut self, pod: &PodId, eviction: Eviction) -> Option<Eviction> {
        match self.pods.get_mut(pod) {
            Some(pending) => Some(std::mem::replace(&mut pending.eviction, eviction)),
            None => {
                self.pods.insert(pod.clone(), PendingEviction { eviction, is_announced: false });
                None
            }
        }
    }

    pub(super) fn remove(&mut self, pod: &PodId) -> Option<Eviction> {
        self.pods.remove(pod).map(|pending| pending.eviction)
    }

    pub(super) fn get(&self, pod: &PodId) -> Option<&Eviction> {
        self.pods.get(pod).map(|pending| &pending.eviction)
    }

    pub(super) fn due(&self, pod: &PodId, now: Time) -> Due {
        match self.get(pod) {
            None => Due::Never,
            Some(eviction) if eviction.at > now => Due::At(eviction.at),
            Some(eviction) => Due::Now(eviction.clone()),
        }
    }

    /// Whether the event of the deletion is still to be recorded. It is recorded once.
    pub(super) fn announce(&mut self, pod: &PodId) -> bool {
        self.pods.get_mut(pod).is_some_and(|pending| !std::mem::replace(&mut pending.is_announced, true))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&PodId, &Eviction)> {
        self.pods.iter().map(|(pod, pending)| (pod, &pending.eviction))
    }

    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    /// Records that the pod was evicted. It still exists.
    pub(super) fn evicted(&mut self, pod: &PodId) {
        self.evicted.insert(pod.uid.clone());
    }

    pub(super) fn was_evicted(&self, pod: &PodId) -> bool {
        self.evicted.contains(&pod.uid)
    }

    /// The pod is gone. Returns its eviction if it was pending.
    pub(super) fn gone(&mut self, pod: &PodId) -> Option<Eviction> {
        self.evicted.remove(&pod.uid);
        self.remove(pod)
    }
}

/// The pods that must be evaluated, each once, in the order in which they were marked.
#[derive(Clone, Debug, Default)]
pub(super) struct MarkedPods {
    pub(super) pods: HashSet<ObjectKey>,
    order: VecDeque<ObjectKey>,
}

impl MarkedPods {
    pub(super) fn mark(&mut self, pod: ObjectKey) {
        if self.pods.insert(pod.clone()) {
            self.order.push_back(pod);
        }
    }

    /// Takes the pod that was marked first.
    pub(super) fn take_first(&mut self) -> Option<ObjectKey> {
        loop {
            let pod = self.order.pop_front()?;
            if self.pods.remove(&pod) {
                return Some(pod);
            }
        }
    }

    /// Takes a pod if it is marked.
    pub(super) fn take(&mut self, pod: &ObjectKey) -> bool {
        self.pods.remove(pod)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }
}
