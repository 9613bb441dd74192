//! The rim: what implements the engine's ports with real I/O, each behind a cargo feature.

#[cfg(feature = "cri")]
pub mod cri;
#[cfg(feature = "agent")]
pub mod manifest;
#[cfg(feature = "agent")]
pub mod network;
#[cfg(feature = "process")]
pub mod process;
#[cfg(feature = "simulated")]
pub mod simulated;
#[cfg(feature = "agent")]
pub mod sources;
#[cfg(any(feature = "agent", feature = "process"))]
pub mod storage;
#[cfg(any(feature = "agent", feature = "process"))]
mod tree;
