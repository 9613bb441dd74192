//! The pod lifecycle engine.

pub mod containers;
pub mod ids;
pub mod pod;
pub mod ports;
pub mod probes;
pub mod status;
pub mod time;
