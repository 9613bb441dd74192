//! The pod worker: the one actor that owns one pod UID's lifecycle on this node.
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
//!         first seen in a terminal phase, nothing running
//! ```
//!
//! [`Record`] holds the state of one pod, [`step`](step::step) moves it, the [`Engine`](crate::engine::Engine) keeps the
//! records and lets anyone ask them, and the actor performs what a step asks for: it calls the hooks of the
//! [`PodSyncer`](crate::ports::PodSyncer), one after another, and feeds their outcomes back. The actors of one thread get
//! their turns from its scheduler. A burst of updates costs one turn and keeps the newest. What an actor knows is in its record,
//! so an actor that is lost is replaced from it.
//!
//! Nothing here stores an opinion of another component: whether containers of a UID may be started is known by its
//! record alone, and everyone else asks by UID.

pub(crate) mod lifecycle;
pub(crate) mod published;
pub(crate) mod state;
pub mod static_names;
pub mod step;
pub(crate) mod update;
mod wait;

pub use lifecycle::{Cause, Failure, Hook, KnownPod, Lifecycle, Transition};
pub use state::Record;
pub use update::{Completed, KillOptions, Notifier, Update, UpdateKind};
pub use wait::{Wait, WaitFor};

#[cfg(test)]
mod tests;
