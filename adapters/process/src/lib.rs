//! The embedded process runtime: a [`ContainerRuntime`](podwright_ports::ContainerRuntime) that needs no daemon,
//! no images and no root.
//!
//! A container is a command in a session of its own. Between the agent and the command stands a **shim**: this same
//! binary, started again with a hidden first argument. The shim outlives the agent. It copies the command's output to the
//! log, waits for the command to end, kills the processes that the command left behind, and records the exit.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use podwright_process::{ProcessConfig, ProcessRuntime, SHIM_ARGUMENT, shim_main};
//!
//! fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
//!     // Before any other thread starts: the runtime starts this program again, once for each container.
//!     let mut args = std::env::args_os().skip(1);
//!     if args.next().is_some_and(|arg| arg == SHIM_ARGUMENT) {
//!         return Ok(shim_main(args));
//!     }
//!     tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run())
//! }
//!
//! async fn run() -> Result<ExitCode, Box<dyn std::error::Error>> {
//!     let _runtime = ProcessRuntime::open(ProcessConfig::new("/var/lib/node")).await?;
//!     // A node runs its pods with the runtime.
//!     Ok(ExitCode::SUCCESS)
//! }
//! ```
//!
//! # Parts
//!
//! - [`ProcessRuntime`] is the runtime, and [`ProcessConfig`] has its settings.
//! - [`shim_main`] is the code of the shim.
//! - `podwright-process-shim`, a program of this package, is a shim and nothing else. An embedder whose program cannot be its own shim
//!   installs it, and names it in [`ProcessConfig::shim`].
//! - [`unsupported`] says before a pod runs what the runtime refuses in it.
//!
//! # Arrows
//!
//! The crate uses `podwright-ports`, whose traits it implements, `podwright-core`, `podwright-model` and `podwright-host`. It uses no
//! other adapter.
//!
//! # How it works
//!
//! ```text
//!   agent ──spawn──> shim (own session, subreaper, holds `lock`) ──spawn──> init stage ──exec──> command
//!     │  <─pidfd────── the shim exits                 │                       (dies with the shim)
//!     ├── control ───> TERM, KILL, REOPEN, RESIZE     └─> log, `shim`, `started`, `exit`
//!     └── stdin ─────> the command's input
//! ```
//!
//! The directory `<root>/process` (mode 0700) holds one directory per sandbox and one per container. Every record in them
//! has a checksum and is replaced atomically:
//!
//! | file | written by | content |
//! |---|---|---|
//! | `run` | agent, at creation | the command to run, with its environment (mode 0600) |
//! | `state` | agent, at the end of creation | the container's identity; without this file the creation is unfinished |
//! | `lock` | agent, before a start | a start was attempted; the file is locked for as long as the shim lives |
//! | `shim`, `started` | shim | the shim's pid; the command's pid and start time |
//! | `exit` | shim, when the command has ended | how the command ended |
//! | `started-reserved`, `exit-reserved` | shim, before the command | disk space for `started` and `exit` |
//! | `control` | shim | a FIFO that takes one request per line |
//! | `stdin` | shim | a FIFO that takes the input of attached clients, until the input of the command ends |
//!
//! **Adoption.** The agent locks `lock` *before* it spawns the shim, and hands the open file to the shim as its standard
//! input. A `flock` belongs to the open file, so the lock is never free while the shim lives. An agent that starts later
//! tries the lock: if the lock is held, the shim lives. Neither a reused pid nor a reboot can falsify that test. If a start
//! left no `shim` record, no command ran. If a start left neither an `exit` record nor a held lock, the shim died: the
//! container is reported as exited with code 137, and the agent kills its remaining processes, which it finds by a
//! variable in their environment ([`CONTAINER_ENV`]).
//!
//! **File system and processes.** Where the agent may create namespaces, a container has its own mount and PID namespaces: the
//! agent's root directory contains only the container's own directory and its mounts, and `/proc` contains only its own processes.
//! Everything else is the node's. The shim and the keepers of exec commands stay outside of the PID namespace. Its first process,
//! `podwright-init`, is a child of the shim, and the container ends with it.
//!
//! Each run of a container has a new directory,
//! `<root>/pods/<uid>/containers/<name>/<id>`, which is the default working directory. Each volume mount is a symbolic link
//! in that directory, at the mount path without the leading slash, so that a relative path reaches the volume. The variables
//! [`ROOTFS_ENV`], `PODWRIGHT_MOUNT_<VOLUME>` and [`TERMINATION_LOG_ENV`] hold the absolute paths. Links cannot nest.
//!
//! **Devices.** The runtime itself applies the specifications of CDI devices: variables, mounts, supplementary groups and device
//! nodes. A device node is in the container's directory, as a mount is.
//!
//! **Network.** All pods share the node's network.

mod cgroup;
mod container;
mod create;
mod devices;
mod exec;
mod files;
mod identity;
mod load;
mod probe;
mod procfs;
mod pty;
#[allow(missing_docs, reason = "the names of the fields are those of the files")]
mod record;
mod reserved;
mod rootfs;
mod runtime;
mod security;
mod shared;
#[cfg_attr(not(test), deny(clippy::print_stderr, reason = "a failed write would end the shim"))]
mod shim;
mod start;
mod stats;
mod stop;
mod streams;
mod table;
#[doc(hidden)]
pub mod testing;
mod view;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use podwright_ports::HostIps;

pub use create::unsupported;
pub use podwright_host::trusted_dir::UntrustedDirectory;
pub use runtime::ProcessRuntime;
pub use shim::shim_main;

/// The environment variable with the container's id. Every process of a container has it, so that the agent finds the
/// container's remaining processes after its shim was killed.
pub const CONTAINER_ENV: &str = "PODWRIGHT_CONTAINER_ID";
/// The environment variable with the directory that serves as the container's root. Every process of a container has it.
pub const ROOTFS_ENV: &str = "PODWRIGHT_ROOTFS";
/// The environment variable with the file whose content becomes the container's termination message. Every process of a
/// container has it.
pub const TERMINATION_LOG_ENV: &str = "PODWRIGHT_TERMINATION_LOG";
/// The hidden first argument of a shim: a binary that is started with it must call [`shim_main`].
pub const SHIM_ARGUMENT: &str = "__shim";

/// Settings of the process runtime.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// The agent's directory. The runtime keeps its records in `process/` and the files that pods see in `pods/`.
    pub root: PathBuf,
    /// The program that runs a shim, with its first arguments. The runtime appends the other arguments. The default is the
    /// running executable with [`SHIM_ARGUMENT`], even if its file was replaced meanwhile. Another program must call [`shim_main`] of
    /// the same version of this library, as `podwright-process-shim` does: `shim[0]` is its path.
    pub shim: Vec<OsString>,
    /// Whether to put each container into its own cgroup. This requires cgroup v2, and root or a delegated hierarchy.
    /// Otherwise containers run without cgroups.
    pub cgroups: bool,
    /// The addresses that are reported for every pod: the node's addresses, because all pods share the node's network.
    pub addresses: HostIps,
    /// Whether to refuse the ephemeral containers of an API server's pods that are root of the node, or can become root. The admission
    /// handler [`NoRootPods`](podwright_core::admission::NoRootPods) refuses the pods, and does not see the ephemeral containers, which
    /// come later. The default is false.
    pub refuse_ephemeral_root: bool,
    /// The soft limit on open files that containers get; `None` keeps the limit of this process. A process that raises its
    /// own limit sets its earlier limit here, because programs that use `select` fail with a limit above 1,024.
    pub open_files: Option<u64>,
    /// The directories with the specifications of CDI devices. A device in a later directory replaces one of the same name in an
    /// earlier directory. Only root and the user of this process may be able to change them.
    pub cdi_directories: Vec<PathBuf>,
}

impl ProcessConfig {
    /// The default settings with this root directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        ProcessConfig {
            root: root.into(),
            shim: vec!["/proc/self/exe".into(), SHIM_ARGUMENT.into()],
            cgroups: true,
            addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)].into(),
            refuse_ephemeral_root: false,
            open_files: None,
            cdi_directories: podwright_host::cdi::default_directories(),
        }
    }
}

/// Why the process runtime could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused an operation on a file or directory.
    #[error("{path}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Other users could replace the commands of containers.
    #[error(transparent)]
    Untrusted(#[from] UntrustedDirectory),
    /// Another agent uses the root directory. Two agents would start and stop the same containers.
    #[error("{path} is in use by another agent: stop it, or choose another --root", path = .0.display())]
    InUse(PathBuf),
    /// The root directory's path cannot be written into records, which are JSON.
    #[error("root {path:?} is not valid UTF-8: choose another --root", path = .0)]
    NotUtf8(PathBuf),
    /// [`ProcessConfig::shim`] is empty.
    #[error("the command that starts shims is empty: set `ProcessConfig::shim`")]
    NoShim,
}
