//! What runs: the last status of every pod, kept up to date by the runtime's events and by relists.
//!
//! Events are hints; what is read of a pod is the truth. A hint or a relist that finds something new about a pod leads to
//! one targeted read, and only a read that found a change is told on. Nothing is dropped when much happens at once: a pod
//! is either being read or marked to be read (W26).

mod actor;
mod board;
mod diff;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use podwright_metrics::{Metrics, RunningContainers};

use crate::explain::Failing;
use crate::ids::PodUid;
use crate::metered::guarded;
use crate::ports::{
    Clock, ContainerRuntime, ContainerState, Observed, PodRuntimeStatus, RuntimeError, RuntimePod, RuntimeView,
    SandboxState, Unready,
};

use board::{Board, PassOn};

pub use actor::ObserverActor;
pub use diff::{RuntimeChange, changes};

/// How many pods are read at once.
const PARALLEL_READS: usize = 16;

/// Takes the UID of a pod in which something changed.
pub type ChangeSink = Arc<dyn Fn(&PodUid) + Send + Sync>;

/// The last status of every pod.
pub struct Observer {
    runtime: Arc<dyn ContainerRuntime>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    /// Numbers the reads by when they began.
    reads: AtomicU64,
    board: Board,
    outage: Mutex<Option<Failing>>,
}

impl Observer {
    /// Nothing seen yet.
    pub fn new(runtime: Arc<dyn ContainerRuntime>, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Observer {
            runtime,
            clock,
            metrics,
            reads: AtomicU64::new(0),
            board: Board::default(),
            outage: Mutex::default(),
        }
    }

    /// What was last seen of a pod.
    pub fn last(&self, uid: &PodUid) -> Option<Arc<PodRuntimeStatus>> {
        self.board.last(uid)
    }

    /// Since when the runtime cannot be listed, if so.
    pub fn outage(&self) -> Option<Failing> {
        self.outage.lock().clone()
    }

    /// Reads a pod now. What is found is not told on: the caller acts on it, and what a sync did before is settled no more.
    ///
    /// # Errors
    /// As the runtime says; what was last seen stays.
    pub async fn read(&self, uid: &PodUid) -> Result<Arc<PodRuntimeStatus>, RuntimeError> {
        self.board.take_settled(uid);
        self.read_for(uid, PassOn::All).await
    }

    /// What the runtime says it lacks.
    pub fn unready(&self) -> Unready {
        self.runtime.unready()
    }

    /// What there is of a pod that is to be brought in line with its spec. It is read, unless its last sync is through
    /// ([`Observer::settle`]): then what was last seen is as good, because an event or a relist finds whatever has changed
    /// since, and leads to a sync of its own (as with upstream's pod cache, kubelet 1.36). The caller may do anything to the
    /// pod, so that it is read again unless that is settled too.
    ///
    /// # Errors
    /// As the runtime says; what was last seen stays.
    pub async fn read_to_sync(&self, uid: &PodUid) -> Result<Arc<PodRuntimeStatus>, RuntimeError> {
        match self.board.take_settled(uid).filter(|_| self.outage().is_none()) {
            Some(status) => Ok(status),
            None => self.read_for(uid, PassOn::All).await,
        }
    }

    /// A sync of a pod is through, and has read it after all that it did.
    pub fn settle(&self, uid: &PodUid) {
        self.board.settle(uid);
    }

    /// Reads a pod that the caller has just acted on. That something died right after it was started is told on: the
    /// caller is done and will not act on it.
    ///
    /// # Errors
    /// As the runtime says; what was last seen stays.
    pub async fn read_again(&self, uid: &PodUid) -> Result<Arc<PodRuntimeStatus>, RuntimeError> {
        self.read_for(uid, PassOn::NoDeaths).await
    }

    async fn read_for(&self, uid: &PodUid, pass_on: PassOn) -> Result<Arc<PodRuntimeStatus>, RuntimeError> {
        let start = self.clock.now();
        let result = self.inspect(uid, pass_on).await.map(|(status, _)| status);
        self.metrics.pleg.pod_relisted(self.clock.now().since(start));
        result
    }

    /// Reads a pod that something hinted at, and tells on what changed. A read that fails is noted in `unread`.
    async fn follow(&self, uid: PodUid, sink: &ChangeSink) -> PodUid {
        match self.inspect(&uid, PassOn::All).await {
            Ok((_, found)) if found.iter().any(RuntimeChange::is_news) => sink(&uid),
            Ok(_) => {}
            Err(error) => tracing::debug!(pod.uid = %uid, %error, "status read failed"),
        }
        uid
    }

    /// Reads a pod; answers with what changed since somebody was told as well.
    async fn inspect(
        &self,
        uid: &PodUid,
        pass_on: PassOn,
    ) -> Result<(Arc<PodRuntimeStatus>, Vec<RuntimeChange>), RuntimeError> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        match guarded(&self.metrics, || self.runtime.pod_status(uid)).await {
            Ok(status) => Ok(self.board.keep(uid, read, status, pass_on)),
            Err(error) => {
                self.board.failed(uid);
                Err(error)
            }
        }
    }

    /// Lists everything. Answers with the pods to be looked at, because there may be something to tell of them.
    ///
    /// # Errors
    /// As the runtime says; then nothing is known to have changed.
    async fn list(&self) -> Result<BTreeSet<PodUid>, RuntimeError> {
        let pods = guarded(&self.metrics, || self.runtime.list_pods()).await?;
        self.count(&pods);
        Ok(self.board.compare(&pods))
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
        self.board.observed(uid)
    }
}
