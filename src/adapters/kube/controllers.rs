//! The ResourceClaim controller on an API server: its watches, its calls and events, its lease, and its terms as the leader.

mod calls;
mod claims;
mod leases;
mod terms;
mod watches;

pub use claims::KubeResourceClaims;
pub use leases::KubeLeases;
pub use terms::ClaimTerms;
pub use watches::WatchProblems;
