//! What does the I/O: each module implements ports of the engine.

#[cfg(feature = "agent")]
pub mod network;
