//! The pod lifecycle engine.

pub mod admission;
pub mod config;
pub mod containers;
pub mod engine;
pub mod ids;
pub mod pod;
pub mod pod_manager;
pub mod pod_worker;
pub mod ports;
pub mod probes;
#[cfg(test)]
pub(crate) mod testing;
pub mod time;
