//! Which pods changed, for whoever asks next.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;
use podwright_actors::ids::PodUid;
use tokio::sync::Notify;

/// Pods that changed, each once, the longest waiting first.
#[derive(Debug, Default)]
pub(super) struct News {
    dirty: Mutex<Dirty>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Dirty {
    set: HashSet<PodUid>,
    order: VecDeque<PodUid>,
}

impl News {
    /// Remembers that a pod changed. Any number of changes before the next look are one.
    pub(super) fn mark(&self, uid: &PodUid) {
        let mut dirty = self.dirty.lock();
        if dirty.set.insert(uid.clone()) {
            dirty.order.push_back(uid.clone());
            drop(dirty);
            self.news.notify_one();
        }
    }

    /// The pod that changed longest ago. Cancel safe.
    pub(super) async fn next(&self) -> PodUid {
        loop {
            if let Some(uid) = self.take_dirty() {
                return uid;
            }
            // A mark between the look and this wait left a permit.
            self.news.notified().await;
        }
    }

    fn take_dirty(&self) -> Option<PodUid> {
        let mut dirty = self.dirty.lock();
        let uid = dirty.order.pop_front()?;
        dirty.set.remove(&uid);
        let more = !dirty.order.is_empty();
        drop(dirty);
        if more {
            // Two that wait must both wake although marks leave one permit only.
            self.news.notify_one();
        }
        Some(uid)
    }
}
