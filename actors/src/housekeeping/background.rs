//! Work that a pass starts and does not wait for.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_metrics::Metrics;
use tokio_util::sync::CancellationToken;

use super::garbage::{GarbageScope, Sweep};
use super::{Coverage, Housekeeping};
use crate::container_manager::{ContainerManager, RunningParts};
use crate::engine::Engine;
use crate::ids::PodUid;
use crate::metered::guarded;
use crate::ports::{ContainerRuntime, ContainerState, RuntimePod};
use crate::text::error_chain;
use crate::time::Grace;

impl Housekeeping {
    /// Stops containers that started after their pod had terminated (POD-W9), in the background. Each pod is read first,
    /// because the list may be older than the pod's termination.
    pub(super) fn stop_zombies(&self, listed: &[RuntimePod]) {
        for pod in listed.iter().filter(|pod| pod.is_running() && self.engine.is_pod_known_terminated(&pod.uid)) {
            if let Some(busy) = Busy::enter(&self.state.stopping_zombies, &pod.uid) {
                let zombies = ZombieStop {
                    engine: self.engine.clone(),
                    runtime: self.runtime.clone(),
                    containers: self.containers.clone(),
                    metrics: self.metrics.clone(),
                    uid: pod.uid.clone(),
                };
                self.state.spawn(async move {
                    zombies.stop().await;
                    drop(busy);
                });
            }
        }
    }

    /// Removes dead containers, and the directories and cgroups of pods that no source desires (POD-K7), in the background.
    /// Sweeps do not overlap. Each pass starts one, because the sweep replaces two kinds of removal in upstream: those after
    /// each container exit, and those of every minute.
    ///
    /// Before the API server has delivered, a sweep removes only dead containers of pods that have a record or start anew.
    pub(super) fn sweep(&self, coverage: Coverage, listed: Vec<RuntimePod>) {
        let Ok(turn) = self.state.sweeping.clone().try_lock_owned() else { return };
        let (sweep, listed) = (self.new_sweep(), self.swept(coverage, listed));
        self.state.spawn(async move {
            sweep.collect_garbage(&listed, GarbageScope::Unneeded).await;
            if coverage == Coverage::All {
                sweep.remove_leftovers(&listed).await;
            }
            drop(turn);
        });
    }

    /// Removes the dead containers that a sweep removes, and all dead containers of the pods that have ended, because the node lacks disk
    /// space. Waits until a running sweep has ended.
    pub(super) async fn remove_dead_containers(&self) {
        let _turn = self.state.sweeping.lock().await;
        let Some(coverage) = Coverage::of(&self.desired.lock()) else { return };
        match guarded(&self.metrics, || self.runtime.list_pods()).await {
            Ok(listed) => self.new_sweep().collect_garbage(&self.swept(coverage, listed), GarbageScope::Ended).await,
            Err(error) => {
                tracing::warn!(error = %error_chain(&error), "cannot list the runtime's pods to remove dead containers");
            }
        }
    }

    /// The listed pods whose dead containers a sweep removes.
    fn swept(&self, coverage: Coverage, mut listed: Vec<RuntimePod>) -> Vec<RuntimePod> {
        if coverage == Coverage::Static {
            listed.retain(|pod| self.engine.is_pod_known(&pod.uid) || self.active.leaves_earlier_life(&pod.uid));
        }
        listed
    }

    fn new_sweep(&self) -> Sweep {
        Sweep {
            engine: self.engine.clone(),
            desired: self.desired.clone(),
            final_statuses: self.final_statuses.clone(),
            active: self.active.clone(),
            observer: self.observer.clone(),
            runtime: self.runtime.clone(),
            storage: self.storage.clone(),
            cgroups: self.cgroups.clone(),
            events: self.events.clone(),
            metrics: self.metrics.clone(),
            health: self.state.health.clone(),
            clock: self.clock.clone(),
            state: self.state.sweeps.clone(),
        }
    }
}

/// Marks a key as busy until this is dropped, by a panic too.
struct Busy<K: Eq + Hash> {
    keys: Arc<Mutex<HashSet<K>>>,
    key: K,
}

impl<K: Eq + Hash + Clone> Busy<K> {
    /// Marks a key. `None` if it is marked already.
    fn enter(keys: &Arc<Mutex<HashSet<K>>>, key: &K) -> Option<Self> {
        keys.lock().insert(key.clone()).then(|| Busy { keys: keys.clone(), key: key.clone() })
    }
}

impl<K: Eq + Hash> Drop for Busy<K> {
    fn drop(&mut self) {
        self.keys.lock().remove(&self.key);
    }
}

/// Stops the containers that run in a terminated pod.
struct ZombieStop {
    engine: Engine,
    runtime: Arc<dyn ContainerRuntime>,
    containers: Arc<ContainerManager>,
    metrics: Metrics,
    uid: PodUid,
}

impl ZombieStop {
    /// Reads the pod again and stops its containers, if the pod is still terminated.
    async fn stop(&self) {
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
