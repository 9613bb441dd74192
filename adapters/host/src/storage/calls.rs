//! The storage calls of each pod. One call runs at a time, and its current path can be read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_model::ids::PodUid;
use tokio::sync::OwnedMutexGuard;

type PodLock = Arc<tokio::sync::Mutex<()>>;

/// One lock per pod. Clones share the locks.
#[derive(Clone, Debug, Default)]
pub(super) struct PodLocks(Arc<Mutex<HashMap<PodUid, PodLock>>>);

impl PodLocks {
    /// Waits until no other call holds the lock of this pod. Cancel safe.
    pub(super) async fn lock(&self, uid: &PodUid) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock();
            // Unused locks are removed, because otherwise the map would grow without bound.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(uid.clone()).or_default().clone()
        };
        lock.lock_owned().await
    }
}

/// The path that the running call of each pod works on. Clones share the paths.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<Mutex<HashMap<PodUid, PathBuf>>>);

impl Progress {
    /// Records that a call for a pod begins at a path. The caller holds the pod's lock, so a pod has at most one call.
    pub(super) fn begin(&self, uid: &PodUid, path: &Path) -> CallProgress {
        let call = CallProgress { all: self.clone(), uid: uid.clone() };
        call.at(path);
        call
    }

    /// The path that the call of a pod works on now; `None` if no call runs.
    pub(super) fn of(&self, uid: &PodUid) -> Option<PathBuf> {
        self.0.lock().get(uid).cloned()
    }
}

/// The progress of one call. Dropping it ends the call.
pub(super) struct CallProgress {
    all: Progress,
    uid: PodUid,
}

impl CallProgress {
    /// Records that the call continues at another path.
    pub(super) fn at(&self, path: &Path) {
        self.all.0.lock().insert(self.uid.clone(), path.to_owned());
    }
}

impl Drop for CallProgress {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.uid);
    }
}
