//! A lock for each pod.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_actors::ids::PodUid;
use tokio::sync::OwnedMutexGuard;

type Lock = Arc<tokio::sync::Mutex<()>>;

#[derive(Clone, Debug, Default)]
pub(super) struct Locks(Arc<Mutex<HashMap<PodUid, Lock>>>);

impl Locks {
    /// Waits until nobody else holds the lock of this pod.
    pub(super) async fn lock(&self, uid: &PodUid) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock();
            // Locks that nobody holds or waits for are forgotten, or they would gather for as long as the node runs.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(uid.clone()).or_default().clone()
        };
        lock.lock_owned().await
    }
}
