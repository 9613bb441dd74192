//! Dead containers, ended sandboxes, and directories that nobody needs any more: what is removed in the background of a
//! pass, and by nobody else. (A worker removes runs too, where its plan says so: they would be in the way of new ones.)
//!
//! No end of a container is lost that the engine has not read: of a pod that goes on, a dead run is removed only when the
//! observer has shown its end and a newer one stays, and a worker starts a newer run only after it has read the end of the
//! one before; of a pod that is over, all ends were read before it was said to be over.

mod plan;

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use podwright_metrics::Metrics;
use tokio::time::timeout;

use super::plan::{is_directory_unused, running};
use super::told::Told;
use crate::desired::Desired;
use crate::engine::Engine;
use crate::ids::{ContainerId, PodUid};
use crate::metered::guarded;
use crate::observer::Observer;
use crate::pod_worker::Lifecycle;
use crate::ports::{
    ContainerRuntime, ContainerState, EventRecorder, PodCgroups, PodEvent, PodStorage, RuntimeError, RuntimePod, within,
};

use plan::{Keep, garbage, may_have_garbage};

/// How many pods are cleaned at once: a removal that takes long holds up no other, and all of them leave the runtime room
/// for starts.
const PARALLEL: usize = 4;

/// How long what is dead of one pod may hold up a sweep: longer than any call to a runtime but one that has to stop
/// something. The next sweep asks again.
const COLLECT_LIMIT: Duration = Duration::from_secs(180);
/// The same for what one pod left on disk. What was begun goes on, and may be done when the next sweep asks.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);

/// What is kept between sweeps.
#[derive(Debug, Default)]
pub(super) struct SweepState {
    /// Whether dead containers or sandboxes cannot be removed.
    containers: Told<()>,
    /// Whose directory cannot be removed; nobody's if they cannot be listed.
    directories: Told<Option<PodUid>>,
    /// The same of cgroups.
    cgroups: Told<Option<PodUid>>,
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
    pub(super) metrics: Metrics,
    pub(super) state: Arc<SweepState>,
}

impl Sweep {
    pub(super) async fn run(&self, listed: Vec<RuntimePod>) {
        let with_garbage: Vec<&RuntimePod> = listed.iter().filter(|pod| may_have_garbage(pod)).collect();
        let failures: Vec<String> = stream::iter(with_garbage)
            .map(|pod| async move {
                let collected = timeout(COLLECT_LIMIT, self.collect(pod)).await;
                let slow = || format!("not done after {} s", COLLECT_LIMIT.as_secs());
                let error = collected.map_or_else(|_| Some(slow()), |done| done.err().map(|it| it.to_string()));
                error.map(|error| format!("pod {}: {error}", pod.full_name))
            })
            .buffer_unordered(PARALLEL)
            .filter_map(|failure| async { failure })
            .collect()
            .await;
        self.tell(&failures);
        if let Some(left) = self.remove_cgroups(&listed).await {
            self.remove_directories(&listed, &left).await;
        }
    }

    /// Removes what is garbage of one pod. What cannot be removed now is tried again by the next sweep.
    async fn collect(&self, pod: &RuntimePod) -> Result<(), RuntimeError> {
        // A pod that is wanted and has no record was rejected, or is about to be started: what it left may count yet.
        let decided = self.engine.is_pod_known(&pod.uid) || !self.is_wanted(&pod.uid);
        // An evicted pod may be asked to leave nothing while it still stops. Its ends are read at the end of that, and an agent
        // that starts anew meanwhile has only its runs to go by.
        let over = decided
            && self.engine.should_pod_content_be_removed(&pod.uid)
            && self.engine.lifecycle(&pod.uid) != Some(Lifecycle::Terminating);
        let last = self.observer.last(&pod.uid);
        let read = |id: &ContainerId| {
            let mut runs = last.iter().flat_map(|status| &status.containers);
            runs.any(|run| run.id == *id && run.state == ContainerState::Exited)
        };
        let garbage = garbage(pod, if over { Keep::Nothing } else { Keep::Newest }, read);
        for run in &garbage.containers {
            // The newest log of a pod that goes on is kept by the container that is kept.
            guarded(&self.metrics, || self.runtime.remove_container(run, false)).await?;
        }
        for sandbox in &garbage.sandboxes {
            guarded(&self.metrics, || self.runtime.remove_sandbox(sandbox)).await?;
        }
        Ok(())
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
        let goes = |uid: &PodUid| !kept.contains(uid) && unused(uid, runs.contains(uid));
        let removals = stream::iter(unused_unless_running.into_iter().filter(goes)).map(|uid| async {
            // A pod with a UID of its own may come back right now, so the last word is asked when nothing else is under way.
            let (engine, desired, asked) = (self.engine.clone(), self.desired.clone(), uid.clone());
            let unused = move || !engine.is_pod_known(&asked) && desired.pod(&asked).is_none();
            let removal = self.storage.remove_pod(&uid, Box::new(unused));
            let removed = within(REMOVE_LIMIT, &*self.storage, &uid, removal).await;
            (uid, removed)
        });
        let mut removals = pin!(removals.buffer_unordered(PARALLEL));
        let (mut found, mut failures) = (0, HashMap::new());
        while let Some((uid, removed)) = removals.next().await {
            found += 1;
            if let Err(error) = removed {
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

    fn is_wanted(&self, uid: &PodUid) -> bool {
        self.desired.lock().pods.pod(uid).is_some()
    }
}
