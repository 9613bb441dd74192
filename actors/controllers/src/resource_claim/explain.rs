//! Why a claim does not exist, is not allocated, or is not released, and which pods hold it.

mod absent;
mod text;

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use podwright_model::time::Time;
use serde::Serialize;

pub use super::super::failed_pass::FailedPass;
use super::api::{CLAIM_FINALIZER, SCHEDULING_GROUP};
use super::cache::Core;
use super::keys::{Key, ObjectKey};
use super::owners::{Owner, controller, is_done, node_name, object_key, owner_key};
use super::ownership::{is_allocated, is_full};

/// The state of a claim with its reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ClaimExplanation {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The state.
    pub state: ClaimState,
    /// The object that controls the claim, such as `Pod shop/web`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The objects that the claim is reserved for.
    pub consumers: Vec<ClaimConsumer>,
    /// Why the claim is in this state.
    pub reasons: Vec<ClaimReason>,
    /// The failed passes of the claim and of the objects that use it.
    pub failures: Vec<FailedPass>,
    /// The items of the queue that change the state.
    #[serde(skip)]
    pub keys: Vec<Key>,
}

/// The state of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ClaimState {
    /// The controller has not completed its first lists, and they have not shown the claim.
    Unknown,
    /// The claim does not exist.
    Absent,
    /// No devices are allocated.
    NotAllocated,
    /// Devices are allocated, and the claim is reserved for nobody.
    Allocated,
    /// Devices are allocated, and the claim is reserved for a pod or pod group.
    Reserved,
    /// The claim is being deleted.
    Deleting,
}

/// An object that a claim is reserved for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ClaimConsumer {
    /// The resource, such as `pods`.
    pub resource: String,
    /// The name.
    pub name: String,
    /// The UID.
    pub uid: String,
    /// Whether the object holds the claim: it has not ended, or it is not known whether it has.
    pub holds: bool,
    /// The state of the object in one sentence.
    pub detail: String,
}

/// One reason for the state of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ClaimReason {
    /// The kind of reason.
    pub what: ReasonKind,
    /// The reason in one sentence.
    pub detail: String,
    /// The event that changes the state, as in the explanation of a pod.
    pub released_by: &'static str,
}

/// The kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ReasonKind {
    /// The controller has not completed its first lists.
    NotSynced,
    /// No known object uses a claim of this name.
    NotUsed,
    /// A user has to create the claim.
    NotCreatedByUser,
    /// The claim cannot be generated.
    NotGenerated,
    /// The object that uses the claim has ended, or is being deleted.
    OwnerEnded,
    /// The status of the object says that no claim is needed.
    NotNeeded,
    /// The controller has generated the claim, and the watch does not show it yet.
    NotShown,
    /// The claim of the pod has another name.
    OtherName,
    /// The result of a create is not known.
    Unanswered,
    /// A pass that is due generates the claim.
    PassDue,
    /// The scheduler has not allocated devices.
    NotScheduled,
    /// A pod on a node uses the claim, so no scheduler allocates devices.
    PodOnNode,
    /// Consumers hold the claim.
    InUse,
    /// The claim is reserved for nobody, and its allocation stays.
    AllocationKept,
    /// Finalizers keep the claim.
    Finalizers,
    /// The claim has the largest number of consumers.
    Full,
    /// The controller cannot decode the claim.
    Undecodable,
}

impl Core {
    /// Explains the state of a claim. If the claim does not exist, its name may be incomplete, because the server completes the names of
    /// generated claims.
    #[must_use]
    pub fn explain(&self, claim: &ObjectKey, now: Time) -> ClaimExplanation {
        let mut explanation = ClaimExplanation {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            state: ClaimState::Absent,
            owner: None,
            consumers: Vec::new(),
            reasons: Vec::new(),
            failures: Vec::new(),
            keys: vec![Key::Claim(claim.clone())],
        };
        if !self.is_synced() {
            let detail =
                "The controller has not completed its first lists, so it does not know all objects.".to_owned();
            let by = "the first lists are complete; `podwright health ready` names the lists that fail";
            explanation.add(ReasonKind::NotSynced, detail, by);
        }
        match self.claims.get(claim) {
            Some(known) => self.explain_known(known, &mut explanation),
            None if self.is_synced() => self.explain_absent(claim, now, &mut explanation),
            None => explanation.state = ClaimState::Unknown,
        }
        explanation
    }

    fn explain_known(&self, claim: &ResourceClaim, explanation: &mut ClaimExplanation) {
        let key = object_key(&claim.metadata);
        explanation.owner =
            controller(&claim.metadata).map(|owner| format!("{} {}/{}", owner.kind, key.namespace, owner.name));
        let reserved_for = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
        explanation.consumers = reserved_for.map(|consumer| self.consumer(&key, consumer)).collect();
        let holders = explanation.consumers.iter().filter(|consumer| consumer.holds).count();
        let is_deleting = claim.metadata.deletion_timestamp.is_some();
        explanation.state = match (is_deleting, is_allocated(claim), explanation.consumers.is_empty()) {
            (true, _, _) => ClaimState::Deleting,
            (false, false, _) => ClaimState::NotAllocated,
            (false, true, true) => ClaimState::Allocated,
            (false, true, false) => ClaimState::Reserved,
        };
        explanation.keys.extend(owner_key(&claim.metadata));
        if self.undecodable_claims.contains(&key) {
            let detail = "The controller cannot decode the claim. It knows an earlier state or none, and does not change the claim.";
            let by = "the claim is changed, or you run a version of the controller that can decode it";
            explanation.add(ReasonKind::Undecodable, detail.to_owned(), by);
        }
        let users: Vec<_> = self.pods_by_claim.get(&key).filter_map(|pod| self.pods.get(pod)).collect();
        users.iter().for_each(|pod| explanation.add_owner(&Owner::Pod((*pod).clone())));
        if holders > 0 {
            let pods = if holders == 1 { "1 consumer holds".to_owned() } else { format!("{holders} consumers hold") };
            let detail = format!("{pods} the claim.");
            explanation.add(ReasonKind::InUse, detail, "each consumer ends");
        } else if !explanation.consumers.is_empty() {
            let detail = "All consumers have ended. The next pass removes them from the claim.".to_owned();
            explanation.add(ReasonKind::PassDue, detail, "the next pass of the claim runs");
        }
        if is_full(claim) {
            let detail =
                "The claim has the largest number of consumers, so it is reserved for no further pod.".to_owned();
            explanation.add(ReasonKind::Full, detail, "a consumer ends");
        }
        match explanation.state {
            ClaimState::Deleting => {
                let finalizers: Vec<_> = claim.metadata.finalizers.iter().flatten().map(String::as_str).collect();
                let detail =
                    format!("The claim is being deleted, and these finalizers keep it: {}.", finalizers.join(", "));
                let by = if finalizers == [CLAIM_FINALIZER] {
                    "the claim has no consumer; this controller then removes its finalizer"
                } else {
                    "the owners of the finalizers remove them"
                };
                explanation.add(ReasonKind::Finalizers, detail, by);
            }
            ClaimState::Allocated => {
                let detail = "The claim is reserved for nobody. Its allocation stays, because the scheduler may be about to reserve it.";
                explanation.add(
                    ReasonKind::AllocationKept,
                    detail.to_owned(),
                    "a pod is reserved, or the claim is deleted",
                );
            }
            ClaimState::NotAllocated if users.is_empty() => {
                let detail = "No known pod uses the claim, so the scheduler allocates no devices.".to_owned();
                explanation.add(ReasonKind::NotUsed, detail, "a pod uses the claim");
            }
            ClaimState::NotAllocated => {
                for pod in users.into_iter().filter(|pod| !is_done(pod)) {
                    let name = object_key(&pod.metadata);
                    match node_name(pod) {
                        Some(node) => {
                            let detail = format!(
                                "Pod {name} is on node {node} already, so no scheduler allocates devices for it."
                            );
                            explanation.add(ReasonKind::PodOnNode, detail, "another pod is scheduled with the claim");
                        }
                        None => {
                            let detail = format!("The scheduler has not allocated devices for Pod {name}.");
                            explanation.add(
                                ReasonKind::NotScheduled,
                                detail,
                                "the scheduler allocates devices; the events of the pod say why it has not",
                            );
                        }
                    }
                }
            }
            ClaimState::Unknown | ClaimState::Absent | ClaimState::Reserved => {}
        }
    }

    /// An object that a claim is reserved for, as the watches show it.
    fn consumer(&self, claim: &ObjectKey, consumer: &ResourceClaimConsumerReference) -> ClaimConsumer {
        let key = ObjectKey::new(&claim.namespace, &consumer.name);
        let group = consumer.api_group.as_deref().unwrap_or_default();
        let (holds, detail) = match (group, consumer.resource.as_str()) {
            ("", "pods") => self.pod_consumer(&key, &consumer.uid),
            (SCHEDULING_GROUP, "podgroups") if self.features.pod_groups => {
                let known = self.groups.get(&key).filter(|group| group.metadata.uid.as_ref() == Some(&consumer.uid));
                match known {
                    Some(_) => (true, format!("PodGroup {key} exists.")),
                    None => (true, format!("PodGroup {key} is not known. The next pass looks it up.")),
                }
            }
            _ => (true, format!("The controller does not know objects of {}, and keeps the entry.", consumer.resource)),
        };
        let (resource, name, uid) = (consumer.resource.clone(), consumer.name.clone(), consumer.uid.clone());
        ClaimConsumer { resource, name, uid, holds, detail }
    }

    fn pod_consumer(&self, key: &ObjectKey, uid: &String) -> (bool, String) {
        let Some(pod) = self.pods.get(key).filter(|pod| pod.metadata.uid.as_ref() == Some(uid)) else {
            return (true, format!("Pod {key} with this UID is not known. The next pass looks it up."));
        };
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
        if is_done(pod) {
            return (false, format!("Pod {key} has ended."));
        }
        let detail = match (pod.metadata.deletion_timestamp.is_some(), node_name(pod)) {
            (true, Some(node)) => {
                format!("Pod {key} is being deleted. Its containers on node {node} may still use the devices.")
            }
            (_, Some(node)) => format!("Pod {key} is on node {node} in phase {phase}."),
            (_, None) => format!("Pod {key} has no node yet."),
        };
        (true, detail)
    }
}

impl ClaimExplanation {
    fn add(&mut self, what: ReasonKind, detail: String, released_by: &'static str) {
        self.reasons.push(ClaimReason { what, detail, released_by });
    }

    fn add_owner(&mut self, owner: &Owner) {
        let key = owner.work_key();
        if !self.keys.contains(&key) {
            self.keys.push(key);
        }
    }
}
