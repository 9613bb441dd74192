//! The plugins of a node over real sockets, with drivers that do what a test sets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod node_slices;
mod plugins;
