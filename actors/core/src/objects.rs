//! The data that the pods of an API server take from other API objects: the objects that a pod refers to, the files of volumes, the
//! variables of services, and the renewal of tokens and trust bundles. Pure.

mod projection;
mod references;
mod renewal;
mod services;

pub use projection::{ProjectionError, VolumeNeeds, VolumeObjects, downward_files, files, needs};
pub(crate) use references::of_variables;
pub use references::{ObjectRef, references};
pub use renewal::{Failures, MAX_JITTER, ReadPlan, RenewalTimes};
pub(crate) use services::service_variables;
