//! What to do with a pod's containers: pure decisions over a pod, what the runtime knows of it and what its probes say.

pub mod restart;
pub mod start_error;

pub use start_error::{StartError, StartErrors};
