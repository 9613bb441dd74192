//! The engine and its adapters from outside.

#[cfg(feature = "agent")]
mod sources;
