//! Devices of the Container Device Interface (CDI): reads the specifications that vendors and DRA drivers write, and finds what
//! they change in a container.
//!
//! A specification is a file with devices of one kind. A device has edits: environment variables, device nodes, mounts and so
//! on. A container runtime with CDI applies them itself. `resolve` serves the runtimes that do not, and each of these adapters
//! turns the `Edits` into its own settings. An edit that an adapter cannot apply is an error, because without it the container
//! would run with an incomplete device.
//!
//! ```text
//!   /etc/cdi, /var/run/cdi ──SpecCache──> Specs ──resolve(names)──> Edits ──> process, cri
//! ```
//!
//! Only root or the user of the agent may be able to change the directories and the files (`directories.rs`). Pods name no file and no
//! device: the names come from the drivers of their claims.
//!
//! The rules are those of the [specification](https://github.com/cncf-tags/container-device-interface), versions 0.3.0 to 1.1.0.

mod apply;
mod cache;
mod directories;
mod document;
mod edits;
mod error;
mod name;
mod resolve;
#[cfg(test)]
mod tests;
mod validate;
mod version;

use std::path::PathBuf;

pub use apply::{BindOptions, FoundDevice, HostNode, NodePropagation};
pub use cache::SpecCache;
pub use document::{Content, Format, MAX_BYTES, parse};
pub use edits::{DeviceNode, Edits, Hook, IntelRdt, Mount, NetDevice};
pub use error::{CdiError, SpecError, SpecFault};
pub use name::DeviceName;
pub use resolve::{Device, Spec, Specs, resolve};

/// The directories of specifications. A device in a later directory replaces one of the same name in an earlier directory.
pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// [`DIRECTORIES`] as paths.
pub fn default_directories() -> Vec<PathBuf> {
    DIRECTORIES.map(PathBuf::from).into()
}
