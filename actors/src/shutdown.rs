//! Graceful node shutdown: stops all pods in groups by priority, one group after the other, each within its time.
//!
//! ```text
//!   NodeHandle::stop_pods(config) ---> plan: the pods in groups, lowest priority first
//!                                        |
//!                                        v
//!   begin ---> stopping a group ---> cleaning up its volumes ---> the next group ... ---> ended
//!                    |                      |                          ^
//!                    +--- the group's time ends ----------------------+
//!
//!   NodeHandle::resume() ---> the groups after the current one are left running, and pods are admitted again
//! ```
//!
//! `plan` and `step` decide. `perform` carries their decisions out, and `times` keeps the begin and the end in a file.

mod config;
mod gate;
mod perform;
mod plan;
mod progress;
mod step;
#[cfg(test)]
mod tests;
mod times;

pub use config::ShutdownConfig;
pub(crate) use gate::ShutdownGate;
pub(crate) use perform::{ShutdownParts, stop_all};
pub(crate) use plan::{groups, pods};
pub use progress::{ShutdownProgress, StopTurn};
pub(crate) use times::ShutdownTimes;
