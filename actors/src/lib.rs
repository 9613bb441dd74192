//! The pod lifecycle engine: pure cores that decide, actors that perform, and the ports that they need.
//!
//! The crate `podwright` re-exports this API and documents it.

mod active_pods;
pub(crate) mod codec;
pub(crate) mod dispatcher;
pub mod explain;
mod journal;
mod mailbox;
mod metered;
mod mirrors;
mod node_status;
pub(crate) mod pod_manager;
pub mod ports;
mod probe_manager;
pub(crate) mod resize;
pub(crate) mod resizes;
mod run_facts;
mod starts;
mod status_writer;
pub(crate) mod sync;
#[cfg(test)]
pub(crate) mod testing;

pub use admission::{
    AdmissionHandler, Admitted, AppArmor, InvalidSysctlPattern, NodeCapacity, NodePredicates, Rejection, Shortage,
    SysctlAllowlist,
};
pub use container_manager::ContainersConfig;
pub use containers::env::Allocatable;
pub use desired::{DesiredPods, MissingSource};
pub use engine::{
    Engine, EngineBuilder, EngineConfig, KillPodError, PodSnapshot, RecordSummary, StartEngineError, Threads,
};
pub use eviction::{
    EvictionGracePeriods, EvictionPolicy, EvictionThresholds, MinimumReclaim, MissingGracePeriod, NodePressure,
    ParseThresholdsError, Pressure,
};
pub use housekeeping::PassError;
pub use image_gc::ImageGcPolicy;
pub use node::{Node, NodeBuilder, NodeHandle, NodePorts, ShutdownReport, StartNodeError};
pub use node_status::{NodeRegistration, Registration};
pub use pod_worker::{
    Cause, Failure, Hook, KillOptions, KnownPod, Lifecycle, Notifier, Transition, Update, UpdateKind, Wait, WaitFor,
};
pub use podwright_model::ids::{FullName, PodUid};
pub use podwright_model::pod::{InvalidPod, Phase, PodObject};
pub use podwright_model::time::{Grace, Time};
pub use podwright_ports::HostIps;
pub use recorder::Recorder;
pub use shutdown::ShutdownConfig;
pub use statuses::Statuses;

// The adapters, the binary, the benches and the tests use the rooms below by their own paths. They are not part of the API,
// and may change in any release.
#[doc(hidden)]
pub mod admission;
#[doc(hidden)]
pub mod claims;
#[doc(hidden)]
pub mod config;
#[doc(hidden)]
pub mod container_manager;
#[doc(hidden)]
pub mod containers;
#[doc(hidden)]
pub mod desired;
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod eviction;
#[doc(hidden)]
pub mod final_statuses;
#[doc(hidden)]
pub mod health;
#[doc(hidden)]
pub mod housekeeping;
#[doc(hidden)]
pub mod image_gc;
#[doc(hidden)]
pub mod node;
#[doc(hidden)]
pub mod objects;
#[doc(hidden)]
pub mod observer;
#[doc(hidden)]
pub mod pod_worker;
#[doc(hidden)]
pub mod probes;
#[doc(hidden)]
pub mod recorder;
#[doc(hidden)]
pub mod replay;
#[doc(hidden)]
pub mod shutdown;
#[doc(hidden)]
pub mod status;
#[doc(hidden)]
pub mod statuses;
#[doc(hidden)]
pub use podwright_model::{ids, pod, quantity, text, texts, time};
