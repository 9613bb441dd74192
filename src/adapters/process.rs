//! The embedded process runtime: [`ContainerRuntime`](podwright_actors::ports::ContainerRuntime) without a daemon, without images, without root.
//!
//! A container is a command in a session of its own. Between the agent and the command stands a **shim**: this same
//! binary, started again with a hidden first argument. It outlives the agent, copies the output to the log, waits for
//! the command, kills what the command left behind and writes down how it ended.
//!
//! ```text
//!   agent ──spawn──> shim (own session, subreaper, holds `lock`) ──spawn──> init stage ──exec──> command
//!     │  <─pidfd────── exit, noticed at once          │                       (dies with the shim)
//!     └── control ───> TERM, KILL, REOPEN             └─> log, `shim`, `started`, `exit`
//! ```
//!
//! What is on disk under `<root>/process` (mode 0700), one directory per sandbox and per container; every record is
//! checksummed and replaced atomically:
//!
//! | file | written by | says |
//! |---|---|---|
//! | `run` | agent, at creation | what to run, environment included (mode 0600) |
//! | `state` | agent, last at creation | what the container is; without it the directory was never finished |
//! | `lock` | agent, before a start | a start was attempted; locked for as long as the shim lives |
//! | `shim`, `started` | shim | its pid; the command's pid and start time |
//! | `exit` | shim, before it ends | how the command ended |
//! | `control` | shim makes it | a FIFO that takes one request per line |
//!
//! **Adoption.** The agent locks `lock` *before* it spawns the shim and passes the open file on as the shim's standard
//! input. A lock of this kind belongs to the open file, so there is no instant at which a shim exists and the lock is
//! free: an agent that comes later tries the lock, and a held lock *is* a living shim. A pid that was given out again
//! cannot deceive it, nor can a reboot. A start that left no `shim` record never ran anything; one that left no `exit`
//! record and no lock lost its shim, is reported as exited with 137, and its survivors are found by a variable in their
//! environment ([`CONTAINER_ENV`]) and killed.
//!
//! **File system.** There is no mount namespace. Each run has a fresh directory,
//! `<root>/pods/<uid>/containers/<name>/<id>`, which is the default working directory; each volume mount is a symbolic
//! link in it at the container path less the leading slash, so relative paths reach it. The variables
//! [`ROOTFS_ENV`], `PODWRIGHT_MOUNT_<VOLUME>` and [`TERMINATION_LOG_ENV`] name the absolute paths. Links cannot nest and
//! cannot be read-only.
//!
//! **Network.** All pods share the node's.

mod cgroup;
mod container;
mod create;
mod exec;
mod files;
mod load;
mod procfs;
#[doc(hidden)]
pub mod record;
mod rootfs;
mod runtime;
mod shared;
mod shim;
mod start;
mod stop;
mod table;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

pub use runtime::ProcessRuntime;
#[doc(hidden)]
pub use shim::log;
pub use shim::shim_main;

/// Set for every process of a container, to the container's id: how survivors are found when a shim was killed.
pub const CONTAINER_ENV: &str = "PODWRIGHT_CONTAINER_ID";
/// Set for every process of a container, to the directory that stands for its root.
pub const ROOTFS_ENV: &str = "PODWRIGHT_ROOTFS";
/// Set for every process of a container, to the file whose content becomes its termination message.
pub const TERMINATION_LOG_ENV: &str = "PODWRIGHT_TERMINATION_LOG";
/// The hidden first argument with which the binary must call [`shim_main`].
pub const SHIM_ARGUMENT: &str = "__shim";

/// Settings of the process runtime.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// The agent's directory; state goes to `process/`, what pods see to `pods/`.
    pub root: PathBuf,
    /// Program and leading arguments that run a shim; the rest is appended. By default this same executable with
    /// [`SHIM_ARGUMENT`], also after its file was replaced.
    pub shim: Vec<OsString>,
    /// Whether to put each container into a cgroup of its own where that is possible (cgroup v2, root or a delegated
    /// hierarchy).
    pub cgroups: bool,
    /// The addresses that pods have: all share the node's network, so these are the node's.
    pub addresses: Vec<IpAddr>,
    /// The soft limit on open files that containers have, where it is not that of this process. Programs that wait with
    /// `select` break where it is above 1,024, so who raises its own for itself says here what it was.
    pub open_files: Option<u64>,
}

impl ProcessConfig {
    /// The defaults under a root directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        ProcessConfig {
            root: root.into(),
            shim: vec!["/proc/self/exe".into(), SHIM_ARGUMENT.into()],
            cgroups: true,
            addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            open_files: None,
        }
    }
}

/// The process runtime could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be used.
    #[error("{path}: {error}", path = .path.display())]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Two agents would fight over the same containers.
    #[error("{path} is in use by another agent: stop it, or choose another --root", path = .0.display())]
    InUse(PathBuf),
    /// The path cannot be written into records.
    #[error("root {path:?} is not valid UTF-8: choose another --root", path = .0)]
    NotUtf8(PathBuf),
    /// No shim could be started.
    #[error("the command that starts shims is empty")]
    NoShim,
}
