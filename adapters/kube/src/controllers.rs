//! The controllers on an API server: their watches, calls and events, their leases, and their terms as the leader.

mod calls;
mod claim_bytes;
mod claim_terms;
mod claims;
mod leases;
mod preview;
mod taint_terms;
mod taints;
mod term_events;
mod terms;
mod watch_problems;
mod watches;

pub use claim_terms::ClaimTerms;
pub use claims::KubeResourceClaims;
pub use leases::KubeLeases;
pub use preview::{ListError, PreviewedCluster};
pub use taint_terms::DeviceTaintTerms;
pub use taints::KubeDeviceTaints;
pub use watch_problems::WatchProblems;
