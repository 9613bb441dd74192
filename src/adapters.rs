//! The engine's ports, implemented on a real machine.

#[cfg(feature = "agent")]
pub mod manifest;
#[cfg(feature = "agent")]
pub mod network;
