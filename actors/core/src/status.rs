//! Computes a pod's status, and keeps it until the API server has it. Pure: the runtime's status,
//! the probe results, the last status and the time come in; a `v1.PodStatus` comes out.
//!
//! ```text
//!  runtime ──┐
//!  probes  ──┼─► compute ─► (status function) ─► StatusCache::set ─► merge_for_api ─► API server
//!  errors  ──┘      ▲                                  │   ▲
//!                   └────────── previous ◄─────────────┘   └── set_ready, set_started, set_sandbox_ready, terminate
//! ```
//!
//! - `compute` builds the status. Its phase may be terminal while containers still run, for example after a deadline.
//!   The conditions change at once; [`merge_for_api`] holds the phase back until no container runs.
//! - The caller of a kill may edit the computed status with a [`StatusFn`](crate::ports::StatusFn): compute first,
//!   apply the function, then [`StatusCache::set`]. From then on the terminal phase, its reason and its message stay.
//! - [`StatusCache`] refuses impossible statuses, keeps start and transition times, and numbers the versions, so that a
//!   writer sends only changes. Each edit of a kept status is one step.
//! - `terminate_pod` gives every container of a finished pod a terminated state.

mod cache;
mod compute;
mod conditions;
mod containers;
mod exits;
mod merge;
mod normalize;
mod phase;
pub mod reasons;
mod settings;
mod summary;
mod terminate;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

pub use cache::{SetOutcome, StatusCache, StatusChange, StatusToWrite};
pub use compute::{NodeFacts, StatusInput, compute, deadline, rejected};
pub use conditions::{is_ready, set_disruption_target};
pub use exits::{IllegalRestart, TerminatedContainer};
pub use merge::merge_for_api;
pub use normalize::{normalize, same_for_node};
pub use phase::phase;
pub use settings::wants_recursive_read_only;
pub use summary::{PodSummary, short_age};
pub(crate) use terminate::terminate_pod;
