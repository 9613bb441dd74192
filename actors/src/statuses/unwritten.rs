//! The pods whose statuses may have to be written to the API server.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use podwright_work_queue::Urgency;
use tokio::sync::Notify;

use crate::ids::PodUid;

/// Collects pods until the status writer takes them. Holds each pod once.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    pods: Mutex<HashMap<PodUid, Urgency, FixedState>>,
    added: Notify,
}

impl Unwritten {
    /// Adds a pod, or raises its urgency.
    pub(crate) fn add(&self, uid: &PodUid, urgency: Urgency) {
        let mut pods = self.pods.lock();
        let kept = pods.entry(uid.clone()).or_insert(urgency);
        *kept = urgency.min(*kept);
        drop(pods);
        self.added.notify_one();
    }

    /// Takes all pods.
    pub(crate) fn take(&self) -> impl Iterator<Item = (PodUid, Urgency)> + use<> {
        std::mem::take(&mut *self.pods.lock()).into_iter()
    }

    /// Whether there is no pod.
    pub(crate) fn is_empty(&self) -> bool {
        self.pods.lock().is_empty()
    }

    /// Waits until a pod is added, or returns at once if one was added since the last call. Only one task may wait. Cancel safe.
    pub(crate) async fn added(&self) {
        self.added.notified().await;
    }
}
