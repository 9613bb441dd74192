//! A real containerd for the tests and benches of several crates, which start it and share it.
//!
//! ```no_run
//! use podwright_containerd::Containerd;
//!
//! # async fn test() {
//! // A machine without containerd skips the test.
//! let Some(containerd) = Containerd::turn().await else { return };
//! let root = std::env::temp_dir();
//! let runtime = containerd.open(&root);
//! runtime.check().await.expect("containerd answers");
//! # }
//! ```
//!
//! # Parts
//!
//! - [`Containerd`] is a containerd without pods, for one test.
//! - [`Instance`] is the program and its files: it starts, stops and crashes. A bench, which has no test to skip, uses it alone.
//! - [`image`] builds images from the busybox of this machine.
//! - [`calls`] are calls to the runtime for any pod.
//!
//! # Arrows
//!
//! The crate uses `podwright-cri`, whose client a test gets, and `podwright-fixtures`. Only tests and benches use the crate. So the tests of
//! `podwright-cri` depend on a crate that depends on `podwright-cri`, which cargo permits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

pub mod calls;
mod containerd;
pub mod image;
mod instance;

pub use containerd::{Containerd, until_logged};
pub use instance::Instance;
