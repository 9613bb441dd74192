//! The engine and its adapters from outside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[cfg(all(feature = "agent", feature = "process"))]
mod agent;
mod churn;
#[cfg(feature = "agent")]
mod network;
mod node;
#[cfg(feature = "process")]
mod process_runtime;
#[cfg(feature = "simulated")]
mod simulated;
#[cfg(feature = "simulated")]
mod simulation;
#[cfg(feature = "agent")]
mod sources;
mod support;
mod tidy;
