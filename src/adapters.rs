//! The rim: what implements the engine's ports with real I/O, each behind the cargo feature of its name.

#[cfg(feature = "agent")]
pub mod manifest;
#[cfg(feature = "agent")]
pub mod sources;
#[cfg(any(feature = "agent", feature = "process"))]
pub mod storage;
