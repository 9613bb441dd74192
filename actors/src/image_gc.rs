//! Image garbage collection: frees disk space by removing images that no container uses (upstream `image_gc_manager.go`,
//! kubelet 1.36).
//!
//! ```text
//!   every 5 min:  list ──> ImageLedger: first seen, last used ──> older than the maximum age: removed
//!                                                            └──> disk use at the high threshold or above:
//!                                                                 removed, least recently used first, down to the low one
//! ```
//!
//! An image is kept while it is used by a running or ended container, a sandbox, a start in progress, or the runtime itself. A
//! new image is kept for a minimum age, because a pod may be about to use it.

mod collector;
mod plan;
mod rounds;

pub(crate) use collector::ImageCollector;
pub use plan::{ImageGcPolicy, InvalidImageGcPolicy};
