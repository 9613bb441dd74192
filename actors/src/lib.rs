//! The pod lifecycle engine: pure cores that decide, actors that perform, and the ports that they need.
//!
//! The crate `podwright` re-exports this API and documents it.

mod active_pods;
pub(crate) mod dispatcher;
pub mod explain;
mod journal;
mod mailbox;
mod metered;
mod mirrors;
mod node_status;
pub mod ports;
mod probe_manager;
pub(crate) mod resizes;
mod run_facts;
mod starts;
mod status_writer;
pub(crate) mod sync;

pub use container_manager::ContainersConfig;
pub use desired::{DesiredPods, MissingSource};
pub use eviction::{
    EvictionGracePeriods, EvictionPolicy, EvictionThresholds, MinimumReclaim, MissingGracePeriod, NodePressure,
    ParseThresholdsError, Pressure,
};
pub use housekeeping::PassError;
pub use image_gc::ImageGcPolicy;
pub use node::{Node, NodeBuilder, NodeHandle, NodePorts, ShutdownReport, StartNodeError};
pub use node_status::{NodeRegistration, Registration};
pub use podwright_core::{
    AdmissionHandler, Admitted, Allocatable, AppArmor, Cause, Failure, Hook, InvalidSysctlPattern, KillOptions,
    KnownPod, Lifecycle, NodeCapacity, NodePredicates, Notifier, Rejection, Shortage, SysctlAllowlist, Transition,
    Update, UpdateKind, Wait, WaitFor,
};
pub use podwright_engine::{
    Engine, EngineBuilder, EngineConfig, KillPodError, PodSnapshot, RecordSummary, Recorder, StartEngineError, Threads,
};
pub use podwright_model::ids::{FullName, PodUid};
pub use podwright_model::pod::{InvalidPod, Phase, PodObject};
pub use podwright_model::time::{Grace, Time};
pub use podwright_parts::StoppedPart;
pub use podwright_ports::HostIps;
pub use shutdown::ShutdownConfig;
pub use statuses::Statuses;

// The binary, the benches and the tests use the rooms below by their own paths. They are not part of the API,
// and may change in any release.
#[doc(hidden)]
pub mod claims;
#[doc(hidden)]
pub mod container_manager;
#[doc(hidden)]
pub mod desired;
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
pub mod observer;
#[doc(hidden)]
pub mod shutdown;
#[doc(hidden)]
pub mod statuses;
#[doc(hidden)]
pub use podwright_core::{admission, config, containers, objects, pod_worker, probes, status};
#[doc(hidden)]
pub use podwright_engine::{engine, recorder, replay};
#[doc(hidden)]
pub use podwright_model::{ids, names, pod, quantity, text, texts, time};

use podwright_core::{pod_manager, resize};
#[cfg(test)]
use podwright_fixtures as testing;
