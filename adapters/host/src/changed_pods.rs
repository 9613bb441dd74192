//! A queue of pods that changed, from a runtime to the observer of its pods.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;
use podwright_model::ids::PodUid;
use tokio::sync::Notify;

/// The pods that changed, each once, in the order of their first change.
#[derive(Debug, Default)]
pub struct ChangedPods {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    set: HashSet<PodUid>,
    order: VecDeque<PodUid>,
}

impl ChangedPods {
    /// Queues a pod that changed, unless the pod is queued already.
    pub fn mark(&self, uid: &PodUid) {
        let mut queue = self.queue.lock();
        if queue.set.insert(uid.clone()) {
            queue.order.push_back(uid.clone());
            drop(queue);
            self.changed.notify_one();
        }
    }

    /// Waits for a changed pod and takes the one that was queued first. Cancel safe.
    pub async fn next(&self) -> PodUid {
        loop {
            if let Some(uid) = self.take() {
                return uid;
            }
            // A pod that was queued after `take` has left a permit, so it is not missed.
            self.changed.notified().await;
        }
    }

    fn take(&self) -> Option<PodUid> {
        let mut queue = self.queue.lock();
        let uid = queue.order.pop_front()?;
        queue.set.remove(&uid);
        let more = !queue.order.is_empty();
        drop(queue);
        if more {
            // `notify_one` keeps one permit only, and two callers may wait for the two pods that are queued.
            self.changed.notify_one();
        }
        Some(uid)
    }
}
