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
    CgroupError, ContainerRuntime, ContainerState, EventRecorder, PodCgroups, PodEvent, PodStorage, RuntimeError,
    RuntimePod, StorageError, Unused, within,
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
    /// Whose cgroup cannot be removed.
    cgroups: Told<PodUid>,
}

/// What could not be removed of a pod.
enum Left {
    Cgroup(CgroupError),
    Directory(StorageError),
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
        self.remove_leftovers(&listed).await;
    }

    /// Removes what is garbage of one pod. What cannot be removed now is tried again by the next sweep.
    async fn collect(&self, pod: &RuntimePod) -> Result<(), RuntimeError> {
        let over = self.is_over(&pod.uid);
        let last = self.observer.last(&pod.uid);
        let read = |id: &ContainerId| {
            let mut runs = last.iter().flat_map(|status| &status.containers);
            runs.any(|run| run.id == *id && run.state == ContainerState::Exited)
        };
        let garbage = garbage(pod, if over { Keep::Nothing } else { Keep::Newest }, read);
        // One that came back meanwhile goes on from what is left: each end that it still shows counts.
        let came_back = || over && !self.is_over(&pod.uid);
        for run in &garbage.containers {
            if came_back() {
                return Ok(());
            }
            // The newest log of a pod that goes on is kept by the container that is kept.
            guarded(&self.metrics, || self.runtime.remove_container(run, false)).await?;
        }
        for sandbox in &garbage.sandboxes {
            if came_back() {
                return Ok(());
            }
            guarded(&self.metrics, || self.runtime.remove_sandbox(sandbox)).await?;
        }
        Ok(())
    }

    /// Whether nothing that the pod left counts any more.
    fn is_over(&self, uid: &PodUid) -> bool {
        // A pod that is wanted and has no record was rejected, or is about to be started: what it left may count yet.
        let decided = self.engine.is_pod_known(uid) || !self.is_wanted(uid);
        // An evicted pod may be asked to leave nothing while it still stops. Its ends are read at the end of that, and an
        // agent that starts anew meanwhile has only its runs to go by.
        decided
            && self.engine.should_pod_content_be_removed(uid)
            && self.engine.lifecycle(uid) != Some(Lifecycle::Terminating)
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

    /// Removes the cgroups and directories of pods that nobody wants, knows or runs (K7, K14).
    ///
    /// Whose cgroup it is shows by the pod's directory, so these alone are listed, and not the cgroups (K1): a directory goes
    /// last, and what is left of a pod is known to the next pass.
    async fn remove_leftovers(&self, listed: &[RuntimePod]) {
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
        let goes = |uid: &PodUid| unused(uid, runs.contains(uid));
        let removals = stream::iter(unused_unless_running.into_iter().filter(goes)).map(|uid| async {
            let left = self.remove_leftover(&uid).await.err();
            (uid, left)
        });
        let mut removals = pin!(removals.buffer_unordered(PARALLEL));
        let (mut found, mut cgroups, mut directories) = (0, HashMap::new(), HashMap::new());
        while let Some((uid, left)) = removals.next().await {
            match left {
                Some(Left::Cgroup(error)) => drop(cgroups.insert(uid, error)),
                Some(Left::Directory(error)) => {
                    found += 1;
                    directories.insert(uid, error);
                }
                None => found += 1,
            }
        }
        self.metrics.housekeeping.cleaned_volumes(found, directories.len());
        let news = self.state.cgroups.take(cgroups.keys().cloned());
        for (uid, error) in news.begun.iter().filter_map(|uid| cgroups.get_key_value(uid)) {
            tracing::warn!(pod.uid = %uid, %error, "cgroup of a pod was not removed; it is tried again with every pass");
        }
        if news.over {
            tracing::info!("cgroups of pods are removed again");
        }
        let news = self.state.directories.take(directories.keys().cloned().map(Some));
        for (uid, error) in news.begun.iter().flatten().filter_map(|uid| directories.get_key_value(uid)) {
            tracing::warn!(pod.uid = %uid, %error, "pod directory was not removed; it is tried again with every pass");
        }
        if news.over {
            tracing::info!("pod directories are removed again");
        }
    }

    /// A pod with a UID of its own may come back right now, and keeps its own then (W37): the last word is asked when nothing
    /// else is under way.
    async fn remove_leftover(&self, uid: &PodUid) -> Result<(), Left> {
        let unused = || -> Unused {
            let (engine, desired, asked) = (self.engine.clone(), self.desired.clone(), uid.clone());
            Box::new(move || !engine.is_pod_known(&asked) && desired.pod(&asked).is_none())
        };
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove(uid, unused()).await.map_err(Left::Cgroup)?;
        }
        let removal = self.storage.remove_pod(uid, unused());
        within(REMOVE_LIMIT, &*self.storage, uid, removal).await.map_err(Left::Directory)
    }

    fn is_wanted(&self, uid: &PodUid) -> bool {
        self.desired.lock().pods.pod(uid).is_some()
    }
}
