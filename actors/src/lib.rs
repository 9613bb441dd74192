//! The pod lifecycle engine: pure cores that decide, actors that perform, and the ports that they need.
//!
//! The crate `podwright` re-exports this API and documents it. Without the feature `engine`, the crate contains only the values,
//! the ports and the work queue, which the library for the authors of DRA drivers uses too.

#![cfg_attr(not(feature = "engine"), expect(dead_code, unused_imports, reason = "only the engine uses them"))]

#[cfg(feature = "engine")]
mod active_pods;
#[cfg(feature = "engine")]
pub(crate) mod codec;
#[cfg(feature = "engine")]
pub(crate) mod dispatcher;
#[cfg(feature = "engine")]
pub mod explain;
#[cfg(feature = "engine")]
mod host_ips;
#[cfg(feature = "engine")]
mod journal;
#[cfg(feature = "engine")]
mod mailbox;
#[cfg(feature = "engine")]
mod metered;
#[cfg(feature = "engine")]
mod mirrors;
#[cfg(feature = "engine")]
mod node_status;
#[cfg(feature = "engine")]
pub(crate) mod pod_manager;
pub mod ports;
#[cfg(feature = "engine")]
pub(crate) mod resize;
#[cfg(feature = "engine")]
pub(crate) mod resizes;
#[cfg(feature = "engine")]
mod run_facts;
#[cfg(feature = "engine")]
mod starts;
#[cfg(feature = "engine")]
mod status_writer;
#[cfg(feature = "engine")]
pub(crate) mod sync;
#[cfg(feature = "engine")]
#[cfg(test)]
pub(crate) mod testing;

#[cfg(feature = "engine")]
pub use admission::{
    AdmissionHandler, Admitted, AppArmor, InvalidSysctlPattern, NodeCapacity, NodePredicates, Rejection, Shortage,
    SysctlAllowlist,
};
#[cfg(feature = "engine")]
pub use container_manager::ContainersConfig;
#[cfg(feature = "engine")]
pub use containers::env::Allocatable;
#[cfg(feature = "engine")]
pub use desired::{DesiredPods, MissingSource};
#[cfg(feature = "engine")]
pub use engine::{
    Engine, EngineBuilder, EngineConfig, KillPodError, PodSnapshot, RecordSummary, StartEngineError, Threads,
};
#[cfg(feature = "engine")]
pub use eviction::{
    EvictionGracePeriods, EvictionPolicy, EvictionThresholds, MinimumReclaim, MissingGracePeriod, NodePressure,
    ParseThresholdsError, Pressure,
};
#[cfg(feature = "engine")]
pub use host_ips::HostIps;
#[cfg(feature = "engine")]
pub use housekeeping::PassError;
#[cfg(feature = "engine")]
pub use image_gc::ImageGcPolicy;
#[cfg(feature = "engine")]
pub use node::{Node, NodeBuilder, NodeHandle, NodePorts, ShutdownReport, StartNodeError};
#[cfg(feature = "engine")]
pub use node_status::{NodeRegistration, Registration};
pub use pod::{InvalidPod, Phase, PodObject};
#[cfg(feature = "engine")]
pub use pod_worker::{
    Cause, Failure, Hook, KillOptions, KnownPod, Lifecycle, Notifier, Transition, Update, UpdateKind, Wait, WaitFor,
};
pub use podwright_model::ids::{FullName, PodUid};
pub use podwright_model::time::{Grace, Time};
#[cfg(feature = "engine")]
pub use recorder::Recorder;
#[cfg(feature = "engine")]
pub use shutdown::ShutdownConfig;
#[cfg(feature = "engine")]
pub use statuses::Statuses;

// The adapters, the binary, the benches and the tests use the rooms below by their own paths. They are not part of the API,
// and may change in any release.
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod admission;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod claims;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod config;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod container_manager;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod containers;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod controllers;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod desired;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod engine;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod eviction;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod final_statuses;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod health;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod housekeeping;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod image_gc;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod node;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod objects;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod observer;
#[doc(hidden)]
pub mod pod;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod pod_worker;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod probes;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod recorder;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod replay;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod shutdown;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod status;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod statuses;
#[doc(hidden)]
pub mod texts;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod work_queue;
#[doc(hidden)]
pub use podwright_model::{ids, quantity, text, time};
