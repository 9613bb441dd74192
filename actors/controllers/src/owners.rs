//! Pods and pod groups as the users of claims. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use podwright_model::resource_version::ResourceVersion;

use super::names::ClaimEntry;
use super::resource_claim::Key;
pub use crate::ports::resource_claims::OwnerKind;
pub(super) use crate::ports::resource_claims::controller;
use crate::ports::resource_claims::{ObjectKey, StatusEntry};

/// The API group of pod groups.
pub(super) const SCHEDULING_GROUP: &str = "scheduling.k8s.io";

/// Which object controls a claim: the key of the index of claims.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId {
    /// The kind.
    pub kind: OwnerKind,
    /// The namespace.
    pub namespace: String,
    /// The UID.
    pub uid: String,
}

impl OwnerId {
    /// The pod or group that controls a claim.
    pub(super) fn of_claim(claim: &ObjectMeta) -> Option<Self> {
        let owner = controller(claim)?;
        let kind = if owner.kind == "Pod" && owner.api_version == "v1" {
            OwnerKind::Pod
        } else if is_pod_group(owner) {
            OwnerKind::PodGroup
        } else {
            return None;
        };
        let namespace = claim.namespace.clone().unwrap_or_default();
        Some(OwnerId { kind, namespace, uid: owner.uid.clone() })
    }
}

/// The item of the queue that works on the pod or group that controls a claim.
pub(super) fn owner_key(claim: &ObjectMeta) -> Option<Key> {
    let id = OwnerId::of_claim(claim)?;
    Some(Key::of_owner(id.kind, ObjectKey::new(&id.namespace, &controller(claim)?.name)))
}

/// Whether a reference names a pod group, of any version of its API.
pub(super) fn is_pod_group(owner: &OwnerReference) -> bool {
    owner.kind == "PodGroup" && owner.api_version.split('/').next() == Some(SCHEDULING_GROUP)
}

/// What may be done for the claims of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AllowedWork {
    /// They are generated, recorded and reserved.
    All,
    /// Only the names of the claims that exist are recorded. The pod is being deleted on a node, and a kubelet cannot release claims whose
    /// names another client has erased from the status (kubernetes #139772).
    Record,
    Nothing,
}

/// A pod or pod group that uses claims.
#[derive(Clone, Debug)]
pub enum Owner {
    /// A pod.
    Pod(Arc<Pod>),
    /// A pod group.
    PodGroup(Arc<PodGroup>),
}

impl Owner {
    /// The kind.
    pub fn kind(&self) -> OwnerKind {
        match self {
            Owner::Pod(_) => OwnerKind::Pod,
            Owner::PodGroup(_) => OwnerKind::PodGroup,
        }
    }

    /// The namespace and name.
    pub fn key(&self) -> ObjectKey {
        object_key(self.metadata())
    }

    /// The UID.
    pub fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }

    /// The version of the object in the API server, if it is known.
    pub(super) fn resource_version(&self) -> Option<ResourceVersion> {
        ResourceVersion::of(self.metadata())
    }

    pub(super) fn id(&self) -> OwnerId {
        OwnerId { kind: self.kind(), namespace: self.key().namespace, uid: self.uid().to_owned() }
    }

    /// The item of the queue that works on this object.
    pub(super) fn work_key(&self) -> Key {
        Key::of_owner(self.kind(), self.key())
    }

    fn metadata(&self) -> &ObjectMeta {
        match self {
            Owner::Pod(pod) => &pod.metadata,
            Owner::PodGroup(group) => &group.metadata,
        }
    }

    /// What may still be done for the claims of the object.
    pub(super) fn allowed_work(&self) -> AllowedWork {
        match self {
            Owner::Pod(pod) if is_terminal(pod) => AllowedWork::Nothing,
            owner if owner.metadata().deletion_timestamp.is_none() => AllowedWork::All,
            Owner::Pod(pod) if node_name(pod).is_some() => AllowedWork::Record,
            Owner::Pod(_) | Owner::PodGroup(_) => AllowedWork::Nothing,
        }
    }

    /// The claims of the spec.
    pub(super) fn claims(&self) -> Vec<ClaimEntry> {
        match self {
            Owner::Pod(pod) => pod_claims(pod),
            Owner::PodGroup(group) => group_claims(group),
        }
    }

    /// The entries of the status.
    pub(super) fn statuses(&self) -> Vec<StatusEntry> {
        match self {
            Owner::Pod(pod) => {
                let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
                let entry =
                    statuses.map(|s| StatusEntry { name: s.name.clone(), claim: s.resource_claim_name.clone() });
                entry.collect()
            }
            Owner::PodGroup(group) => {
                let statuses = group.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
                let entry =
                    statuses.map(|s| StatusEntry { name: s.name.clone(), claim: s.resource_claim_name.clone() });
                entry.collect()
            }
        }
    }

    /// The reference of a generated claim to this object.
    pub(super) fn owner_reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: self.kind().api_version().to_owned(),
            kind: self.kind().as_str().to_owned(),
            name: self.key().name,
            uid: self.uid().to_owned(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }

    /// The entry of `status.reservedFor` for this object.
    pub(super) fn consumer(&self) -> ResourceClaimConsumerReference {
        let (api_group, resource) = match self {
            Owner::Pod(_) => (None, "pods"),
            Owner::PodGroup(_) => (Some(SCHEDULING_GROUP.to_owned()), "podgroups"),
        };
        ResourceClaimConsumerReference {
            api_group,
            resource: resource.to_owned(),
            name: self.key().name,
            uid: self.uid().to_owned(),
        }
    }
}

/// The key of an object.
pub(super) fn object_key(metadata: &ObjectMeta) -> ObjectKey {
    ObjectKey::new(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

pub(super) fn pod_claims(pod: &Pod) -> Vec<ClaimEntry> {
    let claims = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let entry = claims.map(|claim| ClaimEntry {
        name: claim.name.clone(),
        claim: claim.resource_claim_name.clone(),
        template: claim.resource_claim_template_name.clone(),
    });
    entry.collect()
}

pub(super) fn group_claims(group: &PodGroup) -> Vec<ClaimEntry> {
    let entry = group.spec.resource_claims.iter().flatten().map(|claim| ClaimEntry {
        name: claim.name.clone(),
        claim: claim.resource_claim_name.clone(),
        template: claim.resource_claim_template_name.clone(),
    });
    entry.collect()
}

/// The claim of the scheduler for the extended resources of a pod.
pub(super) fn extended_claim(pod: &Pod) -> Option<&str> {
    Some(&pod.status.as_ref()?.extended_resource_claim_status.as_ref()?.resource_claim_name)
}

/// The name of the pod's group.
pub(super) fn pod_group_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.scheduling_group.as_ref()?.pod_group_name.as_deref()
}

/// The name of the pod's node.
pub(super) fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// Whether the phase of the pod is Succeeded or Failed.
pub(super) fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether the pod no longer needs its claims. A pod that is being deleted on a node may still have running containers.
pub(super) fn is_done(pod: &Pod) -> bool {
    is_terminal(pod) || pod.metadata.deletion_timestamp.is_some() && node_name(pod).is_none()
}
