//! Containers by a container runtime (containerd, CRI-O), over the container runtime interface, version 1.
//!
//! ```text
//!   engine ──ContainerRuntime──> CriRuntime ──gRPC, Unix socket──> containerd ──> sandboxes, containers
//!                                   │  create    one of each name at a time; what may have been made is looked up
//!                                   │  stop      the shortest grace counts; goes on when the caller goes away
//!                                   │  images    one pull of each image for each login, a few at once; what is there
//!                                   │  logins, credentials, registry_config  of pods and of the node, at registries
//!                                   │  access, pull_records  who may use an image that is there
//!                                   │  read      what the runtime says, as the port has it     } pure
//!                                   │  config    what a pod asks for, as the interface has it  }
//!                                   ├─ node_facts  what the machine and the runtime can do
//!                                   ├─ cgroups, users, conditions  limits of pods, ids for their users, what is not ready
//!                                   └─ files  logs, links to them, /etc/hosts, termination messages
//! ```
//!
//! Nothing is remembered here that the runtime does not know too: whose a sandbox or container is, which run it is, and of
//! which definition, stands in its labels and annotations, by the names that a kubelet uses. So an agent that comes later
//! finds all of it, and so do `crictl` and collectors of logs.
//!
//! A runtime that is away stops nothing. Every call fails with
//! [`RuntimeError::Unreachable`](podwright_actors::ports::RuntimeError::Unreachable) until it is back, and the engine
//! leaves pods as they are meanwhile.

mod access;
mod cgroups;
mod client;
mod conditions;
mod config;
mod create;
mod credentials;
mod endpoint;
mod events;
mod files;
mod flights;
mod image_name;
mod images;
mod inner;
mod layout;
mod logins;
mod node_facts;
mod pull_records;
mod read;
mod registry_config;
mod runtime;
mod settings;
mod stop;
#[cfg(test)]
mod tests;
mod users;
mod v1;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use podwright_actors::ports::{EventRecorder, PullSecrets, RuntimeClasses, RuntimeName};
use podwright_metrics::Metrics;

pub use endpoint::{Endpoint, ParseEndpointError};
pub use runtime::CriRuntime;
pub use settings::{CGROUP_ROOT, CgroupDriver, NodeSettings};

/// Settings of the runtime.
#[derive(Clone)]
pub struct CriConfig {
    /// Where the runtime listens.
    pub endpoint: Endpoint,
    /// The agent's directory; what pods see goes to `pods/`, and `seccomp/` has the profiles that they may name.
    pub root: PathBuf,
    /// Where pods log: `/var/log/pods` on any node.
    pub logs: PathBuf,
    /// Where the links to their logs are that older collectors follow: `/var/log/containers` on any node.
    pub log_links: PathBuf,
    /// The node's logins at registries: a `config.json` of docker, or a `.dockercfg`. Read again when it changes.
    pub registry_config: Option<PathBuf>,
    /// The logins that pods bring.
    pub pull_secrets: Arc<dyn PullSecrets>,
    /// How many images are pulled at once (`maxParallelImagePulls` of a kubelet).
    pub parallel_pulls: NonZeroUsize,
    /// Learns the runtime's name before anything is listed.
    pub name: RuntimeName,
    /// Where calls and pulls are counted.
    pub metrics: Metrics,
    /// How pods find names, and where their cgroups are.
    pub settings: NodeSettings,
    /// Tells the handlers of runtime classes.
    pub runtime_classes: Arc<dyn RuntimeClasses>,
    /// Learns of pulls, and of what a pod asks for and does not get, and runs without.
    pub events: Arc<dyn EventRecorder>,
}

/// The runtime cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the endpoint cannot be used: choose a socket whose path a URI can hold")]
pub struct OpenError(#[from] tonic::transport::Error);
