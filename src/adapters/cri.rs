//! Containers by a container runtime (containerd, CRI-O), over the container runtime interface, version 1.
//!
//! ```text
//!   engine ──ContainerRuntime──> CriRuntime ──gRPC, Unix socket──> containerd ──> sandboxes, containers
//!                                   │  create    one of each name at a time; what may have been made is looked up
//!                                   │  stop      the shortest grace counts; goes on when the caller goes away
//!                                   │  images    one pull of each image, a few at once
//!                                   │  read      what the runtime says, as the port has it     } pure
//!                                   │  *_config  what a pod asks for, as the interface has it  }
//!                                   └─ files     logs, links to them, /etc/hosts, termination messages
//! ```
//!
//! Nothing is remembered here that the runtime does not know too: whose a sandbox or container is, which run it is, and of
//! which definition, stands in its labels and annotations, by the names that a kubelet uses. So an agent that comes later
//! finds all of it, and so do `crictl` and collectors of logs.
//!
//! A runtime that is away stops nothing. Every call fails with
//! [`RuntimeError::Unreachable`](podwright_actors::ports::RuntimeError::Unreachable) until it is back, and the engine
//! leaves pods as they are meanwhile.

mod client;
#[allow(dead_code, unused_imports, reason = "the runtime that asks for it is built beside it")]
mod config;
mod container_config;
mod create;
mod dns;
mod endpoint;
mod events;
mod facts;
mod files;
#[cfg(test)]
mod fixtures;
mod flights;
mod hosts;
mod image_name;
mod images;
mod inner;
mod labels;
mod read;
mod runtime;
mod sandbox_config;
mod stop;
#[cfg(test)]
mod tests;
mod v1;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use podwright_actors::ports::RuntimeName;
use podwright_metrics::Metrics;

pub use endpoint::{Endpoint, ParseEndpointError};
pub use runtime::CriRuntime;

/// Settings of the runtime.
#[derive(Clone, Debug)]
pub struct CriConfig {
    /// Where the runtime listens.
    pub endpoint: Endpoint,
    /// The agent's directory; what pods see goes to `pods/`.
    pub root: PathBuf,
    /// Where pods log: `/var/log/pods` on any node.
    pub logs: PathBuf,
    /// Where the links to their logs are that older collectors follow: `/var/log/containers` on any node.
    pub log_links: PathBuf,
    /// How many images are pulled at once (`maxParallelImagePulls` of a kubelet).
    pub parallel_pulls: NonZeroUsize,
    /// Learns the runtime's name before anything is listed.
    pub name: RuntimeName,
    /// Where calls and pulls are counted.
    pub metrics: Metrics,
}

/// The runtime cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the endpoint cannot be used: choose a socket whose path a URI can hold")]
pub struct OpenError(#[from] tonic::transport::Error);
