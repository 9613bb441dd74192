//! The calls of the API that a pass asks for, as values.

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

use super::keys::ObjectKey;
use super::owners::{Owner, OwnerKind};

/// The name of the controller in logs and leases.
pub const CONTROLLER_NAME: &str = "resourceclaim-controller";
/// The name of the work queue in metrics.
pub const QUEUE_NAME: &str = "resource_claim";
/// The component of events.
pub const COMPONENT: &str = "resource_claim";
/// The field manager of every write of a status by apply.
pub const FIELD_MANAGER: &str = "ResourceClaimController";
/// The reason of the Warning event for a claim that could not be generated.
pub const EVENT_REASON: &str = "FailedResourceClaimCreation";

/// On a generated claim: the name of the claim in the spec of its pod or group.
pub(super) const POD_CLAIM_NAME_ANNOTATION: &str = "resource.kubernetes.io/pod-claim-name";
/// On a claim of the scheduler for the extended resources of a pod: `true`.
pub(super) const EXTENDED_RESOURCE_ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";
/// Keeps an allocated claim until its devices are given back.
pub(super) const CLAIM_FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// The API group of pod groups.
pub(super) const SCHEDULING_GROUP: &str = "scheduling.k8s.io";
/// The version of pod groups in owner references and calls.
pub(super) const POD_GROUP_API_VERSION: &str = "scheduling.k8s.io/v1alpha2";

/// A call of the API.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Create a claim by its `generateName`. Answer: [`Answer::Claim`], as the server made it.
    CreateClaim(Box<ResourceClaim>),
    /// Write the names of claims to the status of a pod or group by server-side apply. Answer: [`Answer::Done`].
    ApplyStatus(StatusApply),
    /// Replace the status of a claim; the object has its resource version. Answer: [`Answer::Claim`].
    UpdateClaimStatus(Box<ResourceClaim>),
    /// Replace a claim; the object has its resource version. Answer: [`Answer::Claim`].
    UpdateClaim(Box<ResourceClaim>),
    /// Delete a claim if it has this UID. Answer: [`Answer::Done`].
    DeleteClaim {
        /// The claim.
        claim: ObjectKey,
        /// Its UID, a precondition.
        uid: String,
    },
    /// Read a claim from the server. Answer: [`Answer::Uid`].
    GetClaim(ObjectKey),
    /// Read a pod from the server. Answer: [`Answer::Uid`].
    GetPod(ObjectKey),
    /// Read a pod group from the server. Answer: [`Answer::Uid`].
    GetPodGroup(ObjectKey),
    /// List the claims of a namespace from the server, by a consistent read. Answer: [`Answer::Claims`].
    ListClaims {
        /// The namespace.
        namespace: String,
    },
}

/// The answer to a successful call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The claim that the server returned.
    Claim(Box<ResourceClaim>),
    /// The claims that the server listed.
    Claims(Vec<ResourceClaim>),
    /// The UID of the object that the server returned.
    Uid(String),
    /// The call succeeded.
    Done,
}

/// What a failed call has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiErrorKind {
    /// The object does not exist. Nothing was changed.
    NotFound,
    /// Another writer was faster, or a precondition failed. Nothing was changed.
    Conflict,
    /// The server refused the call for another reason. Nothing was changed.
    Refused,
    /// No answer has come, or the server failed. The call may have been performed.
    Unknown,
}

/// A call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// What the call has done.
    pub kind: ApiErrorKind,
    /// The message of the server or of the client.
    pub message: String,
}

/// One entry of `status.resourceClaimStatuses`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StatusEntry {
    /// The name of the claim in the spec of the pod or group.
    pub name: String,
    /// The name of the ResourceClaim. Without one, no claim is needed.
    pub claim: Option<String>,
}

/// The claims that are written to the status of a pod or group. The apply is forced, and its manager is [`FIELD_MANAGER`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusApply {
    /// The kind of the owner.
    pub kind: OwnerKind,
    /// The owner.
    pub owner: ObjectKey,
    /// The UID of the owner. The server refuses the write for another object of the name.
    pub uid: String,
    /// All entries that the status has after the write.
    pub entries: Vec<StatusEntry>,
}

impl StatusApply {
    pub(super) fn new(owner: &Owner, entries: Vec<StatusEntry>) -> Self {
        StatusApply { kind: owner.kind(), owner: owner.key(), uid: owner.uid().to_owned(), entries }
    }

    /// The body of the apply.
    pub fn body(&self) -> Value {
        let entry = |entry: &StatusEntry| match &entry.claim {
            Some(claim) => json!({ "name": entry.name, "resourceClaimName": claim }),
            None => json!({ "name": entry.name }),
        };
        let entries: Vec<_> = self.entries.iter().map(entry).collect();
        json!({
            "apiVersion": self.kind.api_version(),
            "kind": self.kind.as_str(),
            "metadata": { "namespace": self.owner.namespace, "name": self.owner.name, "uid": self.uid },
            "status": { "resourceClaimStatuses": entries },
        })
    }
}
