//! The observer knows what the container runtime runs: it keeps the last status of every pod, and detects changes through the
//! runtime's events and through relists.
//!
//! ```text
//!   runtime events -- PodHint ---+                          +-- RuntimePodChanged ----> dispatcher
//!   relist, each 1 s or 10 s ----+--> read the pod --> PodCache
//!   hooks of pod workers -- Observer::read* ---^            +-- RuntimeHealthChanged -> dispatcher
//! ```
//!
//! Events and relists are hints: only a status read from the runtime is trusted. A hint, or a relist that differs from the
//! cache, leads to one read of that pod, and only a read that finds a change is reported. A burst of hints loses nothing: a
//! pod is either being read or marked to be read (POD-W26).
//!
//! The module `relist` decides when to list, which pods to read and whether the runtime is healthy. The actor performs the lists
//! and reads.

mod actor;
mod diff;
mod messages;
mod pod_cache;
mod relist;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use podwright_metrics::{Metrics, RunningContainers};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::health::OngoingFailure;
use crate::ids::{FullName, PodUid};
use crate::metered::guarded;
use crate::pod::PodObject;
use crate::ports::{
    Clock, ContainerRuntime, ContainerState, Observed, PodRuntimeStatus, RuntimeCapabilities, RuntimeError, RuntimePod,
    RuntimeView, SandboxState, Unready,
};
use crate::status::wants_recursive_read_only;
use crate::text::error_chain;

use diff::RuntimeChange;
use pod_cache::{Acknowledge, PodCache};

pub(crate) use actor::ObserverActor;

/// The last status of every pod, and whether the runtime answers.
pub struct Observer {
    runtime: Arc<dyn ContainerRuntime>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    /// Numbers the reads in the order in which they began.
    reads: AtomicU64,
    cache: PodCache,
    /// The static pods of the first list. The agent has a record of every static pod that it starts itself. A sandbox that the runtime makes
    /// after this list for an agent that died is not here: its pod runs no container, and a housekeeping pass stops it.
    found: OnceLock<Vec<(FullName, PodUid)>>,
    runtime_state: Mutex<RuntimeState>,
    healthy: watch::Sender<bool>,
}

/// The results of the last lists.
#[derive(Debug, Default)]
struct RuntimeState {
    /// When the runtime was last listed, on the clock that does not jump.
    listed: Option<Instant>,
    /// The failures since then; `None` if the last list succeeded.
    outage: Option<OngoingFailure>,
}

impl Observer {
    /// An observer with an empty cache. The runtime is unhealthy until the first relist has ended.
    pub(crate) fn new(runtime: Arc<dyn ContainerRuntime>, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Observer {
            runtime,
            clock,
            metrics,
            reads: AtomicU64::new(0),
            cache: PodCache::default(),
            found: OnceLock::new(),
            runtime_state: Mutex::default(),
            healthy: watch::Sender::new(false),
        }
    }

    /// The last status of a pod that was read.
    pub fn last(&self, uid: &PodUid) -> Option<Arc<PodRuntimeStatus>> {
        self.cache.last(uid)
    }

    /// A static pod of the same full name and another UID that ran before this agent, and may still run.
    pub(crate) fn earlier_version(&self, pod: &PodObject) -> Option<PodUid> {
        let mut others = self.found.get()?.iter().filter(|(name, uid)| name == pod.full_name() && uid != pod.uid());
        others.find(|(_, uid)| self.cache.may_run(uid)).map(|(_, uid)| uid.clone())
    }

    /// Whether the runtime was listed within the last three minutes, and every pod of the first list was read.
    pub fn healthy(&self) -> watch::Receiver<bool> {
        self.healthy.subscribe()
    }

    /// The failure of the runtime's lists, while they fail.
    pub fn outage(&self) -> Option<OngoingFailure> {
        self.runtime_state.lock().outage.clone()
    }

    /// How long ago the runtime was last listed. A jump of the wall clock does not change it.
    pub(crate) fn list_age(&self) -> Option<Duration> {
        self.runtime_state.lock().listed.map(|at| at.elapsed())
    }

    /// The version and the optional features of the runtime.
    pub(crate) fn capabilities(&self) -> RuntimeCapabilities {
        self.runtime.capabilities()
    }

    /// The conditions that the runtime reports as not met.
    pub fn unready(&self) -> Unready {
        self.runtime.unready()
    }

    /// Whether recursive read-only mounts work for this pod. Only a pod that requests one asks the runtime.
    pub(crate) async fn supports_recursive_read_only(&self, pod: &PodObject) -> bool {
        wants_recursive_read_only(pod) && self.runtime.supports_recursive_read_only(pod).await
    }

    /// Reads a pod for a caller that acts on what it finds: the changes are not reported. The pod is no longer marked as
    /// [synced](Observer::mark_synced).
    ///
    /// # Errors
    /// The error of the runtime. The last status stays in the cache.
    pub(crate) async fn read(&self, uid: &PodUid) -> Result<Arc<PodRuntimeStatus>, RuntimeError> {
        self.cache.take_synced(uid);
        self.timed_read(uid, Acknowledge::All).await
    }

    /// The status of a pod that is about to be synced. Returns the cached status if the pod was marked as
    /// [synced](Observer::mark_synced): every later change of the pod causes a hint or shows in a relist, which leads to a
    /// sync of its own (as with upstream's pod cache, kubelet 1.36). Otherwise reads the pod. The mark is removed, because
    /// the caller may change the pod.
    ///
    /// # Errors
    /// The error of the runtime. The last status stays in the cache.
    pub(crate) async fn read_to_sync(&self, uid: &PodUid) -> Result<Arc<PodRuntimeStatus>, RuntimeError> {
        match self.cache.take_synced(uid).filter(|_| self.outage().is_none()) {
            Some(status) => Ok(status),
            None => self.timed_read(uid, Acknowledge::All).await,
        }
    }

    /// Marks a pod as synced: its worker has read it after its last action.
    pub(crate) fn mark_synced(&self, uid: &PodUid) {
        self.cache.mark_synced(uid);
    }

    /// Reads a pod that the caller has just acted on. A container that died right after its start is still reported, because
    /// the caller has finished and will not act on it.
    ///
    /// # Errors
    /// The error of the runtime. The last status stays in the cache.
    pub(crate) async fn read_again(&self, uid: &PodUid) -> Result<Arc<PodRuntimeStatus>, RuntimeError> {
        self.timed_read(uid, Acknowledge::AllButDeaths).await
    }

    async fn timed_read(&self, uid: &PodUid, acknowledge: Acknowledge) -> Result<Arc<PodRuntimeStatus>, RuntimeError> {
        let start = self.clock.now();
        let result = self.read_status(uid, acknowledge).await.map(|(status, _)| status);
        self.metrics.pleg.pod_relisted(self.clock.now().since(start));
        result
    }

    /// Reads a pod after a hint. Returns whether it changed in a way that its worker has to act on. A pod whose read fails is
    /// read again at the next relist turn.
    async fn read_hinted(&self, uid: &PodUid) -> bool {
        match self.read_status(uid, Acknowledge::All).await {
            Ok((_, changes)) => changes.iter().any(RuntimeChange::needs_sync),
            Err(error) => {
                tracing::debug!(pod.uid = %uid, error = %error_chain(&error), "status read failed");
                false
            }
        }
    }

    /// Reads a pod into the cache. Returns its status, and what changed since the last change that was acknowledged.
    async fn read_status(
        &self,
        uid: &PodUid,
        acknowledge: Acknowledge,
    ) -> Result<(Arc<PodRuntimeStatus>, Vec<RuntimeChange>), RuntimeError> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        match guarded(&self.metrics, || self.runtime.pod_status(uid)).await {
            Ok(status) => Ok(self.cache.store(uid, read, status, acknowledge)),
            Err(error) => {
                self.cache.read_failed(uid);
                Err(error)
            }
        }
    }

    /// Lists all pods of the runtime. Returns those that differ from the cache and have to be read.
    ///
    /// # Errors
    /// The error of the runtime.
    async fn list(&self) -> Result<BTreeSet<PodUid>, RuntimeError> {
        let pods = guarded(&self.metrics, || self.runtime.list_pods()).await?;
        let statics = || pods.iter().filter(|pod| pod.is_static).map(|pod| (pod.full_name.clone(), pod.uid.clone()));
        self.found.get_or_init(|| statics().collect());
        self.count(&pods);
        Ok(self.cache.compare(&pods))
    }

    /// Records a list that succeeded.
    fn list_succeeded(&self) {
        *self.runtime_state.lock() = RuntimeState { listed: Some(Instant::now()), outage: None };
    }

    /// Records a list that failed with this error.
    fn list_failed(&self, error: String) {
        OngoingFailure::note(&mut self.runtime_state.lock().outage, error, self.clock.now());
    }

    /// Records the end of a relist: every pod that it found changed has been read.
    fn relisted(&self, took: Duration) {
        self.metrics.pleg.relisted(took);
        self.cache.list_ended();
    }

    fn count(&self, pods: &[RuntimePod]) {
        let running = pods.iter().filter(|pod| pod.sandboxes.iter().any(|s| s.state == SandboxState::Ready)).count();
        self.metrics.pleg.running_pods(running);
        let mut states = RunningContainers::default();
        for container in pods.iter().flat_map(|pod| &pod.containers) {
            match container.state {
                ContainerState::Created => states.created += 1,
                ContainerState::Running => states.running += 1,
                ContainerState::Exited => states.exited += 1,
                ContainerState::Unknown => states.unknown += 1,
            }
        }
        self.metrics.pleg.running_containers(states);
        self.metrics.pleg.last_seen(Duration::from_nanos(self.clock.now().as_nanos()));
    }
}

impl RuntimeView for Observer {
    fn observed(&self, uid: &PodUid) -> Observed {
        self.cache.observed(uid)
    }
}
