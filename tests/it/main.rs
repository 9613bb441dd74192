//! The engine and its adapters from outside.

#![allow(clippy::unwrap_used, reason = "a test that unwraps an error fails, as it should")]

#[cfg(feature = "agent")]
mod network;
