//! The hooks that run a pod's containers: a [`PodSyncer`] over the ports of a node.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;

use crate::container_manager::activity::Task;
use crate::container_manager::{ContainerManager, RunningParts, SyncWork};
use crate::containers::plan::plan;
use crate::desired::DesiredPods;
use crate::final_statuses::{Ending, FinalStatusStore, is_final};
use crate::ids::PodUid;
use crate::observer::Observer;
use crate::pod::{Phase, PodObject};
use crate::ports::{
    CgroupError, Clock, ContainerRuntime, ContainerState, EventRecorder, HookContext, PodCgroups, PodEvent,
    PodRuntimeStatus, PodStorage, PodSyncer, RunningPod, RuntimeError, SyncError, SyncOutcome, SyncPod, TerminatingPod,
    VolumeMounts, within,
};
use crate::probes::ProbeManager;
use crate::status::{DEADLINE_EXCEEDED, NodeFacts, StatusInput, compute, deadline};
use crate::statuses::Statuses;
use crate::time::Grace;

/// How long volumes may take to come or go before the hook fails and is tried again (upstream
/// `podAttachAndMountTimeout`).
const VOLUMES_TIMEOUT: Duration = Duration::from_secs(123);

/// Runs pods by their specs. Its parts are shared with whoever shows or reclaims what they know.
pub struct NodeSyncer {
    /// Reads what runs.
    pub observer: Arc<Observer>,
    /// Starts and stops containers.
    pub containers: Arc<ContainerManager>,
    /// Probes them.
    pub probes: Arc<ProbeManager>,
    /// What the sources want.
    pub desired: Arc<DesiredPods>,
    /// Keeps the statuses.
    pub statuses: Arc<Statuses>,
    /// Keeps which pods are over for good.
    pub final_statuses: Arc<FinalStatusStore>,
    /// Keeps directories and volumes.
    pub storage: Arc<dyn PodStorage>,
    /// Tells what it lacks.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Keeps the cgroups of pods; if absent, they have none of their own.
    pub cgroups: Option<Arc<dyn PodCgroups>>,
    /// Takes events.
    pub events: Arc<dyn EventRecorder>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// What a status says of the node.
    pub node: NodeFacts,
}

/// A terminate hook may promise that nothing runs only if that is so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("containers still run although the runtime stopped them: {0}")]
struct StillRunning(String);

impl PodSyncer for NodeSyncer {
    async fn sync_pod(&self, cx: &HookContext, work: &SyncPod) -> Result<SyncOutcome, SyncError> {
        let pod = &work.pod;
        let mirror = work.mirror.as_deref();
        let runtime = self.read_to_sync(cx, pod).await?;
        let status = self.publish(cx, pod, mirror, &runtime, Stage::Running).await;
        if Phase::parse(status.phase.as_deref()).is_terminal() {
            // A pod comes here once for this: it is stopped from now on.
            if status.reason.as_deref() == Some(DEADLINE_EXCEEDED) {
                let message = status.message.clone().unwrap_or_default();
                self.events.record(pod, PodEvent::normal(DEADLINE_EXCEEDED, message));
            }
            return Ok(SyncOutcome::Terminal);
        }
        // The start time is known once the status was kept.
        let check_at = deadline(pod, self.statuses.get(pod.uid()).as_deref());

        self.check_network(pod)?;
        if self.make_cgroup(cx, pod, &runtime).await? == Moved::Stopped {
            return Ok(SyncOutcome::Continue { check_at: Some(self.clock.now()) });
        }
        let volumes = self.set_up_volumes(cx, pod).await?;
        self.probes.add_pod(pod);
        // Probes that are new have not seen the runs that were read above.
        self.probes.observe(&cx.uid, &runtime);
        let probes = self.probes.snapshot(pod.uid());
        let work = SyncWork { cancel: cx.cancel(), pod, status: &runtime, probes: &probes, volumes: &volumes };
        let planned = plan(pod, &runtime, &probes);
        let done = self.containers.sync_containers(&work, &planned).await;
        let mut again = false;
        if done.acted {
            // What was done is seen at once, not at the next event.
            let runtime = self.read_again(cx, pod).await?;
            self.publish(cx, pod, mirror, &runtime, Stage::Running).await;
            again = plan(pod, &runtime, &self.probes.snapshot(pod.uid())).starts_more_than(&planned);
        } else if done.error.is_some() {
            self.publish(cx, pod, mirror, &runtime, Stage::Running).await;
        }
        if let Some(error) = done.error {
            return Err(error);
        }
        self.observer.mark_synced(&cx.uid);
        Ok(SyncOutcome::Continue { check_at: if again { Some(self.clock.now()) } else { check_at } })
    }

    async fn sync_terminating_pod(&self, cx: &HookContext, work: &TerminatingPod) -> Result<(), SyncError> {
        let pod = &work.pod;
        let runtime = self.read(cx, Some(pod)).await?;
        self.publish(cx, pod, None, &runtime, Stage::Stopping(work)).await;
        self.probes.stop_liveness_and_startup(pod.uid());

        let running = RunningParts::from(&*runtime);
        let grace = work.forced.then_some(work.grace);
        match self.containers.kill_pod(cx.cancel(), pod.uid(), Some(pod), &running, grace).await {
            Ok(()) => {}
            Err(SyncError::Cancelled) => return Err(SyncError::Cancelled),
            Err(error) => {
                self.events.record(pod, PodEvent::warning("FailedKillPod", format!("error killing pod: {error}")));
                return Err(error);
            }
        }
        self.probes.remove_pod(pod.uid());

        let runtime = self.read(cx, Some(pod)).await?;
        nothing_runs(&runtime)?;
        self.publish(cx, pod, None, &runtime, Stage::Stopped).await;
        Ok(())
    }

    async fn sync_terminating_runtime_pod(&self, cx: &HookContext, running: &RunningPod) -> Result<(), SyncError> {
        let runtime = self.read(cx, None).await?;
        let parts = RunningParts::from(&*runtime);
        self.containers.kill_pod(cx.cancel(), &running.uid, None, &parts, Some(Grace::MIN)).await?;
        nothing_runs(&*self.read(cx, None).await?)
    }

    async fn sync_terminated_pod(&self, cx: &HookContext, pod: &Arc<PodObject>) -> Result<(), SyncError> {
        let runtime = self.read(cx, Some(pod)).await?;
        self.publish(cx, pod, None, &runtime, Stage::Stopped).await;
        self.clean_up(cx).await.inspect_err(|error| {
            self.events.record(pod, PodEvent::warning("FailedCleanup", format!("error cleaning up: {error}")));
        })?;
        if let Some(end) = self.statuses.ended(pod).filter(|end| is_final(pod, end)) {
            self.write_down(pod, &end).await;
        }
        self.statuses.terminate(pod);
        Ok(())
    }
}

/// What became of a pod whose containers may run outside of its cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    /// It is where it should be.
    InPlace,
    /// Its containers were stopped, to be started again where they should be.
    Stopped,
}

/// How far the pod has come, as its status has to say it.
enum Stage<'a> {
    Running,
    Stopping(&'a TerminatingPod),
    /// No container runs or can be started.
    Stopped,
}

impl NodeSyncer {
    async fn read(&self, cx: &HookContext, pod: Option<&Arc<PodObject>>) -> Result<Arc<PodRuntimeStatus>, SyncError> {
        let _doing = self.containers.activities().begin(&cx.uid, Task::ReadStatus);
        self.seen(cx, pod, cx.cancel().run_until_cancelled(self.observer.read(&cx.uid)).await)
    }

    /// Before containers are started or stopped; see [`Observer::read_to_sync`].
    async fn read_to_sync(&self, cx: &HookContext, pod: &Arc<PodObject>) -> Result<Arc<PodRuntimeStatus>, SyncError> {
        let _doing = self.containers.activities().begin(&cx.uid, Task::ReadStatus);
        self.seen(cx, Some(pod), cx.cancel().run_until_cancelled(self.observer.read_to_sync(&cx.uid)).await)
    }

    /// After containers were started or stopped; see [`Observer::read_again`].
    async fn read_again(&self, cx: &HookContext, pod: &Arc<PodObject>) -> Result<Arc<PodRuntimeStatus>, SyncError> {
        let _doing = self.containers.activities().begin(&cx.uid, Task::ReadStatus);
        self.seen(cx, Some(pod), cx.cancel().run_until_cancelled(self.observer.read_again(&cx.uid)).await)
    }

    /// What was read goes to the probes too. `None` is a read that was cancelled. A pod that only the runtime knows has
    /// nobody to tell that it cannot be read.
    fn seen(
        &self,
        cx: &HookContext,
        pod: Option<&Arc<PodObject>>,
        read: Option<Result<Arc<PodRuntimeStatus>, RuntimeError>>,
    ) -> Result<Arc<PodRuntimeStatus>, SyncError> {
        let runtime = read.ok_or(SyncError::Cancelled)?.map_err(|error| {
            if let Some(pod) = pod {
                let message = format!("error determining status: {error}");
                self.events.record(pod, PodEvent::warning("FailedSync", message));
            }
            SyncError::failed(error)
        })?;
        self.probes.observe(&cx.uid, &runtime);
        Ok(runtime)
    }

    /// A pod that needs a network waits until there is one (§14 step 5 of the hooks: upstream `SyncPod`, kubelet 1.36).
    fn check_network(&self, pod: &Arc<PodObject>) -> Result<(), SyncError> {
        let problem = if pod.is_host_network() { None } else { self.runtime.unready().network };
        let Some(problem) = problem else { return Ok(()) };
        let error = SyncError::NetworkNotReady(problem);
        self.events.record(pod, PodEvent::warning("NetworkNotReady", error.to_string()));
        Err(error)
    }

    /// Makes the pod's cgroup before anything runs in it. Containers that run although it is missing are stopped first: what
    /// they use would count for nobody.
    async fn make_cgroup(
        &self,
        cx: &HookContext,
        pod: &Arc<PodObject>,
        runtime: &PodRuntimeStatus,
    ) -> Result<Moved, SyncError> {
        let Some(cgroups) = &self.cgroups else { return Ok(Moved::InPlace) };
        let failed = |error: CgroupError| {
            self.events.record(pod, PodEvent::warning("FailedCreatePodContainer", error.to_string()));
            SyncError::failed(error)
        };
        let doing = self.containers.activities().begin(&cx.uid, Task::MakeCgroup);
        let exists = async { cgroups.exists(pod).await.map_err(failed) };
        if cx.cancel().run_until_cancelled(exists).await.unwrap_or(Err(SyncError::Cancelled))? {
            return Ok(Moved::InPlace);
        }
        drop(doing);
        let moved = if runtime.has_running_container() {
            tracing::warn!(pod.uid = %pod.uid(), "containers run outside of their pod's cgroup and are stopped");
            self.containers.kill_pod(cx.cancel(), pod.uid(), Some(pod), &RunningParts::from(runtime), None).await?;
            Moved::Stopped
        } else {
            Moved::InPlace
        };
        // One that runs once has run.
        if moved == Moved::InPlace || !pod.runs_once() {
            let _doing = self.containers.activities().begin(&cx.uid, Task::MakeCgroup);
            // Not given up half way: nobody would remove what came of it later.
            cgroups.make(pod).await.map_err(failed)?;
        }
        Ok(moved)
    }

    /// Takes the pod's volumes down, and its cgroup.
    async fn clean_up(&self, cx: &HookContext) -> Result<(), SyncError> {
        let doing = self.containers.activities().begin(&cx.uid, Task::TakeDownVolumes);
        within(VOLUMES_TIMEOUT, &*self.storage, &cx.uid, self.storage.tear_down(&cx.uid)).await?;
        drop(doing);
        if let Some(cgroups) = &self.cgroups {
            let _doing = self.containers.activities().begin(&cx.uid, Task::RemoveCgroup);
            cgroups.remove(&cx.uid, Box::new(|| true)).await.map_err(SyncError::failed)?;
        }
        Ok(())
    }

    async fn set_up_volumes(&self, cx: &HookContext, pod: &Arc<PodObject>) -> Result<VolumeMounts, SyncError> {
        let _doing = self.containers.activities().begin(&cx.uid, Task::SetUpVolumes);
        let set_up = within(VOLUMES_TIMEOUT, &*self.storage, &cx.uid, self.storage.set_up(pod));
        match cx.cancel().run_until_cancelled(set_up).await {
            None => Err(SyncError::Cancelled),
            Some(Ok(volumes)) => Ok(volumes),
            Some(Err(error)) => {
                self.events.record(pod, PodEvent::warning("FailedMount", error.to_string()));
                Err(SyncError::Storage(error))
            }
        }
    }

    /// Computes the pod's status and keeps it; if it is the last word on the pod, first on disk.
    async fn publish(
        &self,
        cx: &HookContext,
        pod: &PodObject,
        mirror: Option<&PodObject>,
        runtime: &PodRuntimeStatus,
        stage: Stage<'_>,
    ) -> PodStatus {
        let mut status = self.compute(&cx.uid, pod, runtime, &stage);
        if let Stage::Stopping(TerminatingPod { status_fn: Some(edit), .. }) = &stage {
            edit(&mut status);
        }
        if is_final(pod, &status)
            && let Some(status) = self.statuses.completed(pod, mirror, status.clone())
        {
            self.write_down(pod, &status).await;
        }
        self.statuses.set(pod, mirror, status.clone(), false);
        status
    }

    /// Takes note of the end of a pod, unless nobody would ask for it: no source wants the pod, or the source tells of its
    /// end itself.
    async fn write_down(&self, pod: &PodObject, status: &PodStatus) {
        let asked_for = !pod.phase().is_terminal() && self.desired.pod(pod.uid()).is_some();
        if asked_for && self.final_statuses.note(pod, Ending::Ended, status) {
            self.final_statuses.written().await;
        }
    }

    fn compute(&self, uid: &PodUid, pod: &PodObject, runtime: &PodRuntimeStatus, stage: &Stage<'_>) -> PodStatus {
        compute(&StatusInput {
            pod,
            runtime,
            previous: self.statuses.get(uid).as_deref(),
            probes: &self.probes.snapshot(uid),
            start_errors: &self.containers.start_errors().of(uid),
            is_terminal: matches!(stage, Stage::Stopped),
            termination_requested: !matches!(stage, Stage::Running),
            now: self.clock.now(),
            node: &self.node,
        })
    }
}

fn nothing_runs(runtime: &PodRuntimeStatus) -> Result<(), SyncError> {
    let running = runtime.containers.iter().filter(|c| c.state == ContainerState::Running);
    let names = running.map(|c| c.name.as_str()).collect::<Vec<_>>().join(", ");
    if names.is_empty() { Ok(()) } else { Err(SyncError::failed(StillRunning(names))) }
}
