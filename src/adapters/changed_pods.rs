//! Which pods changed, for whoever asks next.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;
use podwright_actors::ids::PodUid;
use tokio::sync::Notify;

/// Pods that changed, each once, the longest waiting first.
#[derive(Debug, Default)]
pub(super) struct ChangedPods {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    set: HashSet<PodUid>,
    order: VecDeque<PodUid>,
}

impl ChangedPods {
    /// Remembers that a pod changed. Any number of changes before the next look are one.
    pub(super) fn mark(&self, uid: &PodUid) {
        let mut queue = self.queue.lock();
        if queue.set.insert(uid.clone()) {
            queue.order.push_back(uid.clone());
            drop(queue);
            self.changed.notify_one();
        }
    }

    /// The pod that changed longest ago. Cancel safe.
    pub(super) async fn next(&self) -> PodUid {
        loop {
            if let Some(uid) = self.take() {
                return uid;
            }
            // A mark between the look and this wait left a permit.
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
            // Two that wait must both wake although marks leave one permit only.
            self.changed.notify_one();
        }
        Some(uid)
    }
}
