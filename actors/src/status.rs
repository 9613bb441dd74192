//! What a pod's status says, computed from what runs; and the one place where it is kept until the API server has it.
//!
//! Everything here is pure: the runtime's answer, the probes, the last status and the time come in, a `v1.PodStatus`
//! goes out.
//!
//! ```text
//!  runtime ──┐
//!  probes  ──┼─► compute ─► (status function) ─► StatusCache::set ─► merge_for_api ─► API server
//!  errors  ──┘      ▲                                  │   ▲
//!                   └────────── previous ◄─────────────┘   └── set_ready, set_started, set_sandbox_ready, terminate
//! ```
//!
//! - [`compute`] builds the status. A terminal phase may appear in it while containers still run (a deadline passed):
//!   conditions tell the truth early, and [`merge_for_api`] holds the phase back until nothing runs any more.
//! - Whoever kills a pod may edit the computed status (a [`StatusFn`](crate::ports::StatusFn)): compute first, apply the
//!   function, then [`StatusCache::set`]. From then on the terminal phase, its reason and its message stick.
//! - [`StatusCache`] refuses what cannot be, keeps start and transition times, and counts versions, so that a writer
//!   sends only what changed. Each edit is one step on the kept status: nobody reads, edits and writes back.
//! - [`terminate_pod`] gives every container of a finished pod an end.

mod cache;
mod compute;
mod conditions;
mod containers;
mod deadline;
mod lost;
mod merge;
mod normalize;
mod phase;
mod quantity;
mod reasons;
mod resources;
mod summary;
mod terminate;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

pub use cache::{Change, IllegalRestart, SetOutcome, StatusCache, TerminatedContainer};
pub use compute::{NodeFacts, StatusInput, compute, rejected};
pub use conditions::{is_ready, set_condition};
pub use deadline::{Exceeded, deadline, deadline_exceeded};
pub use merge::merge_for_api;
pub use normalize::{normalize, same_for_node};
pub use phase::phase;
pub use reasons::DEADLINE_EXCEEDED;
pub use resources::{PodBounds, pod_bounds, qos_class, resources_of_containers, resources_without_overhead};
pub use summary::{PodSummary, short_age};
pub use terminate::terminate_pod;
