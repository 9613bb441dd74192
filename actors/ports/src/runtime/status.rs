//! Pods, sandboxes and containers as the runtime reports them.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use podwright_model::ids::{ContainerId, ContainerName, FullName, PodUid, SandboxId};
use podwright_model::time::{Grace, Time};

/// A pod in the runtime's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimePod {
    /// The pod UID that the sandboxes and containers carry.
    pub uid: PodUid,
    /// The pod name and namespace that the sandboxes and containers carry.
    pub full_name: FullName,
    /// Whether the pod came from a file or a URL. False if the runtime does not keep this.
    pub is_static: bool,
    /// The grace period that the pod had when its containers were created. `None` if the pod had none, or if the runtime does not keep it.
    pub grace: Option<Grace>,
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
// A recording has the index of the variant: another order of variants is another format.
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

/// The first process of a container, as the machine has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerProcess {
    /// The number of the process.
    pub pid: u32,
    /// Whether the process has ended.
    pub has_ended: bool,
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
    /// [`ContainerConfig::spec_hash`](super::ContainerConfig::spec_hash) of the definition that the container was created from.
    pub spec_hash: u64,
    /// The image as the spec names it.
    pub image: String,
    /// The id of the image that runs.
    pub image_id: String,
    /// What the runtime applied to the container, if it reports that.
    pub applied: Option<Box<AppliedSettings>>,
}

/// The settings that the runtime applied to a container. Only the status of the pod shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedSettings {
    /// The user of the container's first process.
    pub user: Option<LinuxUser>,
    /// The CPU request, in thousandths of one CPU.
    pub cpu_request: Option<i64>,
    /// The CPU limit, in thousandths of one CPU.
    pub cpu_limit: Option<i64>,
    /// The memory limit, in bytes.
    pub memory_limit: Option<i64>,
}

/// The user of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinuxUser {
    /// The user ID.
    pub uid: i64,
    /// The ID of the primary group.
    pub gid: i64,
    /// The IDs of the supplementary groups.
    pub groups: Vec<i64>,
}
