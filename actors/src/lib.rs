//! The pod lifecycle engine.

mod active_pods;
pub mod admission;
pub(crate) mod codec;
pub mod config;
pub mod container_manager;
pub mod containers;
pub mod desired;
pub(crate) mod dispatcher;
pub mod engine;
pub mod explain;
pub mod final_statuses;
pub mod health;
pub mod housekeeping;
pub mod ids;
pub mod image_gc;
mod mailbox;
mod metered;
pub mod node;
pub mod observer;
pub mod pod;
pub(crate) mod pod_manager;
pub mod pod_worker;
pub mod ports;
pub mod probes;
pub mod recorder;
pub mod replay;
pub mod shutdown;
pub mod status;
pub mod statuses;
pub(crate) mod sync;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;
pub mod time;
