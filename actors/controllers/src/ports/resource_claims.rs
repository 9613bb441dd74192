//! The calls of the ResourceClaim controller to the API server.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

/// The component of events.
pub const COMPONENT: &str = "resource_claim";
/// The reason of the Warning event for a claim that could not be generated.
pub const EVENT_REASON: &str = "FailedResourceClaimCreation";
/// The field manager of every write of a status by apply.
pub const FIELD_MANAGER: &str = "ResourceClaimController";
/// Keeps an allocated claim until its devices are given back.
pub const CLAIM_FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// The API version of pod groups in owner references and calls.
pub const POD_GROUP_API_VERSION: &str = "scheduling.k8s.io/v1alpha2";

/// Performs the calls of the ResourceClaim controller, and records its events.
pub trait ResourceClaimApi: Send + Sync + 'static {
    /// Performs one call. The implementation sets the timeout, and does not repeat the call, because the caller first checks that it still
    /// leads. If the future is dropped, the server may still perform the call.
    ///
    /// # Errors
    /// [`ApiError`]. Its kind must be [`ApiErrorKind::Unknown`] unless it is certain that the server has changed nothing: for a
    /// timeout, a connection that was closed after the call was sent, a status of 500 and above, and an answer that cannot be decoded. A
    /// call that was never sent is [`ApiErrorKind::Refused`].
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Answer, ApiError>>;

    /// Records a Warning event of a pod or pod group. Never waits; may drop the event.
    fn record(&self, warning: OwnerWarning);

    /// Writes the events that were recorded, and ends the tasks that write them. The next event starts new ones. Returns how many events
    /// were not written within `limit`.
    ///
    /// Cancel safe: another call goes on.
    fn close_events(&self, limit: Duration) -> BoxFuture<'_, usize>;
}

/// A Warning event of a pod or pod group, with the reason [`EVENT_REASON`] and the component [`COMPONENT`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerWarning {
    /// The kind of the object.
    pub kind: OwnerKind,
    /// The object.
    pub owner: ObjectKey,
    /// The UID of the object.
    pub uid: String,
    /// The message.
    pub message: String,
}

/// The namespace and the name of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectKey {
    /// The object of this name in a namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// Prints `NAMESPACE/NAME`, as in `kubectl`.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The kind of an object that owns generated claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnerKind {
    /// A pod.
    Pod,
    /// A pod group.
    PodGroup,
}

impl OwnerKind {
    /// The kind in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            OwnerKind::Pod => "Pod",
            OwnerKind::PodGroup => "PodGroup",
        }
    }

    /// The API version in calls and owner references.
    pub const fn api_version(self) -> &'static str {
        match self {
            OwnerKind::Pod => "v1",
            OwnerKind::PodGroup => POD_GROUP_API_VERSION,
        }
    }
}

/// A call of the API.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Create a claim by its `generateName`. Answer: [`Answer::Claim`], as the server made it.
    CreateClaim(Box<ResourceClaim>),
    /// Write the names of claims to the status of a pod or group by server-side apply. Answer:
    /// [`Answer::Written`].
    ApplyStatus(StatusApply),
    /// Change a claim if the server has the version that the caller has read, and otherwise fail with [`ApiErrorKind::Conflict`].
    /// Answer: [`Answer::Claim`].
    ChangeClaim(Box<ClaimChange>),
    /// Delete a claim if it has this UID. Answer: [`Answer::Done`].
    DeleteClaim {
        /// The claim.
        claim: ObjectKey,
        /// The UID of the claim: a precondition.
        uid: String,
    },
    /// Read a claim from the server. Answer: [`Answer::Uid`].
    GetClaim(ObjectKey),
    /// Read a pod from the server. Answer: [`Answer::Uid`].
    GetPod(ObjectKey),
    /// Read a pod group from the server. Answer: [`Answer::Uid`].
    GetPodGroup(ObjectKey),
    /// List the metadata of the claims of a namespace from the server, by a consistent read. Answer: [`Answer::Claims`].
    ListClaims {
        /// The namespace.
        namespace: String,
    },
}

/// A change of a claim. Everything that the edit does not name keeps its bytes, because the server compares opaque parameters byte by
/// byte, and because another version of the API may have fields that this program does not know.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimChange {
    /// The claim as the caller has read it.
    pub claim: Arc<ResourceClaim>,
    /// What changes.
    pub edit: ClaimEdit,
}

/// What a write changes in a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimEdit {
    /// Removes [`CLAIM_FINALIZER`].
    RemoveFinalizer,
    /// Removes consumers from the status.
    Release {
        /// The UIDs of the consumers.
        consumers: BTreeSet<String>,
        /// Whether the allocation is removed too.
        deallocate: bool,
    },
    /// Adds a consumer to the status.
    Reserve(ResourceClaimConsumerReference),
}

impl ClaimChange {
    /// The claim after the change.
    pub fn changed_claim(&self) -> ResourceClaim {
        let mut claim = ResourceClaim::clone(&self.claim);
        match &self.edit {
            ClaimEdit::RemoveFinalizer => {
                claim.metadata.finalizers.iter_mut().for_each(|all| all.retain(|name| name != CLAIM_FINALIZER));
            }
            ClaimEdit::Release { consumers, deallocate } => {
                let status = claim.status.get_or_insert_default();
                let mut kept = status.reserved_for.take().unwrap_or_default();
                kept.retain(|consumer| !consumers.contains(&consumer.uid));
                status.reserved_for = Some(kept).filter(|kept| !kept.is_empty());
                if *deallocate {
                    status.allocation = None;
                }
            }
            ClaimEdit::Reserve(consumer) => {
                let status = claim.status.get_or_insert_default();
                status.reserved_for.get_or_insert_default().push(consumer.clone());
            }
        }
        claim
    }
}

impl ClaimEdit {
    /// Whether the edit is a write of the status, and not of the claim itself.
    pub fn is_of_status(&self) -> bool {
        match self {
            ClaimEdit::RemoveFinalizer => false,
            ClaimEdit::Release { .. } | ClaimEdit::Reserve(_) => true,
        }
    }
}

/// The answer to a successful call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The claim that the server returned.
    Claim(Box<ResourceClaim>),
    /// The claims that the server listed.
    Claims(Arc<ListedClaims>),
    /// The UID of the object that the server returned.
    Uid(String),
    /// The server stored the status.
    Written {
        /// The resource version of the pod or group after the write.
        resource_version: String,
    },
    /// The call succeeded.
    Done,
}

/// The metadata of the claims of a namespace, as one list shows them. A claim that no object controls is left out: no controller has
/// generated it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListedClaims(
    /// By the UID of the object that controls the claim.
    HashMap<String, Vec<ObjectMeta>>,
);

impl FromIterator<ObjectMeta> for ListedClaims {
    fn from_iter<I: IntoIterator<Item = ObjectMeta>>(claims: I) -> Self {
        let mut listed = ListedClaims::default();
        listed.extend(claims);
        listed
    }
}

impl Extend<ObjectMeta> for ListedClaims {
    fn extend<I: IntoIterator<Item = ObjectMeta>>(&mut self, claims: I) {
        for claim in claims {
            if let Some(uid) = controller(&claim).map(|owner| owner.uid.clone()) {
                self.0.entry(uid).or_default().push(claim);
            }
        }
    }
}

impl ListedClaims {
    /// The claims that the object with this UID controls.
    pub fn of(&self, uid: &str) -> &[ObjectMeta] {
        self.0.get(uid).map_or(&[], Vec::as_slice)
    }
}

/// The reference to the object that controls a claim.
pub fn controller(claim: &ObjectMeta) -> Option<&OwnerReference> {
    claim.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
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
    /// The delay that the server requests before the next try. Zero if it requests none.
    pub retry_after: Duration,
}

impl ApiError {
    /// A failure after which the server requests no delay.
    pub fn new(kind: ApiErrorKind, message: impl Into<String>) -> Self {
        ApiError { kind, message: message.into(), retry_after: Duration::ZERO }
    }
}

/// One entry of `status.resourceClaimStatuses`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StatusEntry {
    /// The name of the claim in the spec of the pod or group.
    pub name: String,
    /// The name of the ResourceClaim. `None` if no claim is needed.
    pub claim: Option<String>,
}

/// The claims that are written to the status of a pod or group. The apply is forced, and its manager is [`FIELD_MANAGER`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusApply {
    /// The kind of the owner.
    pub kind: OwnerKind,
    /// The owner.
    pub owner: ObjectKey,
    /// The UID of the owner. The server refuses the write if another object has the name now.
    pub uid: String,
    /// All entries that the status has after the write.
    pub entries: Vec<StatusEntry>,
}

impl StatusApply {
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
