//! Which claims a pod needs, and whether it may use them.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::record::{AllocatedDevice, NeededClaim};
use crate::ids::ClaimName;
use crate::pod::PodObject;

/// Which optional behaviour applies to claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimFeatures {
    /// Extended resources may be backed by claims (upstream `DRAExtendedResource`, on in Kubernetes 1.36).
    pub extended_resources: bool,
    /// Claims may belong to pod groups (upstream `DRAWorkloadResourceClaims`, off in Kubernetes 1.36).
    pub pod_groups: bool,
    /// Container statuses show the health of devices (upstream `ResourceHealthStatus`, on in Kubernetes 1.36).
    pub health: bool,
    /// Container statuses also show the drivers' messages about the health of devices (upstream `ResourceHealthStatusMessage`, on
    /// in Kubernetes 1.36).
    pub health_message: bool,
}

impl Default for ClaimFeatures {
    fn default() -> Self {
        ClaimFeatures { extended_resources: true, pod_groups: false, health: true, health_message: true }
    }
}

/// A claim that a pod names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodClaim {
    pub(crate) name: ClaimName,
    /// Whether the claim was generated for the pod, and must be owned by it.
    pub(crate) is_generated: bool,
}

/// Why a pod cannot use its claims. The text names the claim, but never the pod or its namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimRefused {
    /// The control plane has not generated the claim.
    #[error(
        "the ResourceClaim of the pod claim {0:?} was not created yet: check that the resource claim controller runs"
    )]
    NotCreated(String),
    /// The pod claim has none of the known sources.
    #[error("the pod claim {0:?} has unsupported fields: it needs resourceClaimName or resourceClaimTemplateName")]
    Unsupported(String),
    /// A claim of the name exists, and belongs to another owner.
    #[error(
        "ResourceClaim {} was not created for the pod: delete the claim, or remove its name from the status of the pod",
        .0.name()
    )]
    NotOwned(ClaimName),
    /// The claim is not reserved for the pod.
    #[error(
        "the pod is not allowed to use ResourceClaim {}: the claim is not reserved for it, check which pods its \
         status.reservedFor names",
        .0.name()
    )]
    NotReserved(ClaimName),
    /// No devices are allocated to the claim.
    #[error("ResourceClaim {} has no allocated devices: check that the scheduler allocates devices for the pod", .0.name())]
    NotAllocated(ClaimName),
}

impl ClaimRefused {
    /// The claim, if it is known.
    pub(super) fn claim(&self) -> Option<&ClaimName> {
        match self {
            ClaimRefused::NotOwned(claim) | ClaimRefused::NotReserved(claim) | ClaimRefused::NotAllocated(claim) => {
                Some(claim)
            }
            ClaimRefused::NotCreated(_) | ClaimRefused::Unsupported(_) => None,
        }
    }
}

/// The claim that an entry of the pod names (upstream `resourceclaim.Name`, Kubernetes 1.36). `None` if the entry needs none.
fn named(
    pod: &PodObject,
    entry: &k8s_openapi::api::core::v1::PodResourceClaim,
) -> Result<Option<PodClaim>, ClaimRefused> {
    let claim =
        |name: &str, is_generated| PodClaim { name: ClaimName::new(pod.full_name().namespace(), name), is_generated };
    if let Some(name) = &entry.resource_claim_name {
        return Ok(Some(claim(name, false)));
    }
    if entry.resource_claim_template_name.is_none() {
        return Err(ClaimRefused::Unsupported(entry.name.clone()));
    }
    let statuses = pod.status().and_then(|status| status.resource_claim_statuses.as_ref());
    match statuses.into_iter().flatten().find(|status| status.name == entry.name) {
        None => Err(ClaimRefused::NotCreated(entry.name.clone())),
        Some(status) => Ok(status.resource_claim_name.as_deref().map(|name| claim(name, true))),
    }
}

/// The claim that the entry `entry` of the pod's `spec.resourceClaims` names.
pub(crate) fn claim_of_entry(pod: &PodObject, entry: &str) -> Result<Option<ClaimName>, ClaimRefused> {
    let entries = pod.spec().resource_claims.as_deref().unwrap_or_default();
    let Some(entry) = entries.iter().find(|claim| claim.name == entry) else { return Ok(None) };
    Ok(named(pod, entry)?.map(|claim| claim.name))
}

/// The claim that backs the extended resources of the pod.
pub(crate) fn extended_claim(pod: &PodObject, features: ClaimFeatures) -> Option<ClaimName> {
    let status = pod.status()?.extended_resource_claim_status.as_ref().filter(|_| features.extended_resources)?;
    Some(ClaimName::new(pod.full_name().namespace(), &status.resource_claim_name))
}

/// All claims of a pod, each once, also those that no container uses.
///
/// # Errors
/// [`ClaimRefused::NotCreated`] and [`ClaimRefused::Unsupported`].
pub(crate) fn pod_claims(pod: &PodObject, features: ClaimFeatures) -> Result<Vec<PodClaim>, ClaimRefused> {
    let mut claims: Vec<PodClaim> = Vec::new();
    let mut push = |claim: PodClaim| match claims.iter_mut().find(|known| known.name == claim.name) {
        Some(known) => known.is_generated |= claim.is_generated,
        None => claims.push(claim),
    };
    for entry in pod.spec().resource_claims.as_deref().unwrap_or_default() {
        if let Some(claim) = named(pod, entry)? {
            push(claim);
        }
    }
    if let Some(name) = extended_claim(pod, features) {
        push(PodClaim { name, is_generated: false });
    }
    Ok(claims)
}

/// Whether the pod may use a claim now.
///
/// # Errors
/// [`ClaimRefused::NotOwned`], [`ClaimRefused::NotReserved`] and [`ClaimRefused::NotAllocated`], checked in this order.
pub(crate) fn check(
    pod: &PodObject,
    claim: &PodClaim,
    object: &ResourceClaim,
    features: ClaimFeatures,
) -> Result<NeededClaim, ClaimRefused> {
    let name = || claim.name.clone();
    if claim.is_generated && !is_owned(pod, object, features) {
        return Err(ClaimRefused::NotOwned(name()));
    }
    if !is_reserved(pod, object, features) {
        return Err(ClaimRefused::NotReserved(name()));
    }
    let allocation = object.status.as_ref().and_then(|status| status.allocation.as_ref());
    let allocation = allocation.ok_or_else(|| ClaimRefused::NotAllocated(name()))?;
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    let results: BTreeSet<_> = results
        .map(|result| AllocatedDevice {
            driver: result.driver.as_str().into(),
            pool: result.pool.clone(),
            device: result.device.clone(),
            share_id: result.share_id.clone(),
        })
        .collect();
    let drivers = results.iter().map(|result| result.driver.clone()).collect();
    let uid = object.metadata.uid.as_deref().unwrap_or_default().into();
    Ok(NeededClaim { name: name(), uid, drivers, results })
}

fn is_owned(pod: &PodObject, object: &ResourceClaim, features: ClaimFeatures) -> bool {
    let uid = pod.uid().to_string();
    let is_owner = |owner: &OwnerReference| {
        owner.controller == Some(true)
            && (owner.uid == uid
                || features.pod_groups
                    && owner.kind == "PodGroup"
                    && owner.api_version.starts_with("scheduling.k8s.io/")
                    && Some(owner.name.as_str()) == pod_group(pod))
    };
    object.metadata.namespace.as_deref() == Some(pod.full_name().namespace())
        && object.metadata.owner_references.iter().flatten().any(is_owner)
}

fn is_reserved(pod: &PodObject, object: &ResourceClaim, features: ClaimFeatures) -> bool {
    let uid = pod.uid().to_string();
    let consumers = object.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    consumers.into_iter().any(|consumer| {
        consumer.uid == uid
            || features.pod_groups
                && consumer.api_group.as_deref() == Some("scheduling.k8s.io")
                && consumer.resource == "podgroups"
                && Some(consumer.name.as_str()) == pod_group(pod)
    })
}

/// The name of the pod's group.
fn pod_group(pod: &PodObject) -> Option<&str> {
    pod.spec().scheduling_group.as_ref()?.pod_group_name.as_deref()
}
