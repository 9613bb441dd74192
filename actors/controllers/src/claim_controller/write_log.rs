//! Logs the writes of the controller. The span of the pass names its object.

use super::super::resource_claim::ClaimWrite;

/// Logs a write. The names in the status of a pod follow from the creation of its claims, so their line has the level DEBUG.
pub(super) fn log(write: &ClaimWrite) {
    match write {
        ClaimWrite::Created { claim, entry } => tracing::info!(%claim, entry, "created a ResourceClaim"),
        ClaimWrite::Recorded { names } => tracing::debug!(names, "wrote the names of ResourceClaims to the status"),
        ClaimWrite::Reserved { claim, consumer } => tracing::info!(%claim, consumer, "reserved the ResourceClaim"),
        ClaimWrite::Released { claim, consumers, deallocated } => {
            tracing::info!(%claim, consumers, deallocated, "removed ended consumers of the ResourceClaim");
        }
        ClaimWrite::FinalizerRemoved { claim } => tracing::info!(%claim, "removed the finalizer of the ResourceClaim"),
        ClaimWrite::Deleted { claim, uid, pod } => {
            tracing::info!(%claim, uid, pod, "deleted the ResourceClaim of a pod that has ended");
        }
    }
}
