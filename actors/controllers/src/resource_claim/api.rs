//! Names of the API, and the calls of the port.

pub(super) use super::super::owners::SCHEDULING_GROUP;
pub use crate::ports::resource_claims::{
    Answer, ApiError, ApiErrorKind, COMPONENT, EVENT_REASON, FIELD_MANAGER, OwnerWarning, POD_GROUP_API_VERSION,
    Request, StatusApply, StatusEntry,
};
pub(super) use crate::ports::resource_claims::{CLAIM_FINALIZER, ClaimChange, ClaimEdit};

/// The name of the controller in logs and leases.
pub const CONTROLLER_NAME: &str = "resourceclaim-controller";
/// The name of the work queue in metrics.
pub const QUEUE_NAME: &str = "resource_claim";

/// On a generated claim: the name of the claim in the spec of its pod or group.
pub(super) const POD_CLAIM_NAME_ANNOTATION: &str = "resource.kubernetes.io/pod-claim-name";
/// On a claim of the scheduler for the extended resources of a pod: `true`.
pub(super) const EXTENDED_RESOURCE_ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";
