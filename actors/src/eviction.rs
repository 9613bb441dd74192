//! Evictions: stops pods that use more local storage than they may, and pods of a node whose disks are full (upstream
//! `eviction_manager.go`, kubelet 1.36).
//!
//! ```text
//!   every 10 s:  pods with a limit ──measure──> StorageLimits ──exceeded──────────────────┐
//!                                                                                         ├──> evict: event, kill
//!                disks ──> EvictionThresholds ──met──> remove unused images ──still met──>│
//!                              │                       rank all pods, the first one ──────┘
//!                              └──> DiskPressure: new pods are rejected, until five minutes after the last time
//! ```
//!
//! A pod is measured only if it has a limit, or if a disk is full. The measurements of pods run side by side, so one pod with very
//! many files delays no other; at most four run at once. Static pods, mirror pods and pods of system-critical priority are
//! measured, but never evicted. Dead containers need no step of their own, because each housekeeping pass removes them.
//!
//! Only disks are observed. A signal such as `memory.available` would be one more observation in `relieve` and one more order of
//! pods in `rank`.

mod actor;
mod disk_state;
mod evictor;
mod limits;
mod messages;
mod rank;
mod thresholds;

pub(crate) use actor::EvictionActor;
pub(crate) use disk_state::PressureGate;
pub use disk_state::{DiskPressure, DiskState, MeasuredPod};
pub(crate) use evictor::{Evictor, EvictorParts};
pub use limits::PodUsage;
pub(crate) use limits::{Limit, StorageLimits};
pub use thresholds::{EvictionThresholds, ParseThresholdsError};
