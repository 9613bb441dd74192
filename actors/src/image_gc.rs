//! Making room among the images of a node (upstream `image_gc_manager.go`, kubelet 1.36).
//!
//! ```text
//!   every 5 min:  list ──> Ledger: first seen, last used ──> too old:  removed
//!                                                       └──> disk at the high threshold or above:
//!                                                            removed, least recently used first, down to the low one
//! ```
//!
//! What is needed stays: by a container that exists, ended or not, by a sandbox, by a start that is under way, or by the
//! runtime itself. What is new stays too, for it may be about to be used.

mod actor;
mod collector;
mod plan;

pub use actor::{ImageGcActor, PERIOD};
pub use collector::{CollectError, ImageCollector};
pub use plan::{BadPolicy, ImageGcPolicy};
