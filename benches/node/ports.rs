//! The ports of the node: the simulated runtime with marks, and a storage without directories.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright::adapters::simulated::SimulatedRuntime;
use podwright_model::ids::{ContainerId, PodUid, SandboxId};
use podwright_model::pod::PodObject;
use podwright_ports::{
    ContainerConfig, ContainerRuntime, ContainerState, ExecOutput, ImageError, ImageRequest, PodRuntimeStatus,
    PodStorage, RuntimeFuture, RuntimePod, SandboxConfig, StorageError, Unused, VolumeMounts,
};
use tokio_util::sync::CancellationToken;

use crate::marks::{Mark, Marks};

/// The simulated runtime. It records a mark when a status read finds a running container.
pub(crate) struct Watched {
    pub(crate) runtime: SimulatedRuntime,
    pub(crate) marks: Arc<Marks>,
}

impl ContainerRuntime for Watched {
    fn pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus> {
        async {
            let status = self.runtime.pod_status(uid).await?;
            if let Some(newest) = status.containers.first().filter(|newest| newest.state == ContainerState::Running) {
                let mark = if newest.restart_count == 0 { Mark::Running } else { Mark::RunningAgain };
                self.marks.note(uid, mark);
            }
            Ok(status)
        }
        .boxed()
    }

    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>> {
        self.runtime.list_pods()
    }

    fn run_sandbox(&self, config: SandboxConfig) -> RuntimeFuture<'_, SandboxId> {
        self.runtime.run_sandbox(config)
    }

    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        self.runtime.stop_sandbox(id)
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        self.runtime.remove_sandbox(id)
    }

    fn ensure_image<'a>(
        &'a self,
        request: ImageRequest<'a>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>> {
        self.runtime.ensure_image(request, cancel)
    }

    fn create_container(&self, config: ContainerConfig) -> RuntimeFuture<'_, ContainerId> {
        self.runtime.create_container(config)
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        self.runtime.start_container(id)
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeFuture<'a, ()> {
        self.runtime.stop_container(id, grace)
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, keep_log: bool) -> RuntimeFuture<'a, ()> {
        self.runtime.remove_container(id, keep_log)
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Duration,
    ) -> RuntimeFuture<'a, ExecOutput> {
        self.runtime.exec(id, command, timeout)
    }

    fn next_event(&self) -> BoxFuture<'_, PodUid> {
        self.runtime.next_event()
    }

    fn has_events(&self) -> bool {
        self.runtime.has_events()
    }
}

/// A storage without directories. It records a mark when a pod is synced and when its volumes are unmounted.
pub(crate) struct NoStorage(pub(crate) Arc<Marks>);

impl PodStorage for NoStorage {
    fn set_up<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<VolumeMounts, StorageError>> {
        self.0.note(pod.uid(), Mark::Synced);
        async { Ok(BTreeMap::new()) }.boxed()
    }

    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), StorageError>> {
        self.0.note(uid, Mark::Gone);
        async { Ok(()) }.boxed()
    }

    fn remove_pod<'a>(&'a self, _: &'a PodUid, _: Unused) -> BoxFuture<'a, Result<(), StorageError>> {
        async { Ok(()) }.boxed()
    }

    fn pods(&self) -> BoxFuture<'_, Result<Vec<PodUid>, StorageError>> {
        async { Ok(Vec::new()) }.boxed()
    }

    fn restarts_by_log<'a>(&'a self, _: &'a PodObject, _: &'a str) -> BoxFuture<'a, Option<u32>> {
        async { None }.boxed()
    }
}
