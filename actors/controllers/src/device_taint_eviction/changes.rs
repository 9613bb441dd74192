//! From the events of watches to the evictions of claims, and to the pods that must be evaluated.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use podwright_model::time::Time;
use podwright_work_queue::Urgency;

use super::super::owners::{
    Owner, SCHEDULING_GROUP, extended_claim, is_terminal, node_name, object_key, pod_group_name,
};
use super::super::table::{Change, WatchEvent};
use super::api::{ObjectKey, PodId, RuleId};
use super::cache::{Core, STATUS_DELAY};
use super::evaluate::results;
use super::limit::annotation;
use super::pools::PoolKey;
use super::rule_pass::has_conditions;
use super::rules::{EvictingRule, rule_id};

impl Core {
    /// Takes an event of the watch of pods. Most pods of a cluster use no claim. They are not kept, because no taint evicts them.
    pub fn pod_event(&mut self, event: WatchEvent<Pod>, now: Time) {
        for change in self.pods.changes(event) {
            if matches!(&change, Change::Added(pod) if !uses_claims(pod)) {
                continue;
            }
            self.pods.commit(&change);
            let key = object_key(&change.object().metadata);
            let group = |pod: Option<&Arc<Pod>>| Some(ObjectKey::new(&key.namespace, pod_group_name(pod?)?));
            self.pods_by_group.update(&key, group(change.old()), group(change.current()));
            match &change {
                Change::Gone { known, .. } => self.pod_gone(known, now),
                Change::Changed { old, new } if !is_different(old, new) => {}
                Change::Added(_) | Change::Changed { .. } => self.marked.mark(key),
            }
        }
    }

    fn pod_gone(&mut self, pod: &Pod, now: Time) {
        let Some(id) = PodId::of(pod) else { return };
        if let Some(eviction) = self.pending.gone(&id) {
            self.leave_rules(&id, &eviction, now);
            self.status_later(eviction.reasons.rules(), now);
        }
    }

    /// Takes an event of the watch of claims.
    pub fn claim_event(&mut self, event: WatchEvent<ResourceClaim>) {
        for change in self.claims.changes(event) {
            self.claims.commit(&change);
            let key = object_key(&change.object().metadata);
            let (old, new) = (change.old().map(|claim| &**claim), change.current().map(|claim| &**claim));
            let pools = |claim: Option<&ResourceClaim>| {
                let pool = |result: &k8s_openapi::api::resource::v1::DeviceRequestAllocationResult| {
                    PoolKey::new(&result.driver, &result.pool)
                };
                claim.map(|claim| results(claim).map(pool).collect::<Vec<_>>()).unwrap_or_default()
            };
            self.claims_by_pool.update(&key, pools(old), pools(new));
            let eviction = new.and_then(|claim| self.claim_eviction(claim));
            let is_changed = self.store(&key, eviction) || use_differs(old, new);
            if is_changed {
                old.into_iter().chain(new).for_each(|claim| self.mark_users(claim));
            }
        }
    }

    /// Takes an event of the watch of slices.
    pub fn slice_event(&mut self, event: WatchEvent<ResourceSlice>, now: Time) {
        for change in self.slices.changes(event) {
            self.slices.commit(&change);
            let left =
                change.old().filter(|old| change.current().is_none_or(|new| PoolKey::of(new) != PoolKey::of(old)));
            if let Some(old) = left {
                let devices = self.pools.remove(old);
                self.devices_changed(&PoolKey::of(old), &devices);
            }
            if let Some(new) = change.current() {
                let devices = self.pools.put(new, now);
                self.devices_changed(&PoolKey::of(new), &devices);
            }
        }
    }

    /// Computes the evictions of the claims that use these devices.
    fn devices_changed(&mut self, pool: &PoolKey, devices: &[Box<str>]) {
        if devices.is_empty() {
            return;
        }
        let uses = |claim: &ResourceClaim| {
            results(claim).any(|result| {
                *result.driver == *pool.driver
                    && *result.pool == *pool.pool
                    && devices.iter().any(|device| **device == *result.device)
            })
        };
        let users = self.claims_by_pool.get(pool).filter_map(|claim| self.claims.get(claim));
        let users: Vec<_> = users.filter(|claim| uses(claim)).cloned().collect();
        self.recompute(&users);
    }

    /// Takes an event of the watch of rules. Without the setting, rules are ignored.
    pub fn rule_event(&mut self, event: WatchEvent<DeviceTaintRule>, now: Time) {
        if !self.settings.rules {
            return;
        }
        for change in self.rules.changes(event) {
            self.rules.commit(&change);
            match &change {
                Change::Added(rule) => {
                    let record = self.new_record(rule);
                    self.records.insert(rule_id(rule), record);
                    self.effects.rule_now(rule_id(rule), Urgency::Normal);
                    self.rule_changed(&rule_id(rule), Some(rule), now);
                }
                Change::Changed { old, new } if old.spec != new.spec => {
                    self.read_evictions(new, now);
                    self.effects.rule_now(rule_id(new), Urgency::Normal);
                    self.rule_changed(&rule_id(new), Some(new), now);
                    self.slots_changed(&rule_id(new), now);
                }
                Change::Changed { old, new } => {
                    if annotation(old) != annotation(new) {
                        self.effects.rule_now(rule_id(new), Urgency::Normal);
                        self.slots_changed(&rule_id(new), now);
                    }
                    self.read_evictions(new, now);
                    self.status_changed(new, now);
                }
                Change::Gone { known, .. } => {
                    // The rule may come back before its pods are evaluated. Their evictions then stay the same, and nothing queues them.
                    self.queue_waiting(&rule_id(known), now);
                    self.records.remove(&rule_id(known));
                    self.rule_changed(&rule_id(known), None, now);
                }
            }
        }
    }

    /// If another writer has changed the conditions of this controller, queues the write of the status. The writer may be an earlier
    /// leader whose write reached the server late. A change of the evictions need not follow, so nothing else would correct the status.
    /// Before the first pass of a rule there is nothing to compare. The item of this pass is queued.
    fn status_changed(&mut self, rule: &DeviceTaintRule, now: Time) {
        let id = rule_id(rule);
        let written = self.records.get(&id).map(|record| &record.conditions).filter(|written| !written.is_empty());
        if written.is_some_and(|written| !has_conditions(rule, written)) {
            self.effects.rule_at(&id, now + STATUS_DELAY);
        }
    }

    /// Replaces the entry of a rule. If the entry has changed, computes the evictions of all claims.
    fn rule_changed(&mut self, id: &RuleId, rule: Option<&Arc<DeviceTaintRule>>, now: Time) {
        let known = self.evicting.get(&id.name);
        let new = rule.and_then(|rule| EvictingRule::new(rule, known, now));
        if known == new.as_ref() {
            return;
        }
        match new {
            Some(new) => drop(self.evicting.insert(id.name.clone(), new)),
            None => drop(self.evicting.remove(&id.name)),
        }
        let claims: Vec<_> = self.claims.iter().cloned().collect();
        self.recompute(&claims);
    }

    /// Computes the evictions of claims, and marks the users of the claims whose eviction has changed.
    fn recompute(&mut self, claims: &[Arc<ResourceClaim>]) {
        for claim in claims {
            let eviction = self.claim_eviction(claim);
            if self.store(&object_key(&claim.metadata), eviction) {
                self.mark_users(claim);
            }
        }
    }

    /// Stores the eviction of a claim. Returns whether it has changed.
    fn store(&mut self, claim: &ObjectKey, eviction: Option<super::eviction::Eviction>) -> bool {
        if self.evictions.get(claim) == eviction.as_ref() {
            return false;
        }
        match eviction {
            Some(eviction) => drop(self.evictions.insert(claim.clone(), eviction)),
            None => drop(self.evictions.remove(claim)),
        }
        true
    }

    /// Marks the known pods that a claim is reserved for.
    fn mark_users(&mut self, claim: &ResourceClaim) {
        let mut users = BTreeSet::new();
        self.add_users(claim, &mut users);
        users.into_iter().for_each(|pod| self.marked.mark(pod));
    }

    /// Adds the known pods that a claim is reserved for. Skips a pod that is gone or was replaced, and each consumer of an unknown kind.
    pub(super) fn add_users(&self, claim: &ResourceClaim, users: &mut BTreeSet<ObjectKey>) {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        for consumer in claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten()) {
            let key = ObjectKey::new(namespace, &consumer.name);
            match (consumer.api_group.as_deref().unwrap_or_default(), consumer.resource.as_str()) {
                ("", "pods") => {
                    let pod = self.pods.get(&key);
                    if pod.is_some_and(|pod| pod.metadata.uid.as_ref() == Some(&consumer.uid)) {
                        users.insert(key);
                    }
                }
                (SCHEDULING_GROUP, "podgroups") if self.settings.pod_groups => {
                    users.extend(self.pods_by_group.get(&key).cloned());
                }
                _ => {}
            }
        }
    }
}

/// Whether a pod uses claims. A pod gets a claim of extended resources after its creation, and keeps it.
fn uses_claims(pod: &Pod) -> bool {
    let names = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_ref());
    names.is_some_and(|names| !names.is_empty()) || extended_claim(pod).is_some()
}

/// Whether a change of a pod may change its eviction. A change of the condition that this controller writes does not.
fn is_different(old: &Arc<Pod>, new: &Arc<Pod>) -> bool {
    let statuses = |pod: &Arc<Pod>| Owner::Pod(pod.clone()).statuses();
    node_name(old) != node_name(new)
        || extended_claim(old) != extended_claim(new)
        || is_terminal(old) != is_terminal(new)
        || old.metadata.deletion_timestamp.is_some() != new.metadata.deletion_timestamp.is_some()
        || statuses(old) != statuses(new)
}

/// Whether a change of a claim may change which pods use it: its allocation, its consumers or its owners differ.
fn use_differs(old: Option<&ResourceClaim>, new: Option<&ResourceClaim>) -> bool {
    let (Some(old), Some(new)) = (old, new) else { return true };
    let consumers = |claim: &ResourceClaim| claim.status.as_ref().and_then(|status| status.reserved_for.clone());
    let is_allocated = |claim: &ResourceClaim| claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
    is_allocated(old) != is_allocated(new)
        || consumers(old) != consumers(new)
        || old.metadata.owner_references != new.metadata.owner_references
}
