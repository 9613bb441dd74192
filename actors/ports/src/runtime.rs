//! The container runtime, modelled on the CRI: sandboxes hold containers, and all sandboxes and containers with one UID
//! form a pod.

mod config;
mod error;
mod status;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use podwright_model::ids::{ContainerId, PodUid, SandboxId};
use podwright_model::pod::PodObject;

use super::{ProcessUsage, WritableLayer};

pub use config::{
    ContainerConfig, ContainerUpdate, Device, ExecOutput, ImageRequest, Mount, SandboxConfig, VolumeImage,
};
pub use error::{ImageError, RuntimeError};
pub use status::{
    AppliedSettings, ContainerProcess, ContainerState, ContainerStatus, LinuxUser, PodRuntimeStatus, RuntimePod,
    RuntimePodContainer, RuntimePodSandbox, SandboxState, SandboxStatus,
};

/// The future of a runtime call.
pub type RuntimeFuture<'a, T> = BoxFuture<'a, Result<T, RuntimeError>>;

/// Runs sandboxes and containers.
///
/// Calls run in parallel. A call whose future is dropped may still take effect; the next [`pod_status`] shows whether
/// it did. Stopping or removing what does not exist succeeds. Every call fails with a [`RuntimeError`].
///
/// [`pod_status`]: ContainerRuntime::pod_status
pub trait ContainerRuntime: Send + Sync + 'static {
    /// Lists every pod that has a sandbox or a container in any state.
    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>>;

    /// The status of one pod. A pod without sandboxes and containers has an empty status.
    fn pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus>;

    /// Creates and starts a sandbox.
    fn run_sandbox(&self, config: SandboxConfig) -> RuntimeFuture<'_, SandboxId>;

    /// Stops a sandbox and its containers.
    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()>;

    /// Removes a stopped sandbox and its containers.
    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()>;

    /// Makes the container's image present as the pull policy says, and returns the image's id. With the policy `Never`
    /// this only looks the image up. Tries at once: the caller waits out the backoff after an error that
    /// [is of the pull](ImageError::is_of_pull).
    ///
    /// # Errors
    /// [`ImageError`]; [`ImageError::Cancelled`] soon after `cancel` fires.
    fn ensure_image<'a>(
        &'a self,
        request: ImageRequest<'a>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>>;

    /// Creates a container in a sandbox without starting it.
    fn create_container(&self, config: ContainerConfig) -> RuntimeFuture<'_, ContainerId>;

    /// Starts a created container.
    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, ()>;

    /// Asks a container to stop, and kills it after `grace`. Returns when the container has stopped.
    ///
    /// A second call with a shorter grace period takes effect at once and also shortens the first call's. The request
    /// stays in force if the future is dropped.
    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeFuture<'a, ()>;

    /// The first process of a running container, read from the machine and not from the memory of the runtime. `None` if it is
    /// unknown, which is the default. The node compares it with the state of a container that does not stop.
    fn process_of<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, Option<ContainerProcess>> {
        let _ = id;
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Changes the CPU and the memory of a running container.
    ///
    /// # Errors
    /// By default [`RuntimeError::Unsupported`].
    fn update_container<'a>(&'a self, id: &'a ContainerId, update: ContainerUpdate) -> RuntimeFuture<'a, ()> {
        let _ = (id, update);
        let error = "the container runtime cannot change a running container: use a newer version, or recreate the pod";
        Box::pin(std::future::ready(Err(RuntimeError::unsupported(error))))
    }

    /// Removes a container that does not run, and its log unless `keep_log`. A container in state
    /// [`ContainerState::Unknown`] is stopped first, with its pod's grace period if that is known.
    fn remove_container<'a>(&'a self, id: &'a ContainerId, keep_log: bool) -> RuntimeFuture<'a, ()>;

    /// Runs a command in a running container and kills it after `timeout`. A command that exits with an error is an
    /// [`ExecOutput`], not an error.
    ///
    /// # Errors
    /// [`RuntimeError::Timeout`] after `timeout`.
    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Duration,
    ) -> RuntimeFuture<'a, ExecOutput>;

    /// The disk space that the writable layers of the pod's containers use. A container whose layer is unknown is left out. By
    /// default no layer is known.
    fn writable_layers<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, Vec<WritableLayer>> {
        let _ = uid;
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The memory and the processes of the pod's containers. A container whose usage is unknown is left out. By default no usage
    /// is known.
    fn process_usage<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, ProcessUsage> {
        let _ = uid;
        Box::pin(async { Ok(ProcessUsage::new()) })
    }

    /// Waits for the next pod that may have changed. The UIDs are hints: they may be repeated, late or wrong. In a
    /// runtime without events this future never completes, and the node relists instead.
    ///
    /// Cancel safe: dropping the future loses no hint.
    fn next_event(&self) -> BoxFuture<'_, PodUid>;

    /// Whether [`next_event`](ContainerRuntime::next_event) currently reports every container exit. The node then
    /// relists rarely.
    fn has_events(&self) -> bool;

    /// The conditions that the runtime last reported as not ready. Answers at once from memory; before the first report
    /// nothing is missing.
    fn unready(&self) -> Unready {
        Unready::default()
    }

    /// The version and the optional features of the runtime, for the status of the node. Answers at once from memory. By default
    /// nothing is known.
    fn capabilities(&self) -> RuntimeCapabilities {
        RuntimeCapabilities::default()
    }

    /// Whether the runtime can make the mounts below a read-only volume read-only too, for the containers of this pod (the
    /// feature `recursive_read_only_mounts` of the pod's runtime handler).
    fn supports_recursive_read_only<'a>(&'a self, pod: &'a PodObject) -> BoxFuture<'a, bool> {
        let _ = pod;
        Box::pin(std::future::ready(false))
    }

    /// Whether the runtime itself counts its calls in `kubelet_runtime_operations_*`, because one call of this trait
    /// makes several. The node then does not count them again.
    fn counts_its_calls(&self) -> bool {
        false
    }
}

/// The conditions that a runtime reports as not ready, with the runtime's messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unready {
    /// Why the runtime is not ready. The node starts containers nevertheless.
    pub runtime: Option<String>,
    /// Why the network is not ready. Pods that need a network wait.
    pub network: Option<String>,
}

/// The version and the optional features of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeCapabilities {
    /// The version, such as `v2.1.4`. `None` if it is not known yet.
    pub version: Option<String>,
    /// The handlers for runtime classes.
    pub handlers: Vec<RuntimeHandler>,
    /// Whether the runtime applies `supplementalGroupsPolicy`. `None` if it does not report that.
    pub supplemental_groups_policy: Option<bool>,
}

impl RuntimeCapabilities {
    /// The capabilities of a runtime with this version and no handlers.
    pub fn of_version(version: impl Into<String>) -> Self {
        RuntimeCapabilities { version: Some(version.into()), ..RuntimeCapabilities::default() }
    }
}

/// A handler of a runtime, and its features.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeHandler {
    /// The name; empty for the default handler.
    pub name: String,
    /// Whether the handler makes the mounts below a read-only mount read-only too.
    pub recursive_read_only_mounts: bool,
    /// Whether the handler runs pods with users of their own.
    pub user_namespaces: bool,
}

/// The runtime's name, which is the prefix of container ids in statuses. A runtime that reads its name from the answer of a call
/// sets it before its first list. Clones share the name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeName(Arc<OnceLock<String>>);

impl RuntimeName {
    /// Sets the name, unless it is set.
    pub fn learn(&self, name: &str) {
        self.0.get_or_init(|| name.to_owned());
    }

    /// Whether the name is set.
    pub fn is_known(&self) -> bool {
        self.0.get().is_some()
    }
}

impl From<&str> for RuntimeName {
    fn from(name: &str) -> Self {
        RuntimeName(Arc::new(OnceLock::from(name.to_owned())))
    }
}

impl fmt::Display for RuntimeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.get().map_or("unknown", String::as_str))
    }
}
