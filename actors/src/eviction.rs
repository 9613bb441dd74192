//! Evictions: stops pods that use more local storage than they may, and pods of a node that lacks a resource (upstream
//! `eviction_manager.go`, kubelet 1.36).
//!
//! ```text
//!   every 10 s:  pods with a limit ──measure──> StorageLimits ──exceeded─────────────────────┐
//!                                                                                            ├──> evict: event, kill
//!    memory, disks, process ids ──> PressureTracker ──met for its grace period──> reclaim    │
//!                                        │                ──still met──> rank all pods, the first one
//!                                        └──> conditions: new pods are rejected, until five minutes after the last time
//! ```
//!
//! A pod is measured only if it has a limit, or if the node lacks a resource. Up to four pods are measured at the same time, so one
//! pod with very many files does not delay the others. Static pods, mirror pods and pods of system-critical priority
//! are measured, but never evicted. Only disk space can be reclaimed without an eviction: housekeeping removes the dead containers of pods
//! that have ended, and then unused images are removed.

mod evictor;
mod limits;
mod messages;
mod policy;
mod pressure;
mod rank;
mod rounds;
mod signals;
mod state;
mod thresholds;

pub(crate) use evictor::{Evictor, EvictorParts};
pub use limits::PodUsage;
pub(crate) use limits::{Limit, StorageLimits};
pub(crate) use messages::RemoveDeadContainers;
pub use policy::{EvictionPolicy, MissingGracePeriod};
pub use pressure::NodePressure;
pub use signals::Pressure;
pub(crate) use state::PressureGate;
pub use state::{EvictionState, MeasuredPod};
pub use thresholds::{EvictionGracePeriods, EvictionThresholds, MinimumReclaim, ParseThresholdsError};
