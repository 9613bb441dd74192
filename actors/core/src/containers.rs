//! Pure decisions about a pod's containers, from the pod, its runtime status and its probe results. The container
//! manager carries them out.

pub mod backoff;
pub mod definition;
pub mod env;
pub mod image_backoff;
pub mod plan;
pub mod restart;
pub(crate) mod start_error;
pub mod stop;

pub use start_error::StartError;
