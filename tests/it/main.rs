//! The engine and its adapters from outside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[cfg(all(feature = "agent", feature = "process"))]
mod agent;
#[cfg(all(feature = "agent", feature = "controllers", feature = "process"))]
mod controllers;
#[cfg(all(feature = "agent", feature = "cri", feature = "process"))]
mod cri;
#[cfg(any(feature = "dra", feature = "dra-driver"))]
mod dra;
mod examples;
#[cfg(feature = "agent")]
mod network;
mod node;
#[cfg(feature = "process")]
mod process_runtime;
mod recordings;
#[cfg(feature = "simulated")]
mod simulated;
#[cfg(feature = "agent")]
mod sources;
mod support;
