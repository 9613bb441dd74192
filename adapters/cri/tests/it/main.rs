//! The adapter with a real containerd, which the tests start themselves. No agent runs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod creation;
mod devices;
mod networks;
mod usage;
