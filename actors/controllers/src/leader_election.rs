//! Elects one leader among the replicas of a controller, with a lease of `coordination.k8s.io/v1` and the rules of client-go 1.36.
//!
//! ```text
//!              Taken: the lease is free, or was not renewed while this replica observed it for its whole duration
//!             .--------------------------------------------------------.
//!             |                                                        v
//!         Following                                                 Leading -- renewed --> Leading, 10 s from the request
//!             ^                                                        |
//!             `--------------------------------------------------------'-- stop --> Releasing --> the lease has no holder
//!              no renewal in 10 s, or another replica holds the lease
//! ```
//!
//! [`Candidate`] decides, and [`Elector`] performs its calls. Each leadership is a term with a number, so that an observer notices a
//! lease that was lost and taken again at once. Each call asks [`LeaseGuard`] whether this replica still holds the lease.
//!
//! What always holds, as long as the monotonic clocks of the replicas run at nearly the same rate:
//! - At most one replica leads by its own clock. A leader counts the renew deadline from the moment at which it sent the last successful
//!   renewal. Another replica counts the longer lease duration from the moment at which it read that renewal.
//! - The times in the lease are for readers only. A wrong wall clock changes nothing.
//! - Each write requires the resource version that was read.
//!
//! What the election cannot prevent:
//! - A call that a leader sent before it lost the lease may reach the API server later. So the writes of a controller have preconditions
//!   of their own.
//! - A replica whose machine was suspended may lead for the rest of its deadline, because its monotonic clock was suspended too.
//! - If a user deletes the lease or clears its holder, the leader notices that only at its next renewal.

mod candidate;
mod elector;
mod guard;
mod record;
#[cfg(test)]
mod tests;

pub use candidate::{Call, CallFailure, Candidate, Event, Moment, Next};
pub use elector::{Elector, Leadership};
pub use guard::LeaseGuard;
pub use record::{LeaseName, Timing};
