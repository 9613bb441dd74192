//! The hooks that run a pod's containers: a [`PodSyncer`] over the ports of a node. Each hook is a list of steps.
//!
//! ```text
//!   sync_pod                read -> publish status -> network -> cgroup -> volumes -> probes -> plan -> containers -> publish
//!   sync_terminating_pod    read -> publish status -> probes -> stop containers -> read -> nothing runs -> resources -> publish
//!   sync_terminated_pod     read -> publish status -> volumes and cgroup -> final status on disk -> terminate status
//! ```
//!
//! `status.rs` holds the steps that read the runtime and publish the status; `resources.rs` those that make and remove the
//! cgroup, the volumes and the network, and release the devices of claims.

mod objects;
mod resources;
mod status;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::container_manager::{ContainerManager, RunningParts, SyncWork};
use crate::containers::env::Allocatable;
use crate::containers::plan::plan;
use crate::desired::DesiredPods;
use crate::final_statuses::{FinalStatusStore, is_final};
use crate::mirrors::checks::MirrorChecks;
use crate::observer::Observer;
use crate::pod::{Phase, PodObject};
use crate::ports::{
    ApiObjects, Clock, ContainerRuntime, EventRecorder, HookContext, PodCgroups, PodEvent, PodRuntimeStatus,
    PodStorage, PodSyncer, ResourcePhase, RunningPod, SyncError, SyncOutcome, SyncPod, TerminatingPod, VolumeMounts,
};
use crate::probe_manager::ProbeManager;
use crate::resizes::Resizes;
use crate::run_facts::RunFacts;
use crate::status::{NodeFacts, deadline};
use crate::statuses::Statuses;
use crate::text::error_chain;
use crate::texts::pods;
use crate::time::Grace;

use resources::CgroupStep;
use status::Stage;

/// How often a static pod checks whether its earlier version has stopped.
const EARLIER_VERSION_CHECK: Duration = Duration::from_secs(1);

/// Runs pods by their specs.
pub(crate) struct NodeSyncer {
    pub(crate) observer: Arc<Observer>,
    pub(crate) containers: Arc<ContainerManager>,
    pub(crate) probes: Arc<ProbeManager>,
    pub(crate) desired: Arc<DesiredPods>,
    /// The mirror pods that have to be compared with their static pods.
    pub(crate) mirrors: Arc<MirrorChecks>,
    pub(crate) statuses: Arc<Statuses>,
    pub(crate) final_statuses: Arc<FinalStatusStore>,
    pub(crate) storage: Arc<dyn PodStorage>,
    /// The API objects that volumes are made of; `None` without an API server.
    pub(crate) objects: Option<Arc<dyn ApiObjects>>,
    /// The resources that the node offers to pods.
    pub(crate) allocatable: Allocatable,
    /// Reports whether the network is ready.
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
    /// What is allocated to pods that are being resized.
    pub(crate) resizes: Arc<Resizes>,
    /// What the last agent was doing with the containers.
    pub(crate) run_facts: Arc<RunFacts>,
    /// Releases the resources of pods; `None` if pods may need none.
    pub(crate) resources: Option<Arc<dyn ResourcePhase>>,
    /// Absent if pods have no cgroups of their own.
    pub(crate) cgroups: Option<Arc<dyn PodCgroups>>,
    pub(crate) events: Arc<dyn EventRecorder>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Fires when the containers of a pod have ended. The dispatcher then judges the pods that wait for resources again.
    pub(crate) pod_ended: Arc<Notify>,
    /// The facts of the node that statuses show.
    pub(crate) node: NodeFacts,
}

impl PodSyncer for NodeSyncer {
    async fn sync_pod(&self, cx: &HookContext, work: &SyncPod) -> Result<SyncOutcome, SyncError> {
        let synced = self.sync(cx, work).await;
        if !matches!(synced, Err(SyncError::Cancelled)) {
            self.resizes.synced(&work.pod, synced.is_err());
        }
        synced
    }

    async fn sync_terminating_pod(&self, cx: &HookContext, work: &TerminatingPod) -> Result<(), SyncError> {
        let pod = &work.pod;
        let runtime = self.read(cx, Some(pod)).await?;
        self.publish(cx, pod, None, &runtime, Stage::Stopping(work)).await;
        // An earlier agent may have begun the stop, so the probes may not have been added. Readiness is probed until the end.
        self.add_probes(cx, pod, &runtime);
        self.probes.stop_liveness_and_startup(pod.uid());

        let grace = work.forced.then_some(work.grace);
        if let Err(error) = self.stop_containers(cx, pod, &runtime, grace).await {
            return Err(self.stop_failed(cx, Some(pod), error).await);
        }
        self.probes.remove_pod(pod.uid());

        let runtime = self.read(cx, Some(pod)).await?;
        self.containers.check_stopped(&cx.uid, Some(pod), &runtime).await?;
        if self.resources.as_ref().is_some_and(|resources| resources.holds(&cx.uid)) {
            // The terminal status keeps what is known of the resources before their release.
            self.publish(cx, pod, None, &runtime, Stage::Stopping(work)).await;
        }
        self.release_resources(cx, pod).await?;
        self.publish(cx, pod, None, &runtime, Stage::Stopped).await;
        Ok(())
    }

    async fn sync_terminating_runtime_pod(
        &self,
        cx: &HookContext,
        running: &RunningPod,
        grace: Grace,
    ) -> Result<(), SyncError> {
        let runtime = self.read(cx, None).await?;
        let parts = RunningParts::from(&*runtime);
        if let Err(error) = self.containers.kill_pod(cx.cancel(), &running.uid, None, &parts, Some(grace)).await {
            return Err(self.stop_failed(cx, None, error).await);
        }
        let runtime = self.read(cx, None).await?;
        self.containers.check_stopped(&cx.uid, None, &runtime).await
    }

    async fn sync_terminated_pod(&self, cx: &HookContext, pod: &Arc<PodObject>) -> Result<(), SyncError> {
        self.pod_ended.notify_one();
        // No container runs, so a terminal phase that was published before may be written now.
        self.statuses.compare_with_api(pod.uid());
        let runtime = self.read(cx, Some(pod)).await?;
        self.publish(cx, pod, None, &runtime, Stage::Stopped).await;
        self.unregister_objects(&cx.uid);
        self.clean_up(cx).await.inspect_err(|error| {
            self.events
                .record(pod, PodEvent::warning("FailedCleanup", format!("error cleaning up: {}", error_chain(error))));
        })?;
        if let Some(status) = self.statuses.ended(pod).filter(|status| is_final(pod, status))
            && self.store_final_status(pod, &status).await.is_err()
        {
            return Ok(());
        }
        self.statuses.terminate(pod);
        Ok(())
    }
}

impl NodeSyncer {
    /// The steps of [`sync_pod`](PodSyncer::sync_pod).
    async fn sync(&self, cx: &HookContext, work: &SyncPod) -> Result<SyncOutcome, SyncError> {
        let pod = &work.pod;
        let mirror = work.mirror.as_deref();
        self.mirrors.changed(pod);
        let runtime = self.read_to_sync(cx, pod).await?;
        self.resizes.settle(pod, &runtime, self.cgroups.is_some());
        let status = self.publish(cx, pod, mirror, &runtime, Stage::Running).await;
        if Phase::parse(status.phase.as_deref()).is_terminal() {
            self.report_exceeded_deadline(pod, &status);
            return Ok(SyncOutcome::Terminal);
        }
        // A pod that stops meanwhile still has the rest of the grace period that an earlier agent left.
        if cx.cancel().is_cancelled() {
            return Err(SyncError::Cancelled);
        }
        // The stop does not go on, whatever keeps the pod from being synced now.
        self.run_facts.runs(pod.uid());
        self.check_earlier_version(pod, &runtime)?;
        // The deadline counts from the start time, which the published status has.
        let check_at = deadline(pod, self.statuses.get(pod.uid()).as_deref());

        self.check_network(pod)?;
        self.register_objects(pod);
        if self.make_cgroup(cx, pod, &runtime).await? == CgroupStep::StoppedContainers {
            return Ok(SyncOutcome::Continue { check_at: Some(self.clock.now()) });
        }
        let volumes = self.set_up_volumes(cx, pod).await?;
        self.add_probes(cx, pod, &runtime);
        let needs_sync = self.sync_containers(cx, pod, mirror, &runtime, &volumes).await?;
        self.observer.mark_synced(&cx.uid);
        Ok(SyncOutcome::Continue { check_at: if needs_sync { Some(self.clock.now()) } else { check_at } })
    }

    /// Adds the probes of a pod, or updates them. Probes that were just added have not observed the containers that were read before.
    fn add_probes(&self, cx: &HookContext, pod: &Arc<PodObject>, runtime: &PodRuntimeStatus) {
        self.probes.add_pod(pod);
        self.probes.observe(&cx.uid, &self.run_facts.observable(pod, runtime));
    }

    /// Starts and stops containers as the plan says, and publishes the result. Returns whether more containers can start now,
    /// so that the pod has to be synced again at once.
    async fn sync_containers(
        &self,
        cx: &HookContext,
        pod: &Arc<PodObject>,
        mirror: Option<&PodObject>,
        runtime: &PodRuntimeStatus,
        volumes: &VolumeMounts,
    ) -> Result<bool, SyncError> {
        let probes = self.probes.snapshot(pod.uid());
        let work = SyncWork { cancel: cx.cancel(), pod, status: runtime, probes: &probes, volumes };
        let planned = plan(pod, runtime, &probes);
        let done = self.containers.sync_containers(&work, &planned).await;
        let mut needs_sync = false;
        if done.acted {
            // The status shows the new containers now, and not only after the next event of the runtime.
            let runtime = self.read_again(cx, pod).await?;
            self.resizes.settle(pod, &runtime, self.cgroups.is_some());
            self.publish(cx, pod, mirror, &runtime, Stage::Running).await;
            needs_sync = plan(pod, &runtime, &self.probes.snapshot(pod.uid())).starts_more_than(&planned);
        } else if done.error.is_some() {
            self.publish(cx, pod, mirror, runtime, Stage::Running).await;
        }
        match done.error {
            Some(error) => Err(error),
            None => Ok(needs_sync),
        }
    }

    /// Checks that no earlier version of a static pod still runs, which an earlier agent started and whose manifest is gone (POD-I8). The
    /// engine knows only the pods that have a record.
    fn check_earlier_version(&self, pod: &PodObject, runtime: &PodRuntimeStatus) -> Result<(), SyncError> {
        if !pod.is_static() || runtime.is_running() {
            return Ok(());
        }
        match self.observer.earlier_version(pod) {
            Some(uid) => {
                // No pass stops it before that, because a source that is missing may desire it.
                let why = if self.desired.lock().is_ready_for(pod) {
                    "has not stopped yet"
                } else {
                    "runs until every source of static pods has delivered"
                };
                let what = format!("its earlier version, the pod with UID {uid}, {why}");
                Err(SyncError::BackOff { what, until: self.clock.now() + EARLIER_VERSION_CHECK })
            }
            None => Ok(()),
        }
    }

    /// The error of a stop, with the containers that run although their own stops succeeded.
    async fn stop_failed(&self, cx: &HookContext, pod: Option<&Arc<PodObject>>, error: SyncError) -> SyncError {
        if matches!(error, SyncError::Cancelled) || !self.containers.has_suspects(&cx.uid) {
            return error;
        }
        match self.read(cx, pod).await {
            Ok(runtime) => self.containers.check_failed(&cx.uid, pod, &runtime, error).await,
            Err(_) => error,
        }
    }

    async fn stop_containers(
        &self,
        cx: &HookContext,
        pod: &Arc<PodObject>,
        runtime: &PodRuntimeStatus,
        grace: Option<Grace>,
    ) -> Result<(), SyncError> {
        let parts = RunningParts::from(runtime);
        let stopped = self.containers.kill_pod(cx.cancel(), pod.uid(), Some(pod), &parts, grace).await;
        stopped.inspect_err(|error| {
            if !matches!(error, SyncError::Cancelled) {
                self.events
                    .record(pod, PodEvent::warning("FailedKillPod", pods::not_killed(&error_chain(error).to_string())));
            }
        })
    }
}
