//! The pods whose objects have changed.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use podwright_model::ids::PodUid;
use tokio::sync::Notify;

/// Collects pods until they are taken. Each pod is in it once.
#[derive(Default)]
pub(super) struct Changes {
    pods: Mutex<BTreeSet<PodUid>>,
    added: Notify,
}

impl Changes {
    pub(super) fn add(&self, pods: impl IntoIterator<Item = PodUid>) {
        self.pods.lock().extend(pods);
        self.added.notify_one();
    }

    /// Waits for the next pods. Cancel safe.
    pub(super) async fn next(&self) -> Vec<PodUid> {
        loop {
            let pods = std::mem::take(&mut *self.pods.lock());
            if !pods.is_empty() {
                return pods.into_iter().collect();
            }
            self.added.notified().await;
        }
    }
}
