//! A node: all parts of a node agent, connected over its ports.
//!
//! ```text
//!                    +-- NodeHandle: queries, run_housekeeping(), shutdown(deadline); dropping it stops the node
//!                    |
//!   sources ----> dispatcher ----> engine (one worker per pod) ----> NodeSyncer ----> container manager ----> runtime
//!                  ^      ^                                            |    |
//!        observer -+      +- probes <----------------------------------+    +--> statuses, final statuses, volumes, cgroups
//! ```
//!
//! The dispatcher, the observer and housekeeping are actix actors, because other parts send messages to them. Everything else that runs by
//! itself is a part: a named task that starts again after a panic. All are on the arbiter that started the node.

mod api_server;
mod changes;
mod evictions;
mod handle;
mod mailboxes;
mod pod_workers;
mod ports;
mod queries;
mod shared;
mod start;

use std::time::Duration;

use crate::container_manager::ContainersConfig;
use crate::containers::env::Allocatable;
use crate::engine::{EngineConfig, StartEngineError};
use crate::eviction::EvictionPolicy;
use crate::image_gc::ImageGcPolicy;
use crate::ports::HostIps;

use crate::node_status::NodeRegistration;
use crate::ports::{CheckpointError, RuntimeName, SourceKind};
use crate::status::NodeFacts;

pub use handle::{NodeHandle, ShutdownReport};
pub use ports::NodePorts;
pub use queries::NodeQueries;

/// A node agent that runs pods over ports. [`Node::builder`] makes one; [`NodeHandle`] is a running one.
#[derive(Clone, Copy, Debug)]
pub enum Node {}

/// Settings of a node. Each has a default, so that a builder can be started without any setting.
#[derive(Clone)]
#[must_use]
pub struct NodeBuilder {
    ports: NodePorts,
    engine: EngineConfig,
    containers: ContainersConfig,
    facts: NodeFacts,
    allocatable: Allocatable,
    long_wait_after: Duration,
    image_gc: ImageGcPolicy,
    eviction: EvictionPolicy,
    eviction_period: Duration,
    sources: Vec<SourceKind>,
    registration: Option<Box<NodeRegistration>>,
}

/// The node cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartNodeError {
    /// The threads of the engine cannot be started.
    #[error("cannot start the engine's threads")]
    Engine(#[from] StartEngineError),
    /// The final statuses cannot be read. Without them, pods that have ended would run again.
    #[error("cannot read which pods have ended: make the file readable, or move it away to run those pods again")]
    FinalStatuses(#[from] CheckpointError),
    /// What the last agent was doing with the containers cannot be read.
    #[error("cannot read the facts of containers: make the file readable, or move it away")]
    RunFacts(#[source] CheckpointError),
}

impl Node {
    /// A builder for a node over these ports.
    pub fn builder(ports: NodePorts) -> NodeBuilder {
        NodeBuilder {
            ports,
            engine: EngineConfig::default(),
            containers: ContainersConfig::default(),
            facts: NodeFacts {
                name: "node".to_owned(),
                host_ips: HostIps::default(),
                runtime_name: RuntimeName::default(),
            },
            allocatable: Allocatable::new(),
            long_wait_after: Duration::from_secs(300),
            image_gc: ImageGcPolicy::default(),
            eviction: EvictionPolicy::default(),
            eviction_period: Duration::from_secs(10),
            sources: Vec::new(),
            registration: None,
        }
    }
}

impl NodeBuilder {
    /// The node's name in statuses and metrics. By default `node`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.facts.name = name.into();
        self
    }

    /// The node's addresses, which are also those of pods on the host network. By default none. A [`HostIps`] may get other addresses
    /// while the node runs.
    pub fn host_ips(mut self, host_ips: impl Into<HostIps>) -> Self {
        self.facts.host_ips = host_ips.into();
        self
    }

    /// The scheme of container ids in statuses, such as `containerd`. By default `unknown`.
    pub fn runtime_name(mut self, name: impl Into<RuntimeName>) -> Self {
        self.facts.runtime_name = name.into();
        self
    }

    /// The resources that the node can give to pods. A container without a limit of its own sees them through the downward
    /// API. By default none.
    pub fn allocatable(mut self, allocatable: Allocatable) -> Self {
        self.allocatable = allocatable;
        self
    }

    /// The sources that have to deliver before any pod is stopped because no source desires it. By default none: then the
    /// node is ready at once.
    pub fn sources(mut self, sources: impl IntoIterator<Item = SourceKind>) -> Self {
        self.sources = sources.into_iter().collect();
        self
    }

    /// The Node object that is registered. Has no effect without a [`node_api`](NodePorts::node_api) among the ports.
    pub fn registration(mut self, registration: NodeRegistration) -> Self {
        self.registration = Some(Box::new(registration));
        self
    }

    /// Settings of the engine.
    pub fn engine(mut self, config: EngineConfig) -> Self {
        self.engine = config;
        self
    }

    /// Settings of the container manager.
    pub fn containers(mut self, config: ContainersConfig) -> Self {
        self.containers = config;
        self
    }

    /// When unused images are removed. Has no effect without an image store among the ports.
    pub fn image_gc(mut self, policy: ImageGcPolicy) -> Self {
        self.image_gc = policy;
        self
    }

    /// When pods are evicted because the node lacks a resource. Only resources with a meter among the ports count.
    pub fn eviction(mut self, policy: impl Into<EvictionPolicy>) -> Self {
        self.eviction = policy.into();
        self
    }

    /// How often pods with limits and the node's resources are measured. By default 10 s (upstream `evictionMonitoringPeriod`).
    pub fn eviction_period(mut self, period: Duration) -> Self {
        self.eviction_period = period;
        self
    }

    /// A pod that waits for longer than this gets the event `LongWait`. By default 300 s; zero disables the event.
    pub fn long_wait_after(mut self, after: Duration) -> Self {
        self.long_wait_after = after;
        self
    }

    /// Starts all parts on the current actix arbiter, and the pod workers on the threads that the engine's settings name.
    /// Blocks while it reads the final statuses.
    ///
    /// # Errors
    /// [`StartNodeError`]. Nothing was started in this case.
    ///
    /// # Panics
    /// Outside of an actix arbiter.
    pub fn start(self) -> Result<NodeHandle, StartNodeError> {
        start::start(&self)
    }
}
