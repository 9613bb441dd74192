//! Pure decisions about a pod's containers, from the pod, its runtime status and its probe results. The container
//! manager carries them out.

pub(crate) mod backoff;
pub(crate) mod definition;
pub mod env;
pub(crate) mod image_backoff;
pub(crate) mod plan;
pub mod restart;
pub(crate) mod start_error;
pub mod stop;

pub(crate) use plan::{Plan, plan};
pub(crate) use start_error::StartError;
