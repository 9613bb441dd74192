//! What runs: the last status of every pod, kept up to date by the runtime's events and by relists.
//!
//! Events are hints; what is read of a pod is the truth. A hint or a relist that finds something new about a pod leads to
//! one targeted read, and only a read that found a change is told on. Nothing is dropped when much happens at once: a pod
//! is either being read or marked to be read.

mod actor;
mod diff;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use futures_util::stream::{self, StreamExt};
use podwright_metrics::{Metrics, RunningContainers};

use crate::ids::PodUid;
use crate::ports::{
    Clock, ContainerRuntime, ContainerState, Observed, PodRuntimeStatus, RuntimeError, RuntimePod, RuntimeView,
    SandboxState,
};

pub use actor::ObserverActor;
pub use diff::{RuntimeChange, changes};

use diff::Seen;

/// How many pods are read at once.
const PARALLEL_READS: usize = 16;

/// Takes the UID of a pod in which something changed.
pub type ChangeSink = Arc<dyn Fn(&PodUid) + Send + Sync>;

/// The last status of every pod.
pub struct Observer {
    runtime: Arc<dyn ContainerRuntime>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    pods: DashMap<PodUid, Entry>,
    /// Whether a relist ended well at least once: only then does an unknown pod run nowhere.
    listed: AtomicBool,
    /// Numbers the reads, so that a slow one does not overwrite what a later one found.
    reads: AtomicU64,
}

struct Entry {
    status: Arc<PodRuntimeStatus>,
    seen: Seen,
    read: u64,
}

impl Observer {
    /// Nothing seen yet.
    pub fn new(runtime: Arc<dyn ContainerRuntime>, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Observer {
            runtime,
            clock,
            metrics,
            pods: DashMap::new(),
            listed: AtomicBool::new(false),
            reads: AtomicU64::new(0),
        }
    }

    /// What was last seen of a pod.
    pub fn last(&self, uid: &PodUid) -> Option<Arc<PodRuntimeStatus>> {
        self.pods.get(uid).map(|entry| entry.status.clone())
    }

    /// Reads a pod now. What is found is not told on: the caller acts on it.
    ///
    /// # Errors
    /// As the runtime says; what was last seen stays.
    pub async fn read(&self, uid: &PodUid) -> Result<Arc<PodRuntimeStatus>, RuntimeError> {
        let start = self.clock.now();
        let result = self.inspect(uid).await.map(|(status, _)| status);
        self.metrics.pleg.pod_relisted(self.clock.now().since(start));
        result
    }

    /// Reads a pod; answers with what changed since the last time as well.
    async fn inspect(&self, uid: &PodUid) -> Result<(Arc<PodRuntimeStatus>, Vec<RuntimeChange>), RuntimeError> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        let mut status = self.runtime.pod_status(uid).await?;
        let before = self.pods.get(uid).map(|entry| (entry.status.clone(), entry.seen.clone(), entry.read));
        let seen = Seen::of_status(&status);
        let found = match &before {
            // A later read was quicker; what it found is newer.
            Some((newer, _, number)) if *number > read => return Ok((newer.clone(), Vec::new())),
            Some((old, old_seen, _)) => {
                keep_addresses(old, &mut status);
                changes(old_seen, &seen)
            }
            None => changes(&Seen::default(), &seen),
        };
        let status = Arc::new(status);
        if seen.is_empty() {
            self.pods.remove(uid);
        } else {
            self.pods.insert(uid.clone(), Entry { status: status.clone(), seen, read });
        }
        Ok((status, found))
    }

    /// Reads a pod that something hinted at, and tells on what changed.
    async fn follow(&self, uid: PodUid, sink: &ChangeSink) -> Result<(), (PodUid, RuntimeError)> {
        let found = match self.inspect(&uid).await {
            Ok((_, found)) => found,
            Err(error) => return Err((uid, error)),
        };
        // That something was removed changes nothing about what should run.
        if found.iter().any(|change| *change != RuntimeChange::Removed) {
            sink(&uid);
        }
        Ok(())
    }

    /// Lists everything and reads what changed. Answers with the pods that could not be read.
    ///
    /// # Errors
    /// As the runtime says; then nothing is known to have changed.
    async fn relist(&self, sink: &ChangeSink) -> Result<HashSet<PodUid>, RuntimeError> {
        let start = self.clock.now();
        let pods = self.runtime.list_pods().await?;
        self.count(&pods);
        let listed: HashSet<&PodUid> = pods.iter().map(|pod| &pod.uid).collect();
        let mut changed: Vec<PodUid> = pods
            .iter()
            .filter(|pod| self.pods.get(&pod.uid).is_none_or(|entry| entry.seen != Seen::of_listing(pod)))
            .map(|pod| pod.uid.clone())
            .collect();
        changed.extend(self.pods.iter().filter(|entry| !listed.contains(entry.key())).map(|entry| entry.key().clone()));
        let failed = stream::iter(changed)
            .map(|uid| self.follow(uid, sink))
            .buffer_unordered(PARALLEL_READS)
            .filter_map(async |result| result.err())
            .map(|(uid, error)| {
                tracing::debug!(pod.uid = %uid, %error, "status read failed");
                uid
            })
            .collect()
            .await;
        self.listed.store(true, Ordering::Release);
        self.metrics.pleg.relisted(self.clock.now().since(start));
        Ok(failed)
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
        match self.pods.get(uid) {
            Some(entry) if entry.status.is_running() => Observed::Running,
            Some(_) => Observed::Stopped,
            None if self.listed.load(Ordering::Acquire) => Observed::Stopped,
            None => Observed::Never,
        }
    }
}

/// A sandbox that ended has no address any more; its pod keeps the ones it had.
fn keep_addresses(old: &PodRuntimeStatus, new: &mut PodRuntimeStatus) {
    for sandbox in new.sandboxes.iter_mut().filter(|sandbox| sandbox.ips.is_empty()) {
        if sandbox.state == SandboxState::NotReady
            && let Some(before) = old.sandboxes.iter().find(|before| before.id == sandbox.id)
        {
            sandbox.ips.clone_from(&before.ips);
        }
    }
}
