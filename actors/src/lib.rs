//! The pod lifecycle engine.

pub mod config;
pub mod containers;
pub mod ids;
pub mod pod;
pub mod ports;
pub mod probes;
pub mod time;
