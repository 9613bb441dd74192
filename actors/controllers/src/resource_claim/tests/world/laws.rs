//! What must always hold.

use super::*;
use crate::resource_claim::owners::object_key;

/// What a broken law says.
pub(super) type Law = Result<(), String>;

fn holds(holds: bool, broken: impl FnOnce() -> String) -> Law {
    if holds { Ok(()) } else { Err(broken()) }
}

impl World {
    /// What must hold for each call that a pass returns, with what the controller knows.
    pub(super) fn check_request(&self, request: &Request) -> Law {
        if let Request::CreateClaim(claim) = request {
            let owner = OwnerId::of_claim(&claim.metadata).map(|owner| owner.uid);
            let mut deleting = self.core.pods().filter(|pod| pod.metadata.deletion_timestamp.is_some());
            let is_for_deleting = deleting.any(|pod| pod.metadata.uid == owner);
            return holds(!is_for_deleting, || format!("a claim is created for {owner:?}, which is being deleted"));
        }
        let Request::ChangeClaim(change) = request else { return Ok(()) };
        let key = object_key(&change.claim.metadata);
        let known = self.core.claims.get(&key).map(|claim| consumers(claim)).unwrap_or_default();
        for uid in consumers(&change.changed_claim()).difference(&known) {
            let pod = self.core.pods().find(|pod| pod.metadata.uid.as_ref() == Some(uid));
            let may_use = |pod: &Arc<Pod>| !is_done(pod) && pod.metadata.deletion_timestamp.is_none();
            holds(uid == "g-uid" || pod.is_some_and(may_use), || format!("a claim is reserved for {uid}"))?;
        }
        Ok(())
    }

    /// What must hold when the server has performed a call.
    pub(super) fn check_effect(
        &self,
        request: &Request,
        pods: &BTreeMap<ObjectKey, Pod>,
        claims: &BTreeMap<ObjectKey, ResourceClaim>,
    ) -> Law {
        let is_alive = |uid: &str| {
            uid == "g-uid" || pods.values().any(|pod| pod.metadata.uid.as_deref() == Some(uid) && !is_done(pod))
        };
        match request {
            Request::CreateClaim(_) => {
                let mut made = BTreeSet::new();
                for claim in self.server.claims.values() {
                    let entry = claim.metadata.annotations.as_ref().and_then(|a| a.get(POD_CLAIM_NAME_ANNOTATION));
                    let Some(owner) = OwnerId::of_claim(&claim.metadata) else { continue };
                    let name = &claim.metadata.name;
                    holds(made.insert((owner, entry)), || format!("two claims for {entry:?}, one is {name:?}"))?;
                }
            }
            Request::ApplyStatus(StatusApply { owner, .. }) => {
                let Some(before) = pods.get(owner) else { return Ok(()) };
                let after = pod_owner(&self.server.pods[owner]).statuses();
                for entry in pod_owner(before).statuses() {
                    let may_go = match &entry.claim {
                        // The claim was deleted: the next pass generates another one.
                        Some(name) => !claims.contains_key(&object(name)),
                        // Once the entry is erased, the pod needs a claim for it. A write that was under way may bring the entry
                        // back, and the claim that was generated meanwhile replaces it.
                        None => self.server.has_erased(before),
                    };
                    holds(may_go || after.contains(&entry), || format!("{entry:?} is lost: {after:?}"))?;
                }
            }
            Request::ChangeClaim(change) => {
                let key = object_key(&change.claim.metadata);
                for uid in consumers(&claims[&key]).difference(&consumers(&change.changed_claim())) {
                    holds(!is_alive(uid), || format!("{uid} runs and is dropped"))?;
                }
            }
            Request::DeleteClaim { claim, .. } => {
                let owner = OwnerId::of_claim(&claims[claim].metadata).unwrap();
                holds(!is_alive(&owner.uid), || format!("the claim of {owner:?} is deleted"))?;
            }
            Request::GetClaim(_) | Request::GetPod(_) | Request::GetPodGroup(_) | Request::ListClaims { .. } => {}
        }
        Ok(())
    }

    /// What must hold when the controller has nothing to do.
    pub(super) fn check_rest(&self) -> Law {
        for (key, pod) in self.server.pods.iter().filter(|(_, pod)| !is_done(pod)) {
            let statuses = pod_owner(pod).statuses();
            for entry in pod_owner(pod).claims().into_iter().filter(|entry| entry.template.is_some()) {
                let status = statuses.iter().find(|status| status.name == entry.name);
                if status.is_some_and(|status| status.claim.is_none()) {
                    continue;
                }
                let is_of_group = key.name == "r" && entry.name == "res";
                let expected = if is_of_group { Some("g-uid") } else { pod.metadata.uid.as_deref() };
                if pod.metadata.deletion_timestamp.is_some() {
                    // Nothing is created for the pod. What it has is recorded.
                    let is_its = |claim: &ResourceClaim| {
                        let owner = OwnerId::of_claim(&claim.metadata).map(|owner| owner.uid);
                        let of_entry =
                            claim.metadata.annotations.as_ref().and_then(|a| a.get(POD_CLAIM_NAME_ANNOTATION));
                        owner.as_deref() == expected && of_entry == Some(&entry.name)
                    };
                    let is_known = status.is_some() || !self.server.claims.values().any(is_its);
                    holds(is_known, || format!("{key} is being deleted and lacks a name for {:?}", entry.name))?;
                    continue;
                }
                let name = status.and_then(|status| status.claim.clone()).unwrap_or_default();
                let claim = self.server.claims.get(&object(&name));
                let owner = claim.and_then(|claim| Some(OwnerId::of_claim(&claim.metadata)?.uid));
                let broken = || format!("{key} has for {:?} a claim of {owner:?}", entry.name);
                holds(owner.as_deref() == expected, broken)?;
            }
        }
        for claim in self.server.claims.values() {
            for uid in consumers(claim).iter().filter(|uid| *uid != "g-uid") {
                let pod = self.server.pods.values().find(|pod| pod.metadata.uid.as_ref() == Some(uid));
                holds(pod.is_some_and(|pod| !is_done(pod)), || format!("{uid} has ended and is still a consumer"))?;
            }
            // An allocation that the controller has given back does not come again.
            let is_unused = claim.metadata.deletion_timestamp.is_some() && consumers(claim).is_empty();
            let name = &claim.metadata.name;
            holds(!is_unused, || format!("{name:?} is unused and being deleted, and its finalizer stays"))?;
            let owner = OwnerId::of_claim(&claim.metadata).map(|owner| owner.uid);
            let ended = self.server.pods.values().find(|pod| pod.metadata.uid == owner && is_done(pod));
            let is_kept = ended.is_some() && consumers(claim).is_empty();
            holds(!is_kept, || format!("{name:?} is not deleted, although its pod has ended"))?;
        }
        Ok(())
    }
}

pub(in super::super) fn consumers(claim: &ResourceClaim) -> BTreeSet<String> {
    let consumers = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    consumers.map(|consumer| consumer.uid.clone()).collect()
}
