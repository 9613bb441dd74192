//! The records of sandboxes and containers on disk. Times are in nanoseconds since the Unix epoch.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use podwright_host::mounts::SUB_PATHS;
pub use podwright_host::record::{Damage, Durability, ReadError, decode, encode, read, seal, sync_parent, write};
use podwright_model::time::Time;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The identity and state of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRecord {
    pub id: String,
    pub uid: String,
    pub name: String,
    pub namespace: String,
    pub attempt: u32,
    pub created_at: u64,
    /// The boot in which the sandbox was created. A sandbox does not outlive its boot.
    pub boot_id: String,
    pub stopped: bool,
    /// The pod's `hostNetwork`. All pods use the node's network; this is kept because the engine replaces a sandbox whose
    /// network mode is not the pod's.
    pub host_network: bool,
    /// The node's addresses when the sandbox was created.
    pub ips: Vec<IpAddr>,
    /// Whether the pod came from a file or a URL; false in a record of an agent that did not write this field.
    #[serde(default)]
    pub is_static: bool,
    /// The pod's grace period in seconds, which the next agent cannot read from a manifest that is gone.
    #[serde(default)]
    pub grace: Option<i64>,
}

/// The identity of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub id: String,
    pub sandbox: String,
    pub uid: String,
    pub name: String,
    pub namespace: String,
    pub container: String,
    pub restart_count: u32,
    pub created_at: u64,
    pub spec_hash: u64,
    pub image: String,
    pub image_id: String,
    /// The user of the command; `None` in a record of an earlier agent.
    #[serde(default)]
    pub user: Option<User>,
    /// The input of the command. A container of an earlier agent has none.
    #[serde(default)]
    pub input: Input,
}

/// What the standard input of a command is, and whether its output is a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Whether attached clients write to it. Otherwise it is empty.
    pub stdin: bool,
    /// Whether it ends with the last attached client that wrote to it.
    pub once: bool,
    /// Whether the command has a terminal.
    pub terminal: bool,
}

impl Input {
    /// Whether a client may have a dialogue with the command, so that it must get unfinished lines too.
    pub fn is_interactive(self) -> bool {
        self.stdin || self.terminal
    }

    /// Whether the command's input ends with the input of a client (`stdinOnce`). The input of a terminal does not end, as under
    /// containerd 2 (`internal/cri/io`): its end would end the output too.
    pub fn ends_with_client(self) -> bool {
        self.once && !self.terminal
    }
}

/// The command that a shim runs, and its environment, user, cgroup and files. `Debug` prints neither the command nor the environment,
/// which may have the values of Secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    pub id: String,
    /// The program that runs shims, with its leading arguments. Only the shim uses the arguments, for its own program.
    pub shim: Vec<String>,
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    /// The directory that serves as the container's root.
    pub rootfs: PathBuf,
    pub cwd: PathBuf,
    /// The file whose content becomes the termination message, relative to `rootfs`.
    pub termination_log: PathBuf,
    pub user: User,
    pub log: PathBuf,
    pub stop_signal: i32,
    pub cgroup: Option<Cgroup>,
    /// Whether the end of the log becomes the termination message if the container fails without a message of its own.
    pub message_from_log: bool,
    /// The soft limit on open files; `None` keeps the shim's limit.
    pub open_files: Option<u64>,
    /// The `oom_score_adj` of the container's processes.
    #[serde(default)]
    pub oom_score_adj: i64,
    pub confinement: Confinement,
    #[serde(default)]
    pub input: Input,
}

impl fmt::Debug for RunRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunRecord")
            .field("id", &self.id)
            .field("rootfs", &self.rootfs)
            .field("user", &self.user)
            .field("cgroup", &self.cgroup)
            .field("confinement", &self.confinement)
            .finish_non_exhaustive()
    }
}

/// The confinement of a container's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Whether executing a file gives no more rights.
    pub no_new_privs: bool,
    /// The bits of the capabilities that the container may have; `None` keeps those of the agent.
    pub capabilities: Option<u64>,
    /// The container's view of the node's file system; `None` if it has the view of the agent.
    pub view: Option<View>,
    /// The processes that the container sees. A container of an earlier agent sees those of the node.
    #[serde(default)]
    pub processes: Processes,
    /// The system calls that the container may make. A container of an earlier agent may make all of them.
    #[serde(default)]
    pub seccomp: Seccomp,
}

/// The seccomp profile of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seccomp {
    /// All system calls.
    #[default]
    Unconfined,
    /// The system calls of this runtime's own profile.
    RuntimeDefault,
}

/// The processes that a container sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Processes {
    /// All processes of the node.
    #[default]
    Node,
    /// The processes of the container, in a PID namespace of their own.
    Own,
}

/// The part of the node's file system that a container may change and see. The agent's root directory contains only the container's
/// own root directory and its mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The agent's directory with one directory per pod.
    pub pods: PathBuf,
    /// The files and directories that the container may see besides its root directory. Outer paths come first.
    #[serde(default)]
    pub mounts: Vec<ViewMount>,
    /// Whether everything except `mounts` is read-only.
    pub read_only_root: bool,
}

impl View {
    /// The agent's root directory.
    pub fn root(&self) -> &Path {
        self.pods.parent().unwrap_or(&self.pods)
    }

    /// A `subPath` that is not mounted below the agent's directory for such mounts. The records of older agents have the path of the
    /// `subPath` in its volume, which another container may have replaced by a link to any directory of the node.
    pub(super) fn sub_path_in_volume(&self) -> Option<&ViewMount> {
        let is_below = |at: &Path| {
            let in_pod = at.strip_prefix(&self.pods).ok().and_then(|below| below.components().nth(1));
            in_pod.is_some_and(|name| name.as_os_str() == SUB_PATHS)
        };
        self.mounts.iter().find(|one| !one.sub_path.as_os_str().is_empty() && !is_below(&one.at))
    }
}

/// A file or directory that a container may see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewMount {
    /// The path at which the container finds it, without links.
    pub at: PathBuf,
    /// The volume.
    pub volume: PathBuf,
    /// The path in the volume; empty for the volume itself.
    pub sub_path: PathBuf,
    /// Whether the container may only read it.
    pub read_only: bool,
    /// Whether mounts that are created in it later appear in the container and on the node.
    #[serde(default)]
    pub propagation: Propagation,
}

impl ViewMount {
    /// The directory of the node in which everything is that the container sees through the mount.
    pub fn shown(&self) -> &Path {
        if self.sub_path.as_os_str().is_empty() { &self.at } else { &self.volume }
    }
}

/// Whether mounts that are created in a volume while the container runs appear in the container and on the node
/// (`mountPropagation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Propagation {
    /// Mounts of the node do not appear in the container, and mounts of the container do not appear on the node.
    #[default]
    None,
    /// Mounts of the node appear in the container.
    HostToContainer,
    /// Mounts of the node appear in the container, and mounts of the container appear on the node.
    Bidirectional,
}

/// The user and groups that a container runs as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// A container's cgroup and its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    pub path: PathBuf,
    /// The memory limit in bytes.
    pub memory: Option<u64>,
    /// The CPU limit in thousandths of a CPU.
    pub cpu: Option<u64>,
}

impl Cgroup {
    /// The cgroup with other limits: memory in bytes, and CPU in thousandths of a CPU. A limit that is `None` stays.
    pub fn with_limits(self, (memory, cpu): (Option<u64>, Option<u64>)) -> Self {
        Cgroup { memory: memory.or(self.memory), cpu: cpu.or(self.cpu), ..self }
    }
}

/// The shim of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimRecord {
    pub pid: i32,
    pub boot_id: String,
}

/// The start of a container's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedRecord {
    pub pid: i32,
    pub started_at: u64,
    /// The first process of the container's PID namespace, if it has one of its own.
    #[serde(default)]
    pub init: Option<i32>,
    /// The namespaces that the shim created for the container; `None` in a record of an earlier agent.
    #[serde(default)]
    pub namespaces: Option<OwnNamespaces>,
}

/// The namespaces that a shim created for its container. `None` means that the container is in the namespace of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnNamespaces {
    pub users: Option<NamespaceId>,
    pub processes: Option<NamespaceId>,
    pub mounts: Option<NamespaceId>,
    /// The descriptor with which the shim keeps the mount namespace open.
    pub mounts_fd: i32,
}

/// The identity of a namespace: the device and the inode of its file. It is unique while a process is in the namespace or has its
/// file open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceId {
    pub device: u64,
    pub inode: u64,
}

/// The exit of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub reason: String,
    pub message: String,
    pub finished_at: u64,
}

/// The reason of an exit that no agent and no shim saw (kubelet 1.36).
const UNKNOWN: &str = "ContainerStatusUnknown";

impl ExitRecord {
    /// The exit of a container whose end no agent and no shim saw (reason and code as in kubelet 1.36).
    pub fn unknown(message: String) -> Self {
        ExitRecord { exit_code: 137, signal: None, reason: UNKNOWN.into(), message, finished_at: now().as_nanos() }
    }

    /// Whether no agent and no shim saw the container's end.
    pub fn is_unknown(&self) -> bool {
        self.reason == UNKNOWN
    }

    /// The exit of a container whose command could not be executed (reason and code as containerd reports them).
    pub fn start_error(message: String) -> Self {
        ExitRecord { exit_code: 128, signal: None, reason: "StartError".into(), message, finished_at: now().as_nanos() }
    }
}

/// Whether a record could not be read because the system had no descriptor or memory left. The record itself may be valid, so
/// such an error must not decide about the container.
pub(super) fn is_exhausted(error: &ReadError) -> bool {
    let ReadError::Io { error, .. } = error else { return false };
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// The time of the wall clock. Agents and shims compare times in records across restarts, so only the wall clock can be
/// used.
pub fn now() -> Time {
    Time::ZERO + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_path_that_is_mounted_in_its_volume_is_found() {
        for (at, sub_path, expected) in [
            ("/a/root/pods/u/volume-subpaths/v/c/0", "sub", false),
            ("/a/root/pods/u/volumes/kubernetes.io~empty-dir/v/sub", "sub", true),
            ("/a/root/pods/volume-subpaths/v/c/0", "sub", true),
            ("/etc", "sub", true),
            ("/etc", "", false),
        ] {
            let mount = ViewMount { at: at.into(), sub_path: sub_path.into(), ..ViewMount::default() };
            let view = View { pods: "/a/root/pods".into(), mounts: vec![mount], read_only_root: false };
            assert_eq!(view.sub_path_in_volume().is_some(), expected, "{at} {sub_path}");
        }
    }
}
