//! Image garbage collection: frees disk space by removing images that no container uses (upstream `image_gc_manager.go`,
//! kubelet 1.36).
//!
//! ```text
//!   every 5 min:  list ──> ImageLedger: first seen, last used ──> older than the maximum age: removed
//!                                                            └──> disk use at the high threshold or above:
//!                                                                 removed, least recently used first, down to the low one
//! ```
//!
//! An image stays while a container, running or ended, a sandbox, a start that is under way, or the runtime itself uses it. A
//! new image stays for a minimum age, because a pod may be about to use it.

mod actor;
mod collector;
mod messages;
mod plan;

pub(crate) use actor::ImageGcActor;
pub(crate) use collector::ImageCollector;
pub use plan::{ImageGcPolicy, InvalidImageGcPolicy};
