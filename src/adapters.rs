//! The adapters: implementations of the engine's ports, most of them with real I/O. Each is behind a cargo feature.

#[cfg(feature = "cri")]
pub mod adoption;
#[cfg(any(feature = "cri", feature = "process"))]
pub(crate) mod cdi;
#[cfg(any(feature = "cri", feature = "process"))]
mod changed_pods;
#[cfg(feature = "agent")]
pub mod checkpoint;
#[cfg(feature = "cri")]
pub mod cri;
#[cfg(feature = "process")]
mod dir_watch;
#[cfg(any(feature = "cri", feature = "process"))]
mod disk_usage;
#[cfg(feature = "dra")]
pub mod dra;
#[cfg(any(feature = "cri", feature = "dra"))]
mod grpc;
#[cfg(feature = "kube")]
pub mod kube;
#[cfg(any(feature = "cri", feature = "process"))]
pub mod log;
#[cfg(feature = "agent")]
pub(crate) mod logind;
#[cfg(feature = "agent")]
pub mod manifest;
#[cfg(any(feature = "cri", feature = "process"))]
mod mounts;
#[cfg(feature = "agent")]
pub mod network;
#[cfg(feature = "agent")]
pub mod node_meter;
#[cfg(feature = "process")]
mod pod_group;
#[cfg(feature = "process")]
pub mod process;
#[cfg(any(feature = "cri", feature = "process"))]
pub(crate) mod record;
#[cfg(any(feature = "cri", feature = "process"))]
mod regular;
#[cfg(feature = "process")]
pub(crate) mod signals;
#[cfg(feature = "simulated")]
pub mod simulated;
#[cfg(feature = "agent")]
pub mod sources;
#[cfg(any(feature = "cri", feature = "process"))]
pub(crate) mod stats;
#[cfg(any(feature = "cri", feature = "process"))]
mod step_error;
#[cfg(feature = "process")]
pub mod storage;
#[cfg(any(feature = "cri", feature = "process"))]
pub(crate) mod streaming;
#[cfg(any(feature = "cri", feature = "process"))]
mod sub_path;
#[cfg(any(feature = "cri", feature = "process"))]
mod tree;
#[cfg(any(feature = "cri", feature = "process"))]
#[cfg_attr(
    not(feature = "process"),
    expect(dead_code, reason = "a container runtime keeps its own records, so only the directories above are checked")
)]
pub(crate) mod trusted_dir;

/// The mode of a pod's directory: only the agent and its group have access (upstream `makePodDataDirs`, kubelet 1.36).
#[cfg(any(feature = "cri", feature = "process"))]
const POD_DIR: u32 = 0o750;
