//! What to do with a pod's containers: pure decisions over a pod, what the runtime knows of it and what its probes say;
//! and the room that carries them out over the ports.

pub mod backoff;
pub mod definition;
pub mod env;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod image_backoff;
pub mod plan;
pub mod restart;
pub mod start_error;
pub mod stop;

pub use plan::{Plan, plan};
pub use start_error::{StartError, StartErrors};
