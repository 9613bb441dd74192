//! The pass of a claim: removes consumers that have ended, deallocates the claim when it removes the last one, and deletes the generated
//! claim of a pod that has ended.
//!
//! ```text
//!  CheckingConsumers <--> ReadingConsumer, for a consumer that is not known
//!     |-- consumers have ended ------> RemovingConsumers --.-- the allocation is gone --> RemovingFinalizer --.
//!     |-- unused, and being deleted -> Deallocating -------'                                                  |
//!     `------------------------------> ReadingOwner: unused, and the pod has ended --> Deleting <-------------'
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};

use super::api::{Answer, ApiError, ApiErrorKind, CLAIM_FINALIZER, ClaimChange, ClaimEdit, Request, SCHEDULING_GROUP};
use super::cache::Core;
use super::keys::ObjectKey;
use super::owners::{OwnerId, OwnerKind, controller, is_done, object_key};
use super::ownership::is_allocated;
use super::pass::{ClaimWrite, Fact, Fault, Step, consumer_text, fault, report};

#[derive(Clone, Debug)]
pub(super) struct ClaimPass {
    /// The claim, as the cache or the last write returned it.
    claim: Arc<ResourceClaim>,
    /// The consumers that are still to be checked.
    unchecked: VecDeque<ResourceClaimConsumerReference>,
    /// The consumers that stay.
    kept: Vec<ResourceClaimConsumerReference>,
    /// The consumers that go.
    dropped: Vec<ResourceClaimConsumerReference>,
    stage: Stage,
    faults: Vec<Fault>,
    pub(super) facts: Vec<Fact>,
}

#[derive(Clone, Debug)]
enum Stage {
    CheckingConsumers,
    /// A call reads a consumer that is not known.
    ReadingConsumer(ResourceClaimConsumerReference),
    /// A call writes the status without the consumers that have ended.
    RemovingConsumers,
    /// A call writes the status without the allocation.
    Deallocating,
    RemovingFinalizer,
    /// A call reads the pod that controls the claim.
    ReadingOwner(String),
    Deleting,
    Over,
}

enum Verdict {
    Keep,
    Drop,
    LookUp(Request),
}

impl ClaimPass {
    pub(super) fn new(claim: &Arc<ResourceClaim>) -> Self {
        let consumers = claim.status.as_ref().and_then(|status| status.reserved_for.clone());
        ClaimPass {
            claim: claim.clone(),
            unchecked: consumers.unwrap_or_default().into(),
            kept: Vec::new(),
            dropped: Vec::new(),
            stage: Stage::CheckingConsumers,
            faults: Vec::new(),
            facts: Vec::new(),
        }
    }

    pub(super) fn step(&mut self, core: &mut Core, answer: Option<Result<Answer, ApiError>>) -> Step {
        let request = match answer {
            Some(answer) => self.answered(core, answer),
            None => self.check_consumers(core),
        };
        match request {
            Some(request) => Step::Call(request),
            None => Step::Done(report(std::mem::take(&mut self.faults), std::mem::take(&mut self.facts))),
        }
    }

    fn answered(&mut self, core: &mut Core, answer: Result<Answer, ApiError>) -> Option<Request> {
        let is_missing = matches!(&answer, Err(ApiError { kind: ApiErrorKind::NotFound, .. }));
        match (std::mem::replace(&mut self.stage, Stage::Over), answer) {
            (Stage::ReadingConsumer(consumer), answer) => {
                self.stage = Stage::CheckingConsumers;
                let is_replaced = matches!(&answer, Ok(Answer::Uid(uid)) if *uid != consumer.uid);
                if is_missing || is_replaced {
                    self.dropped.push(consumer);
                } else {
                    // A consumer that cannot be looked up is kept, and the others may go.
                    if !matches!(answer, Ok(Answer::Uid(_))) {
                        let key = ObjectKey::new(&self.key().namespace, &consumer.name);
                        self.faults.push(fault("look up the consumer", key, answer));
                    }
                    self.kept.push(consumer);
                }
                self.check_consumers(core)
            }
            (Stage::RemovingConsumers | Stage::Deallocating, Ok(Answer::Claim(claim))) => {
                let before = std::mem::replace(&mut self.claim, Arc::from(claim));
                let consumers: Vec<_> = self.dropped.iter().map(consumer_text).collect();
                let deallocated = is_allocated(&before) && !is_allocated(&self.claim);
                self.wrote(ClaimWrite::Released { claim: self.key(), consumers: consumers.join(", "), deallocated });
                // If the claim is not free, the finalizer stays: the scheduler may have set it, and may be about to allocate.
                let is_free = self.kept.is_empty() && !is_allocated(&self.claim);
                if is_free && self.has_finalizer() { self.remove_finalizer() } else { self.check_owner(core) }
            }
            (Stage::RemovingFinalizer, Ok(Answer::Claim(claim))) => {
                self.claim = Arc::from(claim);
                self.wrote(ClaimWrite::FinalizerRemoved { claim: self.key() });
                self.check_owner(core)
            }
            (Stage::ReadingOwner(uid), Ok(Answer::Uid(found))) => {
                if found == uid {
                    None
                } else {
                    self.delete()
                }
            }
            (Stage::ReadingOwner(_), Err(_)) if is_missing => self.delete(),
            (Stage::Deleting, Ok(_)) => {
                let metadata = &self.claim.metadata;
                let pod = controller(metadata).map(|pod| pod.name.clone()).unwrap_or_default();
                let uid = metadata.uid.clone().unwrap_or_default();
                self.wrote(ClaimWrite::Deleted { claim: self.key(), uid, pod });
                None
            }
            (Stage::Deleting, Err(_)) if is_missing => None,
            (stage, answer) => {
                let action = match stage {
                    Stage::RemovingConsumers => "remove consumers of ResourceClaim",
                    Stage::Deallocating => "deallocate ResourceClaim",
                    Stage::RemovingFinalizer => "remove the finalizer of ResourceClaim",
                    Stage::ReadingOwner(_) => "look up the pod of ResourceClaim",
                    Stage::Deleting => "delete ResourceClaim",
                    Stage::CheckingConsumers | Stage::ReadingConsumer(_) | Stage::Over => "work on ResourceClaim",
                };
                self.faults.push(fault(action, self.key(), answer));
                None
            }
        }
    }

    /// Decides on the consumers, in their order.
    fn check_consumers(&mut self, core: &mut Core) -> Option<Request> {
        while let Some(consumer) = self.unchecked.pop_front() {
            match self.verdict(core, &consumer) {
                Verdict::Keep => self.kept.push(consumer),
                Verdict::Drop => self.dropped.push(consumer),
                Verdict::LookUp(request) => {
                    self.stage = Stage::ReadingConsumer(consumer);
                    return Some(request);
                }
            }
        }
        let is_unused = self.kept.is_empty();
        if !self.dropped.is_empty() {
            let deallocate = is_unused && self.has_finalizer();
            let consumers = self.dropped.iter().map(|consumer| consumer.uid.clone()).collect();
            self.stage = Stage::RemovingConsumers;
            return Some(self.change(ClaimEdit::Release { consumers, deallocate }));
        }
        if is_unused && self.claim.metadata.deletion_timestamp.is_some() && self.has_finalizer() {
            if !is_allocated(&self.claim) {
                return self.remove_finalizer();
            }
            self.stage = Stage::Deallocating;
            return Some(self.change(ClaimEdit::Release { consumers: BTreeSet::new(), deallocate: true }));
        }
        self.check_owner(core)
    }

    fn verdict(&self, core: &mut Core, consumer: &ResourceClaimConsumerReference) -> Verdict {
        let key = ObjectKey::new(&self.key().namespace, &consumer.name);
        let group = consumer.api_group.as_deref().unwrap_or_default();
        let is_pod_group = core.features.pod_groups && group == SCHEDULING_GROUP && consumer.resource == "podgroups";
        let is_pod = group.is_empty() && consumer.resource == "pods";
        if !is_pod && !is_pod_group {
            return Verdict::Keep;
        }
        if core.deleted.contains(&consumer.uid) {
            return Verdict::Drop;
        }
        // A known object with another UID may be an older one, whose successor no watch has shown. So a call reads the object.
        if is_pod_group {
            let known = core.groups.get(&key).filter(|group| group.metadata.uid.as_ref() == Some(&consumer.uid));
            return if known.is_some() { Verdict::Keep } else { Verdict::LookUp(Request::GetPodGroup(key)) };
        }
        match core.pods.get(&key).filter(|pod| pod.metadata.uid.as_ref() == Some(&consumer.uid)) {
            Some(pod) if is_done(pod) => Verdict::Drop,
            Some(_) => Verdict::Keep,
            None => Verdict::LookUp(Request::GetPod(key)),
        }
    }

    fn wrote(&mut self, write: ClaimWrite) {
        self.facts.push(Fact::Wrote(write));
    }

    fn remove_finalizer(&mut self) -> Option<Request> {
        self.stage = Stage::RemovingFinalizer;
        Some(self.change(ClaimEdit::RemoveFinalizer))
    }

    fn change(&self, edit: ClaimEdit) -> Request {
        Request::ChangeClaim(Box::new(ClaimChange { claim: self.claim.clone(), edit }))
    }

    /// Deletes the unused claim of a pod that has ended, so that its devices are free while the pod object still exists.
    fn check_owner(&mut self, core: &mut Core) -> Option<Request> {
        if !self.kept.is_empty() || self.claim.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let OwnerId { kind: OwnerKind::Pod, namespace, uid } = OwnerId::of_claim(&self.claim.metadata)? else {
            return None;
        };
        let key = ObjectKey::new(&namespace, &controller(&self.claim.metadata)?.name);
        // If the pod is not known, do nothing: the watch may not show a new pod yet. If the pod is gone, the garbage collector deletes
        // the claim.
        let pod = core.pods.get(&key)?;
        if pod.metadata.uid.as_ref() == Some(&uid) {
            return if is_done(pod) { self.delete() } else { None };
        }
        if core.deleted.contains(&uid) {
            return self.delete();
        }
        self.stage = Stage::ReadingOwner(uid);
        Some(Request::GetPod(key))
    }

    fn delete(&mut self) -> Option<Request> {
        self.stage = Stage::Deleting;
        let uid = self.claim.metadata.uid.clone().unwrap_or_default();
        Some(Request::DeleteClaim { claim: self.key(), uid })
    }

    fn key(&self) -> ObjectKey {
        object_key(&self.claim.metadata)
    }

    fn has_finalizer(&self) -> bool {
        self.claim.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == CLAIM_FINALIZER)
    }
}
