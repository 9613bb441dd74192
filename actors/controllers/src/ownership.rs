//! Whether a claim belongs to a pod or group, whether it is reserved, and for which object it is to be reserved. Pure.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;

use super::names::{ClaimEntry, NameError};
use super::owners::{OwnerKind, SCHEDULING_GROUP, controller, group_claims, is_pod_group, object_key, pod_group_name};
use super::resource_claim::Features;
use crate::ports::resource_claims::ObjectKey;

/// The API server accepts at most this number of entries in `status.reservedFor`.
pub const MAX_CONSUMERS: usize = 256;

/// A claim belongs to another object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ResourceClaim {claim} was not created for {} {owner}{}", .kind.as_str(), .group.as_ref().map(|group| format!(" or its PodGroup {group}")).unwrap_or_default())]
pub struct NotOwned {
    /// The claim.
    pub claim: ObjectKey,
    /// The kind of the owner.
    pub kind: OwnerKind,
    /// The expected owner.
    pub owner: ObjectKey,
    /// The name of the pod's group, whose claims the pod may use too.
    pub group: Option<Box<str>>,
}

/// Checks that a generated claim belongs to a pod, or to the group of the pod.
///
/// # Errors
/// [`NotOwned`] if it belongs to another object, or to none.
pub(super) fn belongs_to_pod(claim: &ResourceClaim, pod: &Pod, features: Features) -> Result<(), NotOwned> {
    let group = pod_group_name(pod).filter(|_| features.pod_groups);
    let is_owned = claim.metadata.namespace == pod.metadata.namespace
        && controller(&claim.metadata).is_some_and(|owner| {
            pod.metadata.uid.as_ref() == Some(&owner.uid) || is_pod_group(owner) && group == Some(owner.name.as_str())
        });
    let fault = || NotOwned {
        claim: object_key(&claim.metadata),
        kind: OwnerKind::Pod,
        owner: object_key(&pod.metadata),
        group: group.map(Box::from),
    };
    if is_owned { Ok(()) } else { Err(fault()) }
}

/// Checks that a generated claim belongs to a group.
///
/// # Errors
/// [`NotOwned`] if it belongs to another object, or to none.
pub(super) fn belongs_to_group(claim: &ResourceClaim, group: &PodGroup) -> Result<(), NotOwned> {
    let is_owned = claim.metadata.namespace == group.metadata.namespace
        && controller(&claim.metadata).is_some_and(|owner| group.metadata.uid.as_ref() == Some(&owner.uid));
    let fault = || NotOwned {
        claim: object_key(&claim.metadata),
        kind: OwnerKind::PodGroup,
        owner: object_key(&group.metadata),
        group: None,
    };
    if is_owned { Ok(()) } else { Err(fault()) }
}

/// Whether a claim is reserved for a pod, or for the group of the pod.
pub(super) fn is_reserved_for_pod(claim: &ResourceClaim, pod: &Pod, features: Features) -> bool {
    let group = pod_group_name(pod).filter(|_| features.pod_groups);
    claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten()).any(|consumer| {
        pod.metadata.uid.as_ref() == Some(&consumer.uid)
            || consumer.api_group.as_deref() == Some(SCHEDULING_GROUP)
                && consumer.resource == "podgroups"
                && group == Some(consumer.name.as_str())
    })
}

/// Whether the server accepts a new consumer of a claim.
pub(super) fn is_reservable(claim: &ResourceClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none() && !is_full(claim)
}

pub(super) fn is_full(claim: &ResourceClaim) -> bool {
    let consumers = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
    consumers.is_some_and(|consumers| consumers.len() >= MAX_CONSUMERS)
}

pub(super) fn is_allocated(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.allocation.is_some())
}

/// The object that a claim is generated and reserved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindTarget {
    /// The pod.
    Pod,
    /// The group of the pod, which has the same claim.
    PodGroup,
}

/// Why it is not known for which object a claim is generated and reserved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindTargetError {
    /// The group of the pod is not known.
    #[error("PodGroup {0} of the pod was not found: create it")]
    GroupNotFound(ObjectKey),
    /// This is not the group of the pod.
    #[error("PodGroup {given} is not the group {expected} of the pod")]
    WrongGroup {
        /// The group of the pod.
        expected: ObjectKey,
        /// The other group.
        given: ObjectKey,
    },
    /// A claim of the pod or of its group has none of the known sources.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// The object that a claim of a pod is generated and reserved for.
///
/// # Errors
/// [`BindTargetError`]
pub(super) fn bind_target(
    pod: &Pod,
    group: Option<&PodGroup>,
    entry: &ClaimEntry,
    features: Features,
) -> Result<BindTarget, BindTargetError> {
    let supported = |entry: &ClaimEntry| {
        let is_supported = entry.claim.is_some() || entry.template.is_some();
        if is_supported { Ok(()) } else { Err(NameError::Unsupported(entry.name.clone())) }
    };
    supported(entry)?;
    let Some(name) = pod_group_name(pod).filter(|_| features.pod_groups) else { return Ok(BindTarget::Pod) };
    let expected = ObjectKey::new(pod.metadata.namespace.as_deref().unwrap_or_default(), name);
    let Some(group) = group else { return Err(BindTargetError::GroupNotFound(expected)) };
    let given = object_key(&group.metadata);
    if given != expected {
        return Err(BindTargetError::WrongGroup { expected, given });
    }
    let claims = group_claims(group);
    claims.iter().try_for_each(supported)?;
    Ok(if claims.contains(entry) { BindTarget::PodGroup } else { BindTarget::Pod })
}
