//! What to do with a pod's containers: pure decisions over a pod, what the runtime knows of it and what its probes say;
//! and the room that carries them out over the ports.

pub mod activity;
pub mod backoff;
pub mod definition;
pub mod env;
#[cfg(test)]
mod fixtures;
pub mod governor;
pub mod image_backoff;
pub mod perform;
pub mod plan;
pub mod restart;
pub mod start_counter;
pub mod start_error;
pub mod stop;

pub use perform::{ContainerManager, ContainerPorts, SyncContainersResult, SyncWork};
pub use plan::{Plan, plan};
pub use start_error::{StartError, StartErrors};
