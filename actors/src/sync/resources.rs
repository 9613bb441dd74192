//! The steps that make and remove what a pod's containers need: network, cgroup and volumes.

use std::sync::Arc;
use std::time::Duration;

use super::NodeSyncer;
use crate::container_manager::RunningParts;
use crate::container_manager::activity::Task;
use crate::pod::PodObject;
use crate::ports::{
    CgroupError, ErrorSource, HookContext, PodEvent, PodRuntimeStatus, StorageError, SyncError, VolumeMounts, within,
};
use crate::text::error_chain;
use crate::texts::{pods, volumes};

/// How long the volumes of a pod may take to be set up or removed, before the hook fails and is retried (upstream
/// `podAttachAndMountTimeout`, kubelet 1.36).
const VOLUMES_TIMEOUT: Duration = Duration::from_secs(123);

/// The result of [`NodeSyncer::make_cgroup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CgroupStep {
    /// The pod has its cgroup.
    Ready,
    /// Containers ran outside of the pod's cgroup and were stopped. The next sync starts them inside of it.
    StoppedContainers,
}

impl NodeSyncer {
    /// Fails while the runtime reports that its network is not ready, unless the pod uses the host network (upstream
    /// `SyncPod`, kubelet 1.36).
    pub(super) fn check_network(&self, pod: &Arc<PodObject>) -> Result<(), SyncError> {
        let problem = if pod.is_host_network() { None } else { self.runtime.unready().network };
        let Some(problem) = problem else { return Ok(()) };
        let error = SyncError::NetworkNotReady(problem);
        self.events.record(pod, PodEvent::warning("NetworkNotReady", error.to_string()));
        Err(error)
    }

    /// Makes the pod's cgroup before any container runs. If containers run although the cgroup is missing, they are stopped
    /// first, because no limit of the pod applies to them.
    pub(super) async fn make_cgroup(
        &self,
        cx: &HookContext,
        pod: &Arc<PodObject>,
        runtime: &PodRuntimeStatus,
    ) -> Result<CgroupStep, SyncError> {
        let Some(cgroups) = &self.cgroups else { return Ok(CgroupStep::Ready) };
        let failed = |error: CgroupError| {
            self.events.record(
                pod,
                PodEvent::warning("FailedCreatePodContainer", pods::no_cgroup(&error_chain(&error).to_string())),
            );
            SyncError::failed(error)
        };
        let activity = self.containers.activities().begin(&cx.uid, Task::MakeCgroup);
        let exists = async { cgroups.exists(pod).await.map_err(failed) };
        if cx.cancel().run_until_cancelled(exists).await.unwrap_or(Err(SyncError::Cancelled))? {
            return Ok(CgroupStep::Ready);
        }
        drop(activity);
        let step = if runtime.has_running_container() {
            tracing::warn!(pod.uid = %pod.uid(), "containers run outside of their pod's cgroup and are stopped");
            self.containers.kill_pod(cx.cancel(), pod.uid(), Some(pod), &RunningParts::from(runtime), None).await?;
            CgroupStep::StoppedContainers
        } else {
            CgroupStep::Ready
        };
        // A pod that runs once and was just stopped has ended, so it needs no cgroup.
        if step == CgroupStep::Ready || !pod.runs_once() {
            let _activity = self.containers.activities().begin(&cx.uid, Task::MakeCgroup);
            // The task runs to its end, because no other part removes a cgroup that is created after a cancellation.
            cgroups.make(pod).await.map_err(failed)?;
        }
        Ok(step)
    }

    pub(super) async fn set_up_volumes(
        &self,
        cx: &HookContext,
        pod: &Arc<PodObject>,
    ) -> Result<VolumeMounts, SyncError> {
        let _activity = self.containers.activities().begin(&cx.uid, Task::SetUpVolumes);
        let set_up = async {
            let files = self.volume_files(pod).await;
            within(VOLUMES_TIMEOUT, &*self.storage, &cx.uid, self.storage.set_up_with(pod, files)).await
        };
        match cx.cancel().run_until_cancelled(set_up).await {
            None => Err(SyncError::Cancelled),
            Some(Ok(volumes)) => {
                volumes.outdated.iter().for_each(|error| self.events.record(pod, not_set_up(error)));
                Ok(volumes.mounts)
            }
            Some(Err(error)) => {
                self.events.record(pod, not_set_up(&error));
                Err(SyncError::Storage(error))
            }
        }
    }

    /// Gives the resources of a pod back, whose containers have stopped. Until this has succeeded, the pod does not become
    /// terminal (POD-W20): the control plane would give its devices to another pod.
    pub(super) async fn release_resources(&self, cx: &HookContext, pod: &Arc<PodObject>) -> Result<(), SyncError> {
        let Some(resources) = &self.resources else { return Ok(()) };
        let _activity = self.containers.activities().begin(&cx.uid, Task::ReleaseResources);
        let released = cx.cancel().run_until_cancelled(resources.release(&cx.uid)).await;
        released.ok_or(SyncError::Cancelled)?.map_err(|error| {
            let message = pods::resources_not_released(&error_chain(&error).to_string());
            self.events.record(pod, PodEvent::warning("FailedUnprepareDynamicResources", message));
            SyncError::failed(error)
        })
    }

    /// Removes the pod's volumes, and then its cgroup.
    pub(super) async fn clean_up(&self, cx: &HookContext) -> Result<(), SyncError> {
        let activity = self.containers.activities().begin(&cx.uid, Task::TakeDownVolumes);
        within(VOLUMES_TIMEOUT, &*self.storage, &cx.uid, self.storage.tear_down(&cx.uid)).await?;
        drop(activity);
        if let Some(cgroups) = &self.cgroups {
            let _activity = self.containers.activities().begin(&cx.uid, Task::RemoveCgroup);
            cgroups.remove(&cx.uid, Box::new(|| true)).await.map_err(SyncError::failed)?;
        }
        Ok(())
    }
}

/// The event of volumes or directories that are not ready.
fn not_set_up(error: &StorageError) -> PodEvent {
    let text = |source: &ErrorSource| error_chain(&**source).to_string();
    let message = match error {
        StorageError::Unsupported { volume, kind, remedy } => {
            volumes::volume_not_set_up(volume, &format!("{kind} volumes are not supported: {remedy}"))
        }
        StorageError::Volume { volume, source } | StorageError::Busy { volume, source } => {
            volumes::volume_not_set_up(volume, &text(source))
        }
        StorageError::Slow { .. } => volumes::volumes_not_ready(&error_chain(error).to_string()),
        StorageError::Io { .. } => {
            return PodEvent::warning("Failed", volumes::directories_not_made(&error_chain(error).to_string()));
        }
    };
    PodEvent::warning("FailedMount", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_of_a_volume_names_the_step_that_failed() {
        let kind = "nfs".to_owned();
        let remedy = "use hostPath".to_owned();
        let unsupported = StorageError::Unsupported { volume: "data".to_owned(), kind, remedy };
        let slow = StorageError::Slow { path: None, after: VOLUMES_TIMEOUT };
        let set_up = |text: &str| format!("MountVolume.SetUp failed for volume \"data\" : {text}");
        let timeout = "a directory is not done after 123 s: check whether the file system there answers";
        let table = [
            (unsupported, "FailedMount", set_up("nfs volumes are not supported: use hostPath")),
            (StorageError::volume("data", "no such file"), "FailedMount", set_up("no such file")),
            (StorageError::busy("data", "process 7 uses it"), "FailedMount", set_up("process 7 uses it")),
            (slow, "FailedMount", format!("Unable to attach or mount volumes: {timeout}")),
            (
                StorageError::io("/pods/u", "full"),
                "Failed",
                "error making pod data directories: /pods/u: full".to_owned(),
            ),
        ];
        for (error, reason, message) in table {
            let event = not_set_up(&error);
            assert_eq!((&*event.reason, event.message), (reason, message), "{error:?}");
        }
    }
}
