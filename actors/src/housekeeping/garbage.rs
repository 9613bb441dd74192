//! Dead containers, ended sandboxes, and directories that nobody needs any more: what is removed in the background of a
//! pass, and by nobody else. (A worker removes runs too, where its plan says so: they would be in the way of new ones.)
//!
//! No end of a container is lost that the engine has not read: of a pod that goes on, a dead run is removed only when the
//! observer has shown its end and a newer one stays, and a worker starts a newer run only after it has read the end of the
//! one before; of a pod that is over, all ends were read before it was said to be over.

mod plan;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use parking_lot::Mutex;
use podwright_metrics::Metrics;

use super::plan::{is_directory_unused, running};
use super::told::Told;
use crate::desired::Desired;
use crate::engine::Engine;
use crate::ids::{ContainerId, PodUid};
use crate::metered::guarded;
use crate::observer::Observer;
use crate::ports::{
    Clock, ContainerRuntime, ContainerState, EventRecorder, PodCgroups, PodEvent, PodStorage, RuntimeError, RuntimePod,
};
use crate::time::{Grace, Time};

use plan::{Dead, Keep, garbage, may_have_garbage};

/// How many pods are cleaned at once: a removal that takes long holds up no other, and all of them leave the runtime room
/// for starts.
const PARALLEL: usize = 4;
/// How often the storage is tidied (upstream `ContainerGCPeriod`, kubelet 1.36).
const TIDY_PERIOD: Duration = Duration::from_secs(60);

/// What is kept between sweeps.
#[derive(Debug, Default)]
pub(super) struct SweepState {
    /// Whether dead containers or sandboxes cannot be removed.
    containers: Told<()>,
    /// Whose directory cannot be removed; nobody's if they cannot be listed.
    directories: Told<Option<PodUid>>,
    /// The same of cgroups.
    cgroups: Told<Option<PodUid>>,
    /// Whether the storage cannot be tidied.
    leftovers: Told<()>,
    /// When the storage was last tidied.
    tidied: Mutex<Option<Time>>,
}

/// One sweep, in the background of a pass.
pub(super) struct Sweep {
    pub(super) engine: Engine,
    pub(super) desired: Arc<Desired>,
    pub(super) observer: Arc<Observer>,
    pub(super) runtime: Arc<dyn ContainerRuntime>,
    pub(super) storage: Arc<dyn PodStorage>,
    pub(super) cgroups: Option<Arc<dyn PodCgroups>>,
    pub(super) events: Arc<dyn EventRecorder>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
    pub(super) state: Arc<SweepState>,
}

impl Sweep {
    pub(super) async fn run(&self, listed: Vec<RuntimePod>) {
        let with_garbage: Vec<&RuntimePod> = listed.iter().filter(|pod| may_have_garbage(pod)).collect();
        let failures: Vec<String> =
            stream::iter(with_garbage)
                .map(|pod| async move {
                    self.collect(pod).await.err().map(|error| format!("pod {}: {error}", pod.full_name))
                })
                .buffer_unordered(PARALLEL)
                .filter_map(|failure| async { failure })
                .collect()
                .await;
        self.tell(&failures);
        if let Some(left) = self.remove_cgroups(&listed).await {
            self.remove_directories(&listed, &left).await;
        }
        self.tidy().await;
    }

    /// Removes what is garbage of one pod. What cannot be removed now is tried again by the next sweep.
    async fn collect(&self, pod: &RuntimePod) -> Result<(), RuntimeError> {
        // A pod that is wanted and has no record was rejected, or is about to be started: what it left may count yet.
        let decided = self.engine.is_pod_known(&pod.uid) || !self.is_wanted(&pod.uid);
        let over = decided && self.engine.should_pod_content_be_removed(&pod.uid);
        let last = self.observer.last(&pod.uid);
        let read = |id: &ContainerId| {
            let mut runs = last.iter().flat_map(|status| &status.containers);
            runs.any(|run| run.id == *id && run.state == ContainerState::Exited)
        };
        let garbage = garbage(pod, if over { Keep::Nothing } else { Keep::Newest }, read);
        for dead in &garbage.containers {
            self.remove(dead).await?;
        }
        for sandbox in &garbage.sandboxes {
            guarded(&self.metrics, || self.runtime.remove_sandbox(sandbox)).await?;
        }
        Ok(())
    }

    async fn remove(&self, Dead { id, may_run }: &Dead) -> Result<(), RuntimeError> {
        if *may_run {
            guarded(&self.metrics, || self.runtime.stop_container(id, Grace::MIN.duration())).await?;
        }
        // The newest log of a pod that goes on is kept by the container that is kept.
        guarded(&self.metrics, || self.runtime.remove_container(id, false)).await
    }

    /// Tells once when something begins to stay behind, and once when all of it has gone.
    fn tell(&self, failures: &[String]) {
        let (first, count) = (failures.first(), failures.len());
        let news = self.state.containers.take(first.map(|_| ()));
        if let (Some(first), [()]) = (first, &news.begun[..]) {
            tracing::warn!(pods = count, error = %first, "dead containers or sandboxes were not removed");
            let message = format!("dead containers or sandboxes of {count} pods cannot be removed; {first}");
            self.events.record_of_node(PodEvent::warning("ContainerGCFailed", message));
        }
        if news.over {
            tracing::info!("dead containers are removed again");
        }
    }

    /// Removes the directories of pods that nobody wants, knows or runs (K7).
    async fn remove_directories(&self, listed: &[RuntimePod], kept: &HashSet<PodUid>) {
        let pods = match self.storage.pods().await {
            Ok(pods) => pods,
            Err(error) => {
                if !self.state.directories.take([None]).begun.is_empty() {
                    tracing::warn!(%error, "cannot list pod directories");
                }
                return;
            }
        };
        // Whether it runs is asked last: hardly ever is there anything to ask it of.
        let unused = |uid: &PodUid, runs| is_directory_unused(self.is_wanted(uid), self.engine.is_pod_known(uid), runs);
        let unused_unless_running: Vec<PodUid> = pods.into_iter().filter(|uid| unused(uid, false)).collect();
        let runs = if unused_unless_running.is_empty() { HashSet::default() } else { running(listed) };
        let (mut found, mut failures) = (0, HashMap::new());
        for uid in unused_unless_running {
            if kept.contains(&uid) || !unused(&uid, runs.contains(&uid)) {
                continue;
            }
            found += 1;
            // A pod with a UID of its own may come back right now, so the last word is asked when nothing else is under way.
            let (engine, desired, asked) = (self.engine.clone(), self.desired.clone(), uid.clone());
            let unused = move || !engine.is_pod_known(&asked) && desired.pod(&asked).is_none();
            if let Err(error) = self.storage.remove_pod(&uid, Box::new(unused)).await {
                failures.insert(uid, error);
            }
        }
        self.metrics.housekeeping.cleaned_volumes(found, failures.len());
        let news = self.state.directories.take(failures.keys().cloned().map(Some));
        for (uid, error) in news.begun.iter().flatten().filter_map(|uid| failures.get_key_value(uid)) {
            tracing::warn!(pod.uid = %uid, %error, "pod directory was not removed; it is tried again with every pass");
        }
        if news.over {
            tracing::info!("pod directories are removed again");
        }
    }

    /// Removes the cgroups of pods that nobody wants, knows or runs (K1, K14). One that came back while others were removed
    /// keeps its own (W37).
    ///
    /// Gives those that could not be removed; `None` if they cannot be told. What is left of such a pod stays, so that the next
    /// pass knows of it.
    async fn remove_cgroups(&self, listed: &[RuntimePod]) -> Option<HashSet<PodUid>> {
        let Some(cgroups) = &self.cgroups else { return Some(HashSet::new()) };
        let pods = match cgroups.pods().await {
            Ok(pods) => pods,
            Err(error) => {
                if !self.state.cgroups.take([None]).begun.is_empty() {
                    tracing::warn!(%error, "cannot list the cgroups of pods");
                }
                return None;
            }
        };
        let runs = if pods.is_empty() { HashSet::default() } else { running(listed) };
        let mut failures = HashMap::new();
        for uid in pods {
            if is_directory_unused(self.is_wanted(&uid), self.engine.is_pod_known(&uid), runs.contains(&uid))
                && let Err(error) = cgroups.remove(&uid).await
            {
                failures.insert(uid, error);
            }
        }
        let news = self.state.cgroups.take(failures.keys().cloned().map(Some));
        for (uid, error) in news.begun.iter().flatten().filter_map(|uid| failures.get_key_value(uid)) {
            tracing::warn!(pod.uid = %uid, %error, "cgroup of a pod was not removed; it is tried again with every pass");
        }
        if news.over {
            tracing::info!("cgroups of pods are removed again");
        }
        Some(failures.into_keys().collect())
    }

    async fn tidy(&self) {
        let now = self.clock.now();
        let due = self.state.tidied.lock().is_none_or(|last| now.since(last) >= TIDY_PERIOD);
        if !due {
            return;
        }
        *self.state.tidied.lock() = Some(now);
        let result = self.storage.tidy().await;
        let news = self.state.leftovers.take(result.is_err().then_some(()));
        if let (Err(error), [()]) = (result, &news.begun[..]) {
            tracing::warn!(%error, "what is left of pods that are gone was not removed; it is tried again every minute");
        }
    }

    fn is_wanted(&self, uid: &PodUid) -> bool {
        self.desired.lock().pods.pod(uid).is_some()
    }
}
