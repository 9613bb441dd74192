//! The pure core of the pod worker: the state of one pod UID on this node, and the step from one state to the next.
//!
//! ```text
//!            update               take                    kill, delete,          terminate          cleanup
//!                                                         orphan, end            hook ok            hook ok
//!   (none) ---------> waiting -----------------> sync ----------------> terminating -----> terminated -----> finished
//!      |                 |   a static pod until                            ^    |              ^                |
//!      |                 |   its full name is free                         |    |              |                | dropped by
//!      |                 +-------------------------------------------------+    |              |                | sync_known_pods
//!      |                   stop requested before the start                      |              |                v
//!      |                                                                        | runtime-only |             (none)
//!      |                                                                        +--> (none)    |
//!      +---------------------------------------------------------------------------------------+
//!         first update with a terminal phase, nothing running
//! ```
//!
//! A [`Record`](state::Record) is the state of one pod. [`step`](step::step) changes it and returns the effects that have to happen outside.
//! The engine owns the records, answers queries from them, and applies the effects: its workers call the hooks of the
//! [`PodSyncer`](crate::ports::PodSyncer), one call per pod at a time, and pass each outcome to `step`. Several updates that
//! arrive during a hook call are merged into one, and the newest one wins. A worker has no state outside of its record, so the
//! engine can replace a lost worker.
//!
//! Only the record decides whether containers of a UID may be started. Other components query it by UID and keep no copy.

mod lifecycle;
pub mod published;
pub mod state;
pub mod static_names;
pub mod step;
mod update;
mod wait;

pub use lifecycle::{Cause, Failure, History, Hook, KnownPod, Lifecycle, Transition};
pub use update::{Completed, Config, KillOptions, Notifier, StatusEditor, Target, Update, UpdateKind};
pub use wait::{Wait, WaitFor};

#[cfg(test)]
mod tests;
