//! The container runtime, in the shape of the CRI: sandboxes hold containers; a pod is what shares a UID.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::ids::{ContainerId, ContainerName, FullName, PodUid, SandboxId};
use crate::pod::{ContainerKind, PodObject};
use crate::time::Time;

/// What a runtime call returns.
pub type RuntimeFuture<'a, T> = BoxFuture<'a, Result<T, RuntimeError>>;

/// Runs sandboxes and containers.
///
/// Calls may be made in parallel. A call that is dropped may still take effect: the next [`pod_status`] is the truth.
/// Stops and removals of what is gone succeed.
///
/// [`pod_status`]: ContainerRuntime::pod_status
pub trait ContainerRuntime: Send + Sync + 'static {
    /// Every pod that has a sandbox or a container, whatever their state.
    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>>;

    /// All that is known of one pod. A pod without sandboxes and containers has an empty status.
    fn pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus>;

    /// Creates and starts a sandbox.
    fn run_sandbox(&self, config: SandboxConfig) -> RuntimeFuture<'_, SandboxId>;

    /// Stops a sandbox and all that still runs in it.
    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()>;

    /// Removes a stopped sandbox and its containers.
    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()>;

    /// Makes the container's image present, as its pull policy says, and names what will be run. Tries at once: how long
    /// to wait after [`ImageError::Pull`] is the caller's business. With the policy `Never` it only looks.
    ///
    /// Ends early with [`ImageError::Cancelled`] when `cancel` fires.
    fn ensure_image<'a>(
        &'a self,
        pod: &'a Arc<PodObject>,
        image: &'a str,
        pull_policy: Option<&'a str>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>>;

    /// Creates a container in a sandbox, without starting it.
    fn create_container(&self, config: ContainerConfig) -> RuntimeFuture<'_, ContainerId>;

    /// Starts a created container.
    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, ()>;

    /// Asks a container to stop, and kills it once `grace` has passed. Returns when it has stopped.
    ///
    /// A second call with a shorter grace takes effect at once, also on the first. Dropping the future leaves the
    /// request in force.
    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeFuture<'a, ()>;

    /// Removes a container that does not run, with its log unless `keep_log`. One of which the runtime does not know whether
    /// it runs is stopped first, with the grace of its pod as far as that is known.
    fn remove_container<'a>(&'a self, id: &'a ContainerId, keep_log: bool) -> RuntimeFuture<'a, ()>;

    /// Runs a command in the environment of a running container; it is killed after `timeout`.
    ///
    /// # Errors
    /// [`RuntimeError::Timeout`] after `timeout`; a command that ran and failed is an [`ExecOutput`].
    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Duration,
    ) -> RuntimeFuture<'a, ExecOutput>;

    /// The next pod in which something changed. Hints only: repeated, late and needless ones are allowed. A runtime that
    /// has no events waits for ever here and is relisted.
    ///
    /// Cancel safe: no hint is lost when the future is dropped.
    fn next_event(&self) -> BoxFuture<'_, PodUid>;

    /// Whether [`next_event`](ContainerRuntime::next_event) reports every exit at present, so that relists may be rare.
    fn has_events(&self) -> bool;

    /// What it says it lacks now. Answers at once, by what was seen last; nothing seen yet is no lack.
    fn unready(&self) -> Unready {
        Unready::default()
    }

    /// Whether it counts its own calls by the names of `kubelet_runtime_operations_*`: one whose calls are made of several,
    /// of which each counts. Then nobody else does.
    fn counts_its_calls(&self) -> bool {
        false
    }
}

/// What a runtime that answers says it lacks, in words for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unready {
    /// Why starts may fail. They are tried all the same.
    pub runtime: Option<String>,
    /// Why a pod that needs a network waits.
    pub network: Option<String>,
}

/// What container ids in statuses start with. A runtime that is asked for its name sets it before it first lists anything;
/// clones are told with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeName(Arc<OnceLock<String>>);

impl RuntimeName {
    /// Sets the name, unless it is known already.
    pub fn learn(&self, name: &str) {
        self.0.get_or_init(|| name.to_owned());
    }

    /// Whether it is known.
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
    /// The runtime cannot be reached; nothing is known of what runs.
    #[error("runtime unreachable: {0}")]
    Unreachable(String),
    /// The named thing is gone.
    #[error("not found: {0}")]
    NotFound(String),
    /// The call did not end in time; it may still take effect.
    #[error("{call} did not end within {after:?}: see the log of the container runtime")]
    Timeout {
        /// Which call.
        call: &'static str,
        /// Its limit.
        after: Duration,
    },
    /// The container's settings cannot be run (a command that is missing, a field that is not supported). Seen as
    /// `CreateContainerConfigError` or, at start, `StartError`.
    #[error("{0}")]
    Config(String),
    /// The runtime does not know the call.
    #[error("{0}")]
    Unsupported(String),
    /// The runtime tried and failed.
    #[error("{0}")]
    Failed(String),
}

impl RuntimeError {
    /// Whether the call may have done its work all the same, or may still do it.
    pub fn is_open(&self) -> bool {
        matches!(self, RuntimeError::Timeout { .. } | RuntimeError::Unreachable(_))
    }
}

/// An image cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// `ErrImagePull`.
    #[error("{0}")]
    Pull(String),
    /// `ImageInspectError`: whether it is present cannot be told.
    #[error("image cannot be looked up: {0}")]
    Inspect(String),
    /// `ErrImageNeverPull`: absent, and the policy is `Never`.
    #[error("image {0:?} is not present with pull policy Never")]
    NeverPull(String),
    /// `InvalidImageName`.
    #[error("image name {0:?} is not valid")]
    InvalidName(String),
    /// The pull was cancelled because the pod is to stop.
    #[error("pull cancelled")]
    Cancelled,
}

/// A pod as the runtime lists it: names, ids and states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimePod {
    /// The UID that its sandboxes and containers carry.
    pub uid: PodUid,
    /// Name and namespace that they carry.
    pub full_name: FullName,
    /// In no order.
    pub sandboxes: Vec<RuntimePodSandbox>,
    /// In no order.
    pub containers: Vec<RuntimePodContainer>,
}

impl RuntimePod {
    /// Whether a container runs or a sandbox is ready. An unknown container counts as running, because it may be; one that
    /// was made and never started does not.
    pub fn is_running(&self) -> bool {
        self.sandboxes.iter().any(|s| s.state == SandboxState::Ready)
            || self.containers.iter().any(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
    }
}

/// A sandbox in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimePodSandbox {
    /// Its id.
    pub id: SandboxId,
    /// Its state.
    pub state: SandboxState,
    /// Its number: larger than those of the sandboxes before it.
    pub attempt: u32,
    /// When it was made, by the runtime's clock, which may have been set since.
    pub created_at: Time,
}

/// A container in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimePodContainer {
    /// Its id.
    pub id: ContainerId,
    /// The sandbox it is in.
    pub sandbox: SandboxId,
    /// Its name in the pod.
    pub name: ContainerName,
    /// Its state.
    pub state: ContainerState,
    /// Its number: not smaller than those of the runs before it.
    pub attempt: u32,
    /// When it was made, by the runtime's clock, which may have been set since.
    pub created_at: Time,
}

/// Whether a sandbox can hold containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// It can.
    Ready,
    /// It ended.
    NotReady,
}

/// Where a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerState {
    /// Made, not started.
    Created,
    /// Runs.
    Running,
    /// Ended.
    Exited,
    /// The runtime does not know.
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

/// All that the runtime knows of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRuntimeStatus {
    /// Newest first.
    pub sandboxes: Vec<SandboxStatus>,
    /// Every run that was not removed yet, of each container the newest first.
    pub containers: Vec<ContainerStatus>,
}

impl PodRuntimeStatus {
    /// The newest run of a container.
    pub fn newest(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|c| c.name.as_str() == name)
    }

    /// The newest run of a container in one sandbox.
    pub fn newest_in(&self, sandbox: &SandboxId, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|run| run.sandbox == *sandbox && run.name.as_str() == name)
    }

    /// All runs of a container, newest first.
    pub fn runs<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a ContainerStatus> {
        self.containers.iter().filter(move |c| c.name.as_str() == name)
    }

    /// Whether a container runs or a sandbox is ready (rule U3a).
    pub fn is_running(&self) -> bool {
        self.has_running_container() || self.sandboxes.iter().any(|s| s.state == SandboxState::Ready)
    }

    /// Whether a container runs.
    pub fn has_running_container(&self) -> bool {
        self.containers.iter().any(|c| c.state == ContainerState::Running)
    }
}

/// One sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxStatus {
    /// Its id.
    pub id: SandboxId,
    /// How many sandboxes the pod had before this one.
    pub attempt: u32,
    /// Its state.
    pub state: SandboxState,
    /// When it was made.
    pub created_at: Time,
    /// Whether it shares the node's network.
    pub host_network: bool,
    /// Its addresses; for host network those of the node, or none.
    pub ips: Vec<IpAddr>,
}

/// One run of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStatus {
    /// Its id.
    pub id: ContainerId,
    /// The sandbox it is in.
    pub sandbox: SandboxId,
    /// Its name in the pod.
    pub name: ContainerName,
    /// How often the container was started before this run.
    pub restart_count: u32,
    /// Its state.
    pub state: ContainerState,
    /// When it was made.
    pub created_at: Time,
    /// When it was started; `None` before.
    pub started_at: Option<Time>,
    /// When it ended; `None` before.
    pub finished_at: Option<Time>,
    /// Its exit code; a death by signal is 128 plus the signal. Means nothing before it ended.
    pub exit_code: i32,
    /// The signal that ended it, if one did and the runtime tells.
    pub signal: Option<i32>,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, or what else the runtime says.
    pub reason: String,
    /// Why, or its termination message.
    pub message: String,
    /// [`ContainerConfig::spec_hash`] of the definition it was made from.
    pub spec_hash: u64,
    /// The image as the spec named it.
    pub image: String,
    /// What was run in fact.
    pub image_id: String,
}

/// How to make a sandbox.
#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// Whose it is.
    pub pod: Arc<PodObject>,
    /// How many there were before.
    pub attempt: u32,
}

/// How to make a container.
#[derive(Clone, Debug)]
pub struct ContainerConfig {
    /// Whose it is.
    pub pod: Arc<PodObject>,
    /// The sandbox to put it in.
    pub sandbox: SandboxId,
    /// In which of the pod's lists the container stands.
    pub kind: ContainerKind,
    /// Its name there.
    pub name: ContainerName,
    /// How often it was started before; also the name of its log file, `<restart_count>.log`.
    pub restart_count: u32,
    /// What [`ContainerRuntime::ensure_image`] answered.
    pub image_id: String,
    /// Hash of the definition, kept with the container, so that an agent that restarts sees whether it changed.
    pub spec_hash: u64,
    /// The entry point, `$(VAR)` already expanded; empty for the image's own.
    pub command: Vec<String>,
    /// Its arguments, expanded.
    pub args: Vec<String>,
    /// The environment, in order, expanded.
    pub env: Vec<(String, String)>,
    /// What is mounted, in spec order.
    pub mounts: Vec<Mount>,
    /// Devices of the node that it sees.
    pub devices: Vec<Device>,
    /// Devices that the runtime finds by their names in the container device interface (`VENDOR/CLASS=NAME`).
    pub cdi_devices: Vec<String>,
}

/// A device of the node as a container sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Where it is on the node.
    pub host_path: String,
    /// Where the container sees it.
    pub container_path: String,
    /// What the container may do with it: of `r`, `w` and `m` (mknod) those that are allowed.
    pub permissions: String,
}

/// A volume as a container sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The volume's name in the pod.
    pub volume: String,
    /// Where it is on the host, `sub_path` included.
    pub host_path: PathBuf,
    /// The part of `host_path` below the volume, relative and without `..`; empty for the whole volume. The runtime makes
    /// what is missing of it as directories.
    pub sub_path: PathBuf,
    /// Where the container sees it.
    pub container_path: String,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// What a command did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Its exit code; death by signal is 128 plus the signal.
    pub exit_code: i32,
    /// The beginning of what it wrote to both streams, at most 10 KiB (what a probe event may carry).
    pub output: Vec<u8>,
}
