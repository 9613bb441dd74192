//! In-place resize: changes the resources of containers that run (KEP-1287, and KEP-5419 for the resources of a whole pod).
//! Pure.
//!
//! A pod has resources in three states:
//!
//! ```text
//!   desired  --- decide: the node has room -->  allocated  --- changes: the runtime applies them -->  actuated
//!   spec of the API server                      spec of the desired pods and of the engine            containers and pod cgroup
//! ```
//!
//! All other parts of the node see the allocated resources only: a pod enters the desired pods with its allocation. A desired
//! resize that the node has no room for waits ([`PodResize::pending`]). An allocated resize is in progress
//! ([`PodResize::progress`]) until its containers and its cgroup have the new resources.
//!
//! A sync that applies a resize records each call before it makes it, and makes a call only while its allocation is the newest one
//! ([`PodResize::begin`]). If the agent is killed during a call, the record has the values from before and after the call ([`Actual`]),
//! and the next agent makes the call again.
//!
//! A container whose resize policy requires a restart is stopped, and starts again with the allocated resources. A record of the stop is
//! on disk before the stop, because the exit code of the run says nothing about its work
//! ([`STOPPED_FOR_RESIZE`](crate::containers::restart::STOPPED_FOR_RESIZE)).
//!
//! The store `Resizes` keeps the state and writes it to disk.

mod actuated;
mod allocation;
mod changes;
mod decide;
mod range;
mod state;
mod steps;
#[cfg(test)]
mod tests;

pub use actuated::{Actual, Actuated, Superseded};
pub use allocation::{Allocation, Bounds, has_resources, with_resources_of};
pub use changes::{ResizeChanges, decreased_limits};
pub use decide::{Verdict, decide, order, requested};
pub use state::{PendingResize, PodResize};
pub use steps::Step;
