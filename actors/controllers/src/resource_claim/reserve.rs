//! Reserves the allocated claims of a pod that already has a node. For other pods the scheduler does that.

use super::api::{ClaimChange, ClaimEdit, Request, StatusEntry};
use super::cache::Core;
use super::keys::ObjectKey;
use super::names::{ClaimEntry, Named};
use super::owner_pass::{OwnerPass, Stage};
use super::owners::{AllowedWork, Owner, node_name};
use super::ownership::{
    BindTarget, belongs_to_pod, bind_target, is_allocated, is_full, is_reservable, is_reserved_for_pod,
};
use super::pass::{Fact, consumer_text};

impl OwnerPass {
    /// Reserves the claim of the current entry, if this is necessary. If it needs no call, the pass goes on with the next entry.
    pub(super) fn reserve(&mut self, core: &Core) -> Option<Request> {
        let request = self.claims.get(self.at).cloned().and_then(|entry| self.reservation(core, &entry));
        if request.is_none() {
            self.at += 1;
        }
        request
    }

    fn reservation(&mut self, core: &Core, entry: &ClaimEntry) -> Option<Request> {
        let Owner::Pod(pod) = &self.owner else { return None };
        if node_name(pod).is_none() || self.owner.allowed_work() != AllowedWork::All {
            return None;
        }
        // The watch may not show the names yet that this pass has written.
        let new = |name: &String| vec![StatusEntry { name: entry.name.clone(), claim: Some(name.clone()) }];
        let statuses = self.new_names.get(&entry.name).map_or_else(|| core.statuses(&self.owner), new);
        let Ok(Named::Claim { name, is_generated }) = entry.named(&statuses) else { return None };
        let key = ObjectKey::new(&self.owner.key().namespace, &name);
        let claim = core.decoded_claim(&key)?;
        let is_foreign = is_generated && belongs_to_pod(claim, pod, core.features).is_err();
        let is_reserved = is_reserved_for_pod(claim, pod, core.features) || self.reserved.contains(&key);
        if is_foreign || is_reserved || !is_allocated(claim) {
            return None;
        }
        if !is_reservable(claim) {
            if is_full(claim) {
                self.facts.push(Fact::Full(key));
            }
            return None;
        }
        let group = core.group_of(pod).cloned();
        let consumer = match (bind_target(pod, group.as_deref(), entry, core.features), group) {
            (Ok(BindTarget::PodGroup), Some(group)) => Owner::PodGroup(group).consumer(),
            (Ok(BindTarget::PodGroup | BindTarget::Pod), _) => self.owner.consumer(),
            (Err(fault), _) => {
                self.faults.push(fault.into());
                return None;
            }
        };
        self.stage = Stage::Updating { claim: key, consumer: consumer_text(&consumer) };
        let change = ClaimChange { claim: claim.clone(), edit: ClaimEdit::Reserve(consumer) };
        Some(Request::ChangeClaim(Box::new(change)))
    }
}
