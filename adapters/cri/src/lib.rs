//! The container runtime port over the Container Runtime Interface (CRI), version 1, for containerd and CRI-O.
//!
//! ```text
//!   engine ──ContainerRuntime──> CriRuntime ──gRPC, Unix socket──> containerd ──> sandboxes, containers
//! ```
//!
//! ```no_run
//! use std::num::NonZeroUsize;
//! use std::sync::Arc;
//!
//! use podwright_ports::{EventRecorder, NamedRuntimeClasses, NoCredentialProviders, NoPullSecrets, RuntimeName};
//! use podwright_cri::adoption::AdoptedPods;
//! use podwright_cri::{CriConfig, CriRuntime, NodeSettings, VerificationPolicy};
//! use podwright_metrics::Metrics;
//!
//! async fn open(events: Arc<dyn EventRecorder>) -> Result<CriRuntime, Box<dyn std::error::Error>> {
//!     let runtime = CriRuntime::open(CriConfig {
//!         endpoint: "unix:///run/containerd/containerd.sock".parse()?,
//!         root: "/var/lib/podwright".into(),
//!         logs: "/var/log/pods".into(),
//!         log_links: "/var/log/containers".into(),
//!         registry_config: None,
//!         pull_secrets: Arc::new(NoPullSecrets),
//!         credential_providers: Arc::new(NoCredentialProviders),
//!         parallel_pulls: NonZeroUsize::MIN,
//!         name: RuntimeName::default(),
//!         metrics: Metrics::new(),
//!         settings: NodeSettings::default(),
//!         runtime_classes: Arc::new(NamedRuntimeClasses::default()),
//!         events,
//!         verification: VerificationPolicy::default(),
//!         adopted: Arc::new(AdoptedPods::none()),
//!         cdi_directories: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
//!     })?;
//!     runtime.check().await?;
//!     Ok(runtime)
//! }
//! ```
//!
//! The adapter keeps no record of its own about sandboxes and containers. The owner of a sandbox or container, its run and the
//! hash of its definition are in its labels and annotations, under the names that the kubelet uses. A restarted agent finds
//! everything there, and so do `crictl` and log collectors.
//!
//! While the runtime does not answer, pods keep running. Every call fails with
//! [`RuntimeError::Unreachable`](podwright_ports::RuntimeError::Unreachable), and the engine leaves the pods as they
//! are.
//!
//! # Parts
//!
//! | part | what it does |
//! |---|---|
//! | `runtime` | implements the ports with the parts below |
//! | `client` | one method for each CRI call, with time limit, metrics and typed errors |
//! | `config` (pure) | converts a pod to the requests for the runtime |
//! | `read` (pure) | converts the runtime's answers to the types of the ports |
//! | `create` | creates a sandbox or container, or finds the one that was already created |
//! | `inspect` | lists pods and reads their status |
//! | `layers` | reads the disk usage of writable layers |
//! | `remove`, `container_stops` | remove and stop sandboxes and containers |
//! | `images`, `image_name` | pull, list and remove images |
//! | `logins`, `registry_config`, `credentials` | registry logins of pods, of the node and of its plugins |
//! | `access`, `pull_records`, `verification` | which pods may use an image that is already present |
//! | `node_facts` | what the node and the runtime support, and the cgroup driver |
//! | `conditions`, `events` | the runtime's conditions, and its container events |
//! | `cgroups`, `id_ranges` | cgroups of pods, and user ID ranges of their user namespaces |
//! | `checkpoints` | writes checkpoints of containers |
//! | `streams` | gets the URLs of exec, attach and port-forward sessions from the runtime |
//! | `files`, `layout` | logs, links to logs, `/etc/hosts`, termination messages |
//! | [`adoption`] | takes over the pods that a kubelet started |
//!
//! The build script generates the messages and the clients from `proto/runtime.proto`.
//!
//! # Arrows
//!
//! The crate uses `podwright-core`, `podwright-model`, `podwright-ports`, `podwright-metrics`, `podwright-host` and, for the names of gRPC
//! codes, `podwright-grpc-socket`. It uses no other adapter. The library `podwright` exports it as `adapters::cri` and `adapters::adoption`.

mod access;
pub mod adoption;
mod cgroups;
mod checkpoints;
mod client;
mod conditions;
mod config;
mod container_stops;
mod create;
mod credentials;
mod endpoint;
mod events;
mod files;
mod id_ranges;
mod image_name;
mod images;
mod inner;
mod inspect;
mod layers;
mod layout;
mod logins;
mod node_facts;
mod processes;
mod pull_records;
mod read;
mod registry_config;
mod remove;
mod resize;
mod runtime;
mod settings;
mod stats;
mod streams;
mod tasks;
#[cfg(test)]
mod tests;
/// The tests and the benches of this repository call a runtime directly.
#[doc(hidden)]
pub mod v1;
mod verification;

pub use client::OpenError;
pub use config::{CgroupDriver, ParseCgroupDriverError};
pub use endpoint::{Endpoint, ParseEndpointError};
pub use runtime::CriRuntime;
pub use settings::{Allocatable, CGROUP_ROOT, CriConfig, NodeSettings, ParseSwapBehaviorError, SwapBehavior};
pub use verification::{ImageList, ImageListEntry, ParseImageListError, VerificationPolicy};
