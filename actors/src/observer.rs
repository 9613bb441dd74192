//! What runs: the last status of every pod, kept up to date by the runtime's events and by relists.
//!
//! Events are hints; what is read of a pod is the truth. A hint or a relist that finds something new about a pod leads to
//! one targeted read, and only a read that found a change is told on. Nothing is dropped when much happens at once: a pod
//! is either being read or marked to be read (W26).

mod actor;
mod diff;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry as Place;
use parking_lot::Mutex;
use podwright_metrics::{Metrics, RunningContainers};

use crate::ids::PodUid;
use crate::metered::guarded;
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
    /// Numbers the reads by when they began, so that a slow one does not overwrite what a later one found.
    reads: AtomicU64,
    /// The latest read that found a pod gone: an earlier one does not bring a pod back.
    gone: AtomicU64,
    /// Pods of which the last read failed.
    unread: Mutex<HashSet<PodUid>>,
}

struct Entry {
    status: Arc<PodRuntimeStatus>,
    /// What the status shows.
    seen: Seen,
    /// What somebody was told of, or saw and acts on. Where it differs from `seen`, somebody has yet to be told.
    told: Seen,
    read: u64,
}

/// Which changes a read passes on to who asked for it; the others are left to be told by the next look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PassOn {
    All,
    /// Those that a caller which has just started something expects.
    Starts,
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
            gone: AtomicU64::new(0),
            unread: Mutex::default(),
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
        self.read_for(uid, PassOn::All).await
    }

    /// Reads a pod that the caller has just acted on. That something died right after it was started is told on: the
    /// caller is done and will not act on it.
    ///
    /// # Errors
    /// As the runtime says; what was last seen stays.
    pub async fn read_again(&self, uid: &PodUid) -> Result<Arc<PodRuntimeStatus>, RuntimeError> {
        self.read_for(uid, PassOn::Starts).await
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
            // That something was removed changes nothing about what should run.
            Ok((_, found)) if found.iter().any(|change| *change != RuntimeChange::Removed) => sink(&uid),
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
        match guarded(&self.metrics, self.runtime.pod_status(uid)).await {
            Ok(status) => {
                self.unread.lock().remove(uid);
                Ok(self.keep(uid, read, status, pass_on))
            }
            Err(error) => {
                self.unread.lock().insert(uid.clone());
                Err(error)
            }
        }
    }

    fn keep(
        &self,
        uid: &PodUid,
        read: u64,
        mut status: PodRuntimeStatus,
        pass_on: PassOn,
    ) -> (Arc<PodRuntimeStatus>, Vec<RuntimeChange>) {
        let seen = Seen::of_status(&status);
        let mut place = match self.pods.entry(uid.clone()) {
            Place::Occupied(place) => place,
            Place::Vacant(_) if seen.is_empty() => {
                self.gone.fetch_max(read, Ordering::AcqRel);
                return (Arc::new(status), Vec::new());
            }
            // Another read that began later may have found the pod gone. If not, the next relist looks again.
            Place::Vacant(_) if read < self.gone.load(Ordering::Acquire) => {
                return (Arc::new(status), changes(&Seen::default(), &seen));
            }
            Place::Vacant(place) => {
                let entry = Entry { status: Arc::default(), seen: Seen::default(), told: Seen::default(), read: 0 };
                place.insert_entry(entry)
            }
        };
        let entry = place.get_mut();
        // If a later read was quicker, what it found is newer.
        if read > entry.read {
            keep_addresses(&entry.status, &mut status);
            *entry = Entry { status: Arc::new(status), seen, told: entry.told.clone(), read };
        }
        let found = changes(&entry.told, &entry.seen);
        if pass_on == PassOn::All || found.iter().all(|change| *change == RuntimeChange::Started) {
            entry.told = entry.seen.clone();
        }
        let status = entry.status.clone();
        if entry.seen.is_empty() && entry.told.is_empty() {
            self.gone.fetch_max(entry.read, Ordering::AcqRel);
            place.remove();
        }
        (status, found)
    }

    /// Lists everything. Answers with the pods to be looked at, because there may be something to tell of them.
    ///
    /// # Errors
    /// As the runtime says; then nothing is known to have changed.
    async fn list(&self) -> Result<BTreeSet<PodUid>, RuntimeError> {
        let pods = guarded(&self.metrics, self.runtime.list_pods()).await?;
        self.count(&pods);
        let listed: HashSet<&PodUid> = pods.iter().map(|pod| &pod.uid).collect();
        let mut changed: BTreeSet<PodUid> = pods
            .iter()
            .filter(|pod| self.pods.get(&pod.uid).is_none_or(|entry| entry.told != Seen::of_listing(pod)))
            .map(|pod| pod.uid.clone())
            .collect();
        changed.extend(self.pods.iter().filter(|entry| !listed.contains(entry.key())).map(|entry| entry.key().clone()));
        self.unread.lock().retain(|uid| listed.contains(uid));
        Ok(changed)
    }

    fn unread(&self) -> Vec<PodUid> {
        self.unread.lock().iter().cloned().collect()
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
        if self.unread.lock().contains(uid) {
            return Observed::Never;
        }
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
