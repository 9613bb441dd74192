//! What the adapters and the agent share on the host: files that another program may change, and what the kernel says of processes.
//!
//! ```
//! use podwright_host::record::{self, Durability};
//!
//! # fn example(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
//! let path = dir.join("boot");
//! record::write(&path, &4711, Durability::Disk)?;
//! assert_eq!(record::read::<u32>(&path)?, 4711);
//! # Ok(())
//! # }
//! # example(tempfile::tempdir()?.path())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Parts
//!
//! - [`record`]: files with a checksum, which are replaced atomically.
//! - [`storage`]: the directories and volumes of pods, with [`disk_usage`] to measure them, and [`pod_group`] for containers that reach
//!   them by path.
//! - [`log`]: the logs of containers in the CRI format, their rotation and their reader.
//! - [`regular`], [`tree`], [`sub_path`], [`trusted_dir`], [`trusted_file`], [`mounts`] and [`dir_watch`]: files and directories that a
//!   container or another user may change at any time.
//! - [`cdi`]: the devices of the Container Device Interface.
//! - [`stats`] and [`node_meter`]: what containers, pods and the machine use.
//! - [`streaming`]: the streams between a client and a pod.
//! - [`changed_pods`], [`step_error`] and [`signals`]: what the runtimes share for events, errors and processes.
//!
//! # Arrows
//!
//! The crate uses `podwright-ports`, `podwright-core` and `podwright-model`. Other adapters and the agent use the crate; it uses no other
//! adapter.

pub mod cdi;
pub mod changed_pods;
pub mod dir_watch;
pub mod disk_usage;
pub mod log;
pub mod mounts;
pub mod node_meter;
pub mod pod_group;
pub mod record;
pub mod regular;
pub mod signals;
pub mod stats;
pub mod step_error;
pub mod storage;
pub mod streaming;
pub mod sub_path;
pub mod tree;
pub mod trusted_dir;
pub mod trusted_file;

/// The mode of a pod's directory: only the agent and its group have access (upstream `makePodDataDirs`, kubelet 1.36).
pub const POD_DIR: u32 = 0o750;
