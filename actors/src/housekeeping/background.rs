//! Work that a pass starts and does not wait for.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_metrics::Metrics;
use tokio_util::sync::CancellationToken;

use crate::container_manager::{ContainerManager, RunningParts};
use crate::engine::Engine;
use crate::ids::PodUid;
use crate::ports::{ContainerRuntime, ContainerState};
use crate::text::error_chain;
use crate::time::Grace;

/// Marks a key as busy until this is dropped, by a panic too.
pub(super) struct Busy<K: Eq + Hash> {
    keys: Arc<Mutex<HashSet<K>>>,
    key: K,
}

impl<K: Eq + Hash + Clone> Busy<K> {
    /// Marks a key. `None` if it is marked already.
    pub(super) fn enter(keys: &Arc<Mutex<HashSet<K>>>, key: &K) -> Option<Self> {
        keys.lock().insert(key.clone()).then(|| Busy { keys: keys.clone(), key: key.clone() })
    }
}

impl<K: Eq + Hash> Drop for Busy<K> {
    fn drop(&mut self) {
        self.keys.lock().remove(&self.key);
    }
}

/// Stops the containers that run in a terminated pod.
pub(super) struct ZombieStop {
    pub(super) engine: Engine,
    pub(super) runtime: Arc<dyn ContainerRuntime>,
    pub(super) containers: Arc<ContainerManager>,
    pub(super) metrics: Metrics,
    pub(super) uid: PodUid,
}

impl ZombieStop {
    /// Reads the pod again and stops its containers, if the pod is still terminated.
    pub(super) async fn stop(&self) {
        let Ok(status) = self.runtime.pod_status(&self.uid).await else { return };
        // Checked after the read: if the pod is terminated even now, its containers started after its termination.
        if !status.is_running() || !self.engine.is_pod_known_terminated(&self.uid) {
            return;
        }
        let count = status.containers.iter().filter(|c| c.state == ContainerState::Running).count();
        tracing::warn!(pod.uid = %self.uid, count, "containers run in a terminated pod");
        self.metrics.housekeeping.zombie_containers(count);
        let parts = RunningParts::from(&status);
        let never = CancellationToken::new();
        if let Err(error) = self.containers.kill_pod(&never, &self.uid, None, &parts, Some(Grace::MIN)).await {
            tracing::warn!(pod.uid = %self.uid, error = %error_chain(&error), "cannot stop the containers of a terminated pod");
        }
    }
}
