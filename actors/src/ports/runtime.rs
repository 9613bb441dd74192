//! The container runtime, modelled on the CRI: sandboxes hold containers, and all sandboxes and containers with one UID
//! form a pod.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use serde::{Deserialize, Serialize};

use crate::ids::{ContainerId, ContainerName, FullName, PodUid, SandboxId};
use crate::pod::{ContainerKind, PodObject};
use crate::time::Time;

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
    /// this only looks the image up. Tries at once: the caller waits out the backoff after [`ImageError::Pull`].
    ///
    /// # Errors
    /// [`ImageError`]; [`ImageError::Cancelled`] soon after `cancel` fires.
    fn ensure_image<'a>(
        &'a self,
        pod: &'a Arc<PodObject>,
        image: &'a str,
        pull_policy: Option<&'a str>,
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

/// The runtime's name, which is the prefix of container ids in statuses. A runtime that learns its name from a call
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

/// A call to the runtime failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    /// The runtime cannot be reached, so nothing is known of its containers.
    #[error("runtime unreachable: {0}")]
    Unreachable(String),
    /// The sandbox, container or image does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// The call did not end in time; it may still take effect.
    #[error("{call} did not end within {after:?}: see the log of the container runtime")]
    Timeout {
        /// The name of the call.
        call: &'static str,
        /// The time limit of the call.
        after: Duration,
    },
    /// The container's settings are not usable (a missing command, an unsupported field). The container's reason is
    /// `CreateContainerConfigError`, or `StartError` at the start.
    #[error("{0}")]
    Config(String),
    /// The runtime does not implement the call.
    #[error("{0}")]
    Unsupported(String),
    /// The runtime reported an error.
    #[error("{0}")]
    Failed(String),
}

impl RuntimeError {
    /// Whether the call's effect is unknown: it may have taken effect, or may still do so.
    pub fn is_open(&self) -> bool {
        matches!(self, RuntimeError::Timeout { .. } | RuntimeError::Unreachable(_))
    }
}

/// An image is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The pull failed (`ErrImagePull`).
    #[error("{0}")]
    Pull(String),
    /// The runtime does not know whether the image is present (`ImageInspectError`).
    #[error("image cannot be looked up: {0}")]
    Inspect(String),
    /// The image is absent and the pull policy is `Never` (`ErrImageNeverPull`).
    #[error("image {0:?} is not present with pull policy Never")]
    NeverPull(String),
    /// The image's name is not valid (`InvalidImageName`).
    #[error("image name {0:?} is not valid")]
    InvalidName(String),
    /// The pull was cancelled because the pod stops.
    #[error("pull cancelled")]
    Cancelled,
}

/// A pod in the runtime's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimePod {
    /// The pod UID that the sandboxes and containers carry.
    pub uid: PodUid,
    /// The pod name and namespace that the sandboxes and containers carry.
    pub full_name: FullName,
    /// The sandboxes, in no order.
    pub sandboxes: Vec<RuntimePodSandbox>,
    /// The containers, in no order.
    pub containers: Vec<RuntimePodContainer>,
}

impl RuntimePod {
    /// Whether a container runs or a sandbox is ready. A container in state [`ContainerState::Unknown`] counts as
    /// running, because it may run. A created container does not count.
    pub fn is_running(&self) -> bool {
        self.sandboxes.iter().any(|s| s.state == SandboxState::Ready)
            || self.containers.iter().any(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
    }
}

/// A sandbox in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimePodSandbox {
    /// The sandbox's id.
    pub id: SandboxId,
    /// The sandbox's state.
    pub state: SandboxState,
    /// The sandbox's number: larger than the numbers of the pod's earlier sandboxes.
    pub attempt: u32,
    /// When the sandbox was created, by the runtime's clock, which may have been set since.
    pub created_at: Time,
}

/// A container in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimePodContainer {
    /// The container's id.
    pub id: ContainerId,
    /// The container's sandbox.
    pub sandbox: SandboxId,
    /// The container's name in the pod.
    pub name: ContainerName,
    /// The container's state.
    pub state: ContainerState,
    /// The run's number: not smaller than the numbers of the container's earlier runs.
    pub attempt: u32,
    /// When the container was created, by the runtime's clock, which may have been set since.
    pub created_at: Time,
}

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// The sandbox can hold containers.
    Ready,
    /// The sandbox has ended.
    NotReady,
}

/// The state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ContainerState {
    /// Created and not started.
    Created,
    /// Running.
    Running,
    /// Ended.
    Exited,
    /// The runtime does not know the state.
    Unknown,
}

impl fmt::Display for ContainerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ContainerState::Created => "created",
            ContainerState::Running => "running",
            ContainerState::Exited => "exited",
            ContainerState::Unknown => "unknown",
        })
    }
}

/// The status of a pod in the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRuntimeStatus {
    /// The sandboxes, newest first.
    pub sandboxes: Vec<SandboxStatus>,
    /// Every run that was not removed yet; the runs of one container newest first.
    pub containers: Vec<ContainerStatus>,
}

impl PodRuntimeStatus {
    /// The newest run of a container.
    pub fn newest(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|c| c.name.as_str() == name)
    }

    /// The newest run of a container in a sandbox.
    pub fn newest_in(&self, sandbox: &SandboxId, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|run| run.sandbox == *sandbox && run.name.as_str() == name)
    }

    /// All runs of a container, newest first.
    pub fn runs<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a ContainerStatus> {
        self.containers.iter().filter(move |c| c.name.as_str() == name)
    }

    /// Whether a container runs or a sandbox is ready.
    pub fn is_running(&self) -> bool {
        self.has_running_container() || self.sandboxes.iter().any(|s| s.state == SandboxState::Ready)
    }

    /// Whether a container runs.
    pub fn has_running_container(&self) -> bool {
        self.containers.iter().any(|c| c.state == ContainerState::Running)
    }
}

/// The status of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxStatus {
    /// The sandbox's id.
    pub id: SandboxId,
    /// The number of sandboxes that the pod had before this one.
    pub attempt: u32,
    /// The sandbox's state.
    pub state: SandboxState,
    /// When the sandbox was created.
    pub created_at: Time,
    /// Whether the sandbox uses the node's network.
    pub host_network: bool,
    /// The sandbox's addresses. A sandbox on the node's network has the node's addresses or none.
    pub ips: Vec<IpAddr>,
}

/// The status of one run of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStatus {
    /// The container's id.
    pub id: ContainerId,
    /// The container's sandbox.
    pub sandbox: SandboxId,
    /// The container's name in the pod.
    pub name: ContainerName,
    /// How many runs of the container were started before this one.
    pub restart_count: u32,
    /// The container's state.
    pub state: ContainerState,
    /// When the container was created.
    pub created_at: Time,
    /// When the container was started; `None` before.
    pub started_at: Option<Time>,
    /// When the container ended; `None` before.
    pub finished_at: Option<Time>,
    /// The exit code; 128 plus the signal if a signal ended the container. Meaningless before the end.
    pub exit_code: i32,
    /// The signal that ended the container, if the runtime reports one.
    pub signal: Option<i32>,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, or another reason of the runtime.
    pub reason: String,
    /// The explanation of `reason`, or the container's termination message.
    pub message: String,
    /// [`ContainerConfig::spec_hash`] of the definition that the container was created from.
    pub spec_hash: u64,
    /// The image as the spec names it.
    pub image: String,
    /// The id of the image that runs.
    pub image_id: String,
}

/// The settings of a new sandbox.
#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// The pod.
    pub pod: Arc<PodObject>,
    /// The number of sandboxes that the pod had before.
    pub attempt: u32,
}

/// The settings of a new container.
#[derive(Clone, Debug)]
pub struct ContainerConfig {
    /// The pod.
    pub pod: Arc<PodObject>,
    /// The sandbox for the container.
    pub sandbox: SandboxId,
    /// The container's list in the pod's spec.
    pub kind: ContainerKind,
    /// The container's name in the pod.
    pub name: ContainerName,
    /// How many runs of the container were started before. The log file of the run is `<restart_count>.log`.
    pub restart_count: u32,
    /// The image id that [`ContainerRuntime::ensure_image`] returned.
    pub image_id: String,
    /// The hash of the container's definition. The runtime keeps it with the container, so that a restarted agent sees
    /// whether the definition changed.
    pub spec_hash: u64,
    /// The entry point with `$(VAR)` expanded; empty for the image's own.
    pub command: Vec<String>,
    /// The arguments, expanded.
    pub args: Vec<String>,
    /// The environment variables in order, expanded.
    pub env: Vec<(String, String)>,
    /// The mounts, in spec order.
    pub mounts: Vec<Mount>,
    /// The devices of the node for the container.
    pub devices: Vec<Device>,
    /// The names of CDI devices (`VENDOR/CLASS=NAME`), which the runtime resolves.
    pub cdi_devices: Vec<String>,
}

/// A device of the node, as a container gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The device's path on the node.
    pub host_path: String,
    /// The device's path in the container.
    pub container_path: String,
    /// The permissions in the container: a combination of `r`, `w` and `m` (mknod).
    pub permissions: String,
}

/// A volume, as a container gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The volume's name in the pod.
    pub volume: String,
    /// The path on the host, including `sub_path`.
    pub host_path: PathBuf,
    /// The part of `host_path` inside the volume, relative and without `..`; empty for the whole volume. The runtime
    /// creates the missing directories.
    pub sub_path: PathBuf,
    /// The path in the container.
    pub container_path: String,
    /// Whether the mount is read-only.
    pub read_only: bool,
}

/// The result of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// The exit code; 128 plus the signal if a signal ended the command.
    pub exit_code: i32,
    /// The beginning of the output on both streams, at most 10 KiB (the limit of a probe event's message).
    pub output: Vec<u8>,
}
