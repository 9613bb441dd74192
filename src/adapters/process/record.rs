//! What is on disk of sandboxes and containers.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use podwright_actors::time::Time;
use serde::{Deserialize, Serialize};

pub use crate::adapters::record::{Damage, Durability, ReadError, decode, encode, read, seal, sync_parent, write};

/// What a sandbox is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRecord {
    pub id: String,
    pub uid: String,
    pub name: String,
    pub namespace: String,
    pub attempt: u32,
    pub created_at: u64,
    /// A sandbox does not outlive a boot.
    pub boot_id: String,
    pub stopped: bool,
    /// What the pod asked for: here it is told apart only so that nobody takes the sandbox for one of another mode.
    pub host_network: bool,
    /// The node's addresses when the sandbox was made.
    pub ips: Vec<IpAddr>,
}

/// What a container is.
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
}

/// What a shim runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    pub id: String,
    /// Program, leading arguments.
    pub shim: Vec<String>,
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    /// The directory that stands for the container's root.
    pub rootfs: PathBuf,
    pub cwd: PathBuf,
    /// What becomes the termination message, relative to `rootfs`.
    pub termination_log: PathBuf,
    pub user: Option<User>,
    pub log: PathBuf,
    pub stop_signal: i32,
    pub cgroup: Option<Cgroup>,
    /// Whether a failed container without a termination message gets the end of its log.
    pub message_from_log: bool,
    /// The soft limit on open files; that of the shim if absent.
    pub open_files: Option<u64>,
}

/// Who a container runs as, where that is not the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// A container's cgroup and the limits to set where the controllers are there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    pub path: PathBuf,
    /// Bytes.
    pub memory: Option<u64>,
    /// Thousandths of a processor.
    pub cpu: Option<u64>,
}

/// Who watches over a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimRecord {
    pub pid: i32,
    pub boot_id: String,
}

/// That a container's command was executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedRecord {
    pub pid: i32,
    pub started_at: u64,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub reason: String,
    pub message: String,
    pub finished_at: u64,
}

impl ExitRecord {
    /// The exit of a container of which nobody saw the end (upstream's reason and code, kubelet 1.36).
    pub fn unknown(message: String) -> Self {
        ExitRecord {
            exit_code: 137,
            signal: None,
            reason: "ContainerStatusUnknown".into(),
            message,
            finished_at: now().as_nanos(),
        }
    }

    /// The exit of a container whose command could not be executed (code and reason as containerd reports them).
    pub fn start_error(message: String) -> Self {
        ExitRecord { exit_code: 128, signal: None, reason: "StartError".into(), message, finished_at: now().as_nanos() }
    }
}

/// The wall clock. Records are compared over restarts and with what shims wrote, so no other clock will do.
pub fn now() -> Time {
    Time::ZERO + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
