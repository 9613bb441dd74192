//! What a pass starts and does not wait for.

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
use crate::time::Grace;

/// One thing that is being worked on, until this is dropped; by a panic too.
pub(super) struct Busy<K: Eq + Hash> {
    with: Arc<Mutex<HashSet<K>>>,
    key: K,
}

impl<K: Eq + Hash + Clone> Busy<K> {
    /// `None` if it is being worked on already.
    pub(super) fn enter(with: &Arc<Mutex<HashSet<K>>>, key: &K) -> Option<Self> {
        with.lock().insert(key.clone()).then(|| Busy { with: with.clone(), key: key.clone() })
    }
}

impl<K: Eq + Hash> Drop for Busy<K> {
    fn drop(&mut self) {
        self.with.lock().remove(&self.key);
    }
}

/// A pod that is terminated and of which the runtime listed something that runs.
pub(super) struct Stray {
    pub(super) engine: Engine,
    pub(super) runtime: Arc<dyn ContainerRuntime>,
    pub(super) containers: Arc<ContainerManager>,
    pub(super) metrics: Metrics,
    pub(super) uid: PodUid,
}

impl Stray {
    pub(super) async fn stop(&self) {
        let Ok(status) = self.runtime.pod_status(&self.uid).await else { return };
        // Asked after the look: if the pod is over even now, then all that was seen is left from before.
        if !status.is_running() || !self.engine.is_pod_known_terminated(&self.uid) {
            return;
        }
        let count = status.containers.iter().filter(|c| c.state == ContainerState::Running).count();
        tracing::warn!(pod.uid = %self.uid, count, "containers run in a pod that is over");
        self.metrics.housekeeping.zombie_containers(count);
        let parts = RunningParts::from(&status);
        let never = CancellationToken::new();
        if let Err(error) = self.containers.kill_pod(&never, &self.uid, None, &parts, Some(Grace::MIN)).await {
            tracing::warn!(pod.uid = %self.uid, %error, "stray containers did not stop");
        }
    }
}
