//! The sweep: removes dead containers, ended sandboxes, and the directories and cgroups of removed pods, in the background of
//! a pass. Besides the sweep, only a pod's worker removes containers, as its plan requires.
//!
//! The sweep loses no exit code. While the pod runs, a dead container is removed only after the observer has read its exit and
//! while a newer run of the container is kept. A worker starts a newer run only after it has read the exit of the last one.
//! The worker of a terminated pod read all exits before the pod terminated.

mod plan;

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use podwright_core::housekeeping::{is_directory_unused, running};
use podwright_metrics::Metrics;
use tokio::time::timeout;

use super::failure_log::FailureLog;
use crate::active_pods::ActivePods;
use crate::desired::DesiredPods;
use crate::engine::Engine;
use crate::final_statuses::FinalStatusStore;
use crate::health::PassHealth;
use crate::ids::{ContainerId, PodUid};
use crate::metered::guarded;
use crate::observer::Observer;
use crate::pod_worker::Lifecycle;
use crate::ports::{
    CgroupError, Clock, ContainerRuntime, ContainerState, EventRecorder, PodCgroups, PodEvent, PodStorage,
    RuntimeError, RuntimePod, StorageError, Unused, within,
};
use crate::text::error_chain;

use plan::{Keep, garbage, may_have_garbage};

/// The number of pods that are cleaned up at once. One slow removal does not delay the others, and the runtime keeps capacity
/// for starts.
const PARALLEL: usize = 4;

/// The time limit for removing the dead containers of one pod: longer than any runtime call except a stop. The next sweep
/// tries again.
const COLLECT_LIMIT: Duration = Duration::from_secs(180);
/// How long a sweep waits for the removal of one pod's directory. The removal continues after that, and the next sweep checks
/// it.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);

/// The failures of the last sweep.
#[derive(Debug, Default)]
pub(super) struct SweepState {
    /// Whether dead containers or sandboxes could not be removed.
    containers_left: AtomicBool,
    /// The pods whose directory could not be removed. `None` if the directories could not be listed.
    directories: FailureLog<Option<PodUid>>,
    /// The pods whose cgroup could not be removed.
    cgroups: FailureLog<PodUid>,
}

/// A part of a pod that could not be removed.
enum Leftover {
    Cgroup(CgroupError),
    Directory(StorageError),
}

/// Which pods lose all of their dead containers in a sweep. Other pods keep the newest dead run of each container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GarbageScope {
    /// Pods that have ended, and whose content is not needed any more: they were deleted or evicted, or they start anew.
    Unneeded,
    /// All pods that have ended (upstream `DeleteAllUnusedContainers`, kubelet 1.36), and that no later agent can run again.
    Ended,
}

/// One sweep.
pub(super) struct Sweep {
    pub(super) engine: Engine,
    pub(super) desired: Arc<DesiredPods>,
    pub(super) final_statuses: Arc<FinalStatusStore>,
    pub(super) active: ActivePods,
    pub(super) observer: Arc<Observer>,
    pub(super) runtime: Arc<dyn ContainerRuntime>,
    pub(super) storage: Arc<dyn PodStorage>,
    pub(super) cgroups: Option<Arc<dyn PodCgroups>>,
    pub(super) events: Arc<dyn EventRecorder>,
    pub(super) metrics: Metrics,
    /// Publishes what cannot be removed.
    pub(super) health: Arc<PassHealth>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) state: Arc<SweepState>,
}

impl Sweep {
    /// Removes dead containers and ended sandboxes of the listed pods.
    pub(super) async fn collect_garbage(&self, listed: &[RuntimePod], scope: GarbageScope) {
        let with_garbage: Vec<&RuntimePod> = listed.iter().filter(|pod| may_have_garbage(pod)).collect();
        let failures: Vec<String> = stream::iter(with_garbage)
            .map(|pod| async move {
                let collected = timeout(COLLECT_LIMIT, self.collect(pod, scope)).await;
                let slow = || format!("not done after {} s", COLLECT_LIMIT.as_secs());
                let error =
                    collected.map_or_else(|_| Some(slow()), |done| done.err().map(|it| error_chain(&it).to_string()));
                error.map(|error| format!("pod {}: {error}", pod.full_name))
            })
            .buffer_unordered(PARALLEL)
            .filter_map(|failure| async { failure })
            .collect()
            .await;
        self.report(&failures);
    }

    /// Removes the garbage of one pod. The next sweep retries failed removals.
    async fn collect(&self, pod: &RuntimePod, scope: GarbageScope) -> Result<(), RuntimeError> {
        let loses_all = self.loses_all(&pod.uid, scope);
        let last = self.observer.last(&pod.uid);
        let read = |id: &ContainerId| {
            let mut runs = last.iter().flat_map(|status| &status.containers);
            runs.any(|run| run.id == *id && run.state == ContainerState::Exited)
        };
        let garbage = garbage(pod, if loses_all { Keep::Nothing } else { Keep::Newest }, read);
        // A pod that is created again during the sweep continues from the containers that are left, so their exits are needed.
        let was_created_again = || loses_all && !self.loses_all(&pod.uid, scope);
        for run in &garbage.containers {
            if was_created_again() {
                return Ok(());
            }
            // The container that is kept also keeps the newest log.
            guarded(&self.metrics, || self.runtime.remove_container(run, false)).await?;
        }
        for sandbox in &garbage.sandboxes {
            if was_created_again() {
                return Ok(());
            }
            guarded(&self.metrics, || self.runtime.remove_sandbox(sandbox)).await?;
        }
        Ok(())
    }

    /// Whether the pod loses all of its dead containers.
    fn loses_all(&self, uid: &PodUid, scope: GarbageScope) -> bool {
        let has_stopped = || self.engine.lifecycle(uid).is_none_or(|lifecycle| lifecycle >= Lifecycle::Terminated);
        if self.active.leaves_earlier_life(uid) && has_stopped() {
            return true;
        }
        // A desired pod without a record was rejected, or is about to start: it may still need its dead containers.
        let is_decided = self.engine.is_pod_known(uid) || !self.is_desired(uid);
        is_decided
            && match scope {
                // The content of an evicted pod may be removed while the pod is still stopping. But its exit codes are read only at
                // the end of the stop, and an agent that restarts during it finds them only in the dead containers.
                GarbageScope::Unneeded => {
                    self.engine.should_pod_content_be_removed(uid)
                        && self.engine.lifecycle(uid) != Some(Lifecycle::Terminating)
                }
                // A pod that was created again continues from the containers that are left.
                GarbageScope::Ended => {
                    self.engine.should_pod_runtime_be_removed(uid)
                        && !self.engine.is_restart_requested(uid)
                        && self.is_end_known(uid)
                }
            }
    }

    /// Whether the next agent knows without the containers of the pod that the pod has ended. It would run the pod again otherwise.
    fn is_end_known(&self, uid: &PodUid) -> bool {
        self.desired.pod(uid).is_none_or(|pod| pod.phase().is_terminal()) || self.final_statuses.is_stored(uid)
    }

    /// Logs, and records an event, when removals begin to fail; logs when they succeed again.
    fn report(&self, failures: &[String]) {
        let (first, count) = (failures.first(), failures.len());
        match (first, self.state.containers_left.swap(count > 0, Ordering::Relaxed)) {
            (Some(first), false) => {
                tracing::warn!(pods = count, error = %first, "dead containers or sandboxes were not removed");
                let message = format!("dead containers or sandboxes of {count} pods cannot be removed; {first}");
                self.events.record_of_node(PodEvent::warning("ContainerGCFailed", message));
            }
            (None, true) => tracing::info!("dead containers are removed again"),
            (Some(_), true) | (None, false) => {}
        }
    }

    /// Removes the cgroups and directories of pods that no source desires, that have no record and that do not run (POD-K7,
    /// POD-K14).
    ///
    /// Only the directories are listed, not the cgroups (POD-K1). A pod's directory is removed last, so the next sweep finds
    /// every pod whose cgroup is left.
    pub(super) async fn remove_leftovers(&self, listed: &[RuntimePod]) {
        let pods = match self.storage.pods().await {
            Ok(pods) => pods,
            Err(error) => {
                if !self.state.directories.update([None]).begun.is_empty() {
                    tracing::warn!(error = %error_chain(&error), "cannot list pod directories");
                }
                return;
            }
        };
        // The set of running pods is built only if a directory may be unused, which is rare.
        let unused =
            |uid: &PodUid, runs| is_directory_unused(self.is_desired(uid), self.engine.is_pod_known(uid), runs);
        let unused_unless_running: Vec<PodUid> = pods.into_iter().filter(|uid| unused(uid, false)).collect();
        let runs = if unused_unless_running.is_empty() { HashSet::default() } else { running(listed) };
        let may_be_removed = |uid: &PodUid| unused(uid, runs.contains(uid));
        let removals = stream::iter(unused_unless_running.into_iter().filter(may_be_removed)).map(|uid| async {
            let failure = self.remove_leftover(&uid).await.err();
            (uid, failure)
        });
        let mut removals = pin!(removals.buffer_unordered(PARALLEL));
        let (mut found, mut cgroups, mut directories) = (0, HashMap::new(), HashMap::new());
        while let Some((uid, failure)) = removals.next().await {
            match failure {
                Some(Leftover::Cgroup(error)) => drop(cgroups.insert(uid, error)),
                Some(Leftover::Directory(error)) => {
                    found += 1;
                    directories.insert(uid, error);
                }
                None => found += 1,
            }
        }
        self.metrics.housekeeping.cleaned_volumes(found, directories.len());
        let of_cgroups = cgroups.iter().map(|(uid, error)| (uid.clone(), error_chain(error).to_string()));
        let of_directories = directories.iter().map(|(uid, error)| (uid.clone(), error_chain(error).to_string()));
        self.health.leftovers_failed(self.clock.now(), of_cgroups.chain(of_directories));
        let changes = self.state.cgroups.update(cgroups.keys().cloned());
        for (uid, error) in changes.begun.iter().filter_map(|uid| cgroups.get_key_value(uid)) {
            tracing::warn!(pod.uid = %uid, error = %error_chain(error), "cannot remove the cgroup of a pod; each pass tries again");
        }
        if changes.ended {
            tracing::info!("cgroups of pods are removed again");
        }
        let changes = self.state.directories.update(directories.keys().cloned().map(Some));
        for (uid, error) in changes.begun.iter().flatten().filter_map(|uid| directories.get_key_value(uid)) {
            tracing::warn!(pod.uid = %uid, error = %error_chain(error), "cannot remove the directory of a pod; each pass tries again");
        }
        if changes.ended {
            tracing::info!("pod directories are removed again");
        }
    }

    /// Removes the cgroup and the directory of one pod. A pod with a fixed UID may be created again at any time and must keep
    /// both (POD-W37), so the ports check that the pod is unused right before they remove anything.
    async fn remove_leftover(&self, uid: &PodUid) -> Result<(), Leftover> {
        let unused = || -> Unused {
            let (engine, desired, uid) = (self.engine.clone(), self.desired.clone(), uid.clone());
            Box::new(move || !engine.is_pod_known(&uid) && desired.pod(&uid).is_none())
        };
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove(uid, unused()).await.map_err(Leftover::Cgroup)?;
        }
        let removal = self.storage.remove_pod(uid, unused());
        within(REMOVE_LIMIT, &*self.storage, uid, removal).await.map_err(Leftover::Directory)
    }

    fn is_desired(&self, uid: &PodUid) -> bool {
        self.desired.lock().pods.pod(uid).is_some()
    }
}
