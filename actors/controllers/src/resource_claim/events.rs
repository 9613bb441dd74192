//! From the events of watches to the items of the queue. Known objects and indexes are updated first, so a pass finds what an event
//! announced.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use podwright_model::time::Time;

use super::api::StatusEntry;
use super::cache::{Core, claim_keys, is_of_entry, uses_claims};
use super::keys::{Key, ObjectKey};
use super::names::{ClaimEntry, NameError, Named};
use super::owners::{AllowedWork, Owner, OwnerId, extended_claim, is_done, node_name, object_key, owner_key};
use super::ownership::{
    BindTarget, NotOwned, belongs_to_group, belongs_to_pod, bind_target, is_allocated, is_reservable,
    is_reserved_for_pod,
};
use super::table::{Change, WatchEvent};

impl Core {
    /// Takes an event of a pod, and returns the items that need work, in their order.
    #[must_use]
    pub fn pod_event(&mut self, event: WatchEvent<Pod>) -> Vec<Key> {
        let mut keys = Vec::new();
        let is_listed = matches!(event, WatchEvent::InitDone);
        for change in self.pods.changes(event) {
            self.pod_changed(&change);
            let owner = Owner::Pod(change.object().clone());
            if !uses_claims(&owner) {
                continue;
            }
            if change.is_gone() || is_done(change.object()) {
                self.add_claims(&owner, &mut keys);
            }
            if !change.is_gone() {
                self.add_pod(change.object(), &mut keys);
            }
        }
        if is_listed {
            self.add_claims_of_unknown_consumers(&mut keys);
        }
        distinct(keys)
    }

    /// Takes an event of a pod group, and returns the items that need work. Without the feature, groups are ignored.
    #[must_use]
    pub fn pod_group_event(&mut self, event: WatchEvent<PodGroup>) -> Vec<Key> {
        let mut keys = Vec::new();
        if !self.features.pod_groups {
            return keys;
        }
        let is_listed = matches!(event, WatchEvent::InitDone);
        for change in self.groups.changes(event) {
            self.group_changed(&change);
            let group = change.object();
            let owner = Owner::PodGroup(group.clone());
            if change.is_gone() {
                self.add_claims(&owner, &mut keys);
            } else {
                self.add_group(group, &mut keys);
            }
            // The status of the group has the names of claims that its pods wait for.
            self.add_pods(self.pods_by_group.get(&object_key(&group.metadata)), &mut keys);
        }
        if is_listed {
            self.add_claims_of_unknown_consumers(&mut keys);
        }
        distinct(keys)
    }

    /// Takes an event of a claim, and returns the items that need work. `now` is the time of the event: the watch sends the request of a
    /// list after the event that begins the list.
    #[must_use]
    pub fn claim_event(&mut self, event: WatchEvent<ResourceClaim>, now: Time) -> Vec<Key> {
        let mut keys = Vec::new();
        let is_listed = matches!(event, WatchEvent::InitDone);
        if matches!(event, WatchEvent::Init) {
            self.claims_list_began = Some(now);
        }
        if let Some(claim) = event.object() {
            self.undecodable_claims.remove(&object_key(&claim.metadata));
        }
        let undecodable = match &event {
            WatchEvent::Undecodable { object, is_deleted: false } => Some(object_key(&object.metadata)),
            _ => None,
        };
        let event = match event {
            // A claim that exists keeps its owner from getting another one, whatever it contains.
            WatchEvent::Undecodable { object, is_deleted: false } if !self.claims.knows(&object) => {
                WatchEvent::InitApply(object)
            }
            event => event,
        };
        for change in self.claims.changes(event) {
            self.claim_changed(&change);
            let claim = object_key(&change.object().metadata);
            if change.is_gone() {
                self.undecodable_claims.remove(&claim);
            } else {
                keys.push(Key::Claim(claim.clone()));
            }
            self.add_pods(self.pods_by_claim.get(&claim), &mut keys);
            self.add_groups(self.groups_by_claim.get(&claim), &mut keys);
            if let Change::Added(claim) = &change
                && let Some(Key::Pod(pod)) = owner_key(&claim.metadata)
            {
                // No pass of a pod that is being deleted waits for its claim.
                let known = self.pods.get(&pod).filter(|pod| pod.metadata.deletion_timestamp.is_some());
                self.add_pods(known.map(|_| &pod).into_iter(), &mut keys);
            }
        }
        self.undecodable_claims.extend(undecodable);
        if is_listed {
            keys.extend(self.claims_listed());
        }
        distinct(keys)
    }

    /// The watch has listed all claims. Returns the pods and groups that wait for what the list has shown.
    fn claims_listed(&mut self) -> Vec<Key> {
        let mut owners: Vec<_> = self.pending.distrust().filter_map(|pending| owner_key(&pending.claim)).collect();
        if let Some(began) = self.claims_list_began.take() {
            let has_claim = |owner: &OwnerId, entry: &str| {
                let mut known = self.claims_by_owner.get(owner).filter_map(|key| self.claims.get(key));
                known.any(|claim| is_of_entry(&claim.metadata, entry))
            };
            let waiting = self.unanswered.listed(None, began, has_claim).into_iter();
            owners.extend(waiting.map(|(id, owner)| Key::of_owner(id.kind, owner)));
        }
        owners.sort_unstable();
        owners
    }

    /// Takes an event of a template, and returns the items that need work.
    #[must_use]
    pub fn template_event(&mut self, event: WatchEvent<ResourceClaimTemplate>) -> Vec<Key> {
        let mut keys = Vec::new();
        for change in self.templates.changes(event) {
            self.templates.commit(&change);
            if change.is_gone() {
                continue;
            }
            let template = object_key(&change.object().metadata);
            self.add_pods(self.pods_by_template.get(&template), &mut keys);
            self.add_groups(self.groups_by_template.get(&template), &mut keys);
        }
        distinct(keys)
    }

    /// All claims, and all pods and groups that need work: the items of a controller that has become the leader. Sorted, so that the
    /// same events always give the same order.
    #[must_use]
    pub fn all_keys(&self) -> Vec<Key> {
        let claims = self.claims.iter().map(|claim| Key::Claim(object_key(&claim.metadata)));
        let mut keys: Vec<_> = claims.collect();
        self.pods.iter().for_each(|pod| self.add_pod(pod, &mut keys));
        self.groups.iter().for_each(|group| self.add_group(group, &mut keys));
        keys.sort_unstable();
        keys
    }

    fn add_pods<'a>(&'a self, pods: impl Iterator<Item = &'a ObjectKey>, keys: &mut Vec<Key>) {
        for pod in pods.filter_map(|key| self.pods.get(key)) {
            if is_done(pod) {
                self.add_claims(&Owner::Pod(pod.clone()), keys);
            }
            self.add_pod(pod, keys);
        }
    }

    fn add_groups<'a>(&'a self, groups: impl Iterator<Item = &'a ObjectKey>, keys: &mut Vec<Key>) {
        for group in groups.filter_map(|key| self.groups.get(key)) {
            self.add_group(group, keys);
            // Even if the group needs nothing, a pod may wait for its claim.
            self.add_pods(self.pods_by_group.get(&object_key(&group.metadata)), keys);
        }
    }

    /// Adds the claims of an object that no longer needs them.
    fn add_claims(&self, owner: &Owner, keys: &mut Vec<Key>) {
        let namespace = owner.key().namespace;
        claim_keys(Some(owner)).into_iter().for_each(|claim| keys.push(Key::Claim(claim)));
        // The last known status may be older than the claims.
        self.claims_by_owner.get(&owner.id()).for_each(|claim| keys.push(Key::Claim(claim.clone())));
        if let Owner::Pod(pod) = owner
            && let Some(claim) = extended_claim(pod).filter(|name| !name.is_empty())
        {
            keys.push(Key::Claim(ObjectKey::new(&namespace, claim)));
        }
    }

    /// Adds the claims with consumers that no watch shows. Such a consumer may have been created and deleted between a lookup and a list.
    fn add_claims_of_unknown_consumers(&self, keys: &mut Vec<Key>) {
        let begin = keys.len();
        for claim in self.claims.iter() {
            let key = object_key(&claim.metadata);
            let consumers = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
            let is_unknown = |consumer: &ResourceClaimConsumerReference| {
                let name = ObjectKey::new(&key.namespace, &consumer.name);
                let pod = self.pods.get(&name).and_then(|pod| pod.metadata.uid.as_ref());
                let group = self.groups.get(&name).and_then(|group| group.metadata.uid.as_ref());
                pod != Some(&consumer.uid) && group != Some(&consumer.uid)
            };
            if consumers.into_iter().any(is_unknown) {
                keys.push(Key::Claim(key.clone()));
            }
        }
        keys[begin..].sort_unstable();
    }

    fn add_pod(&self, pod: &Arc<Pod>, keys: &mut Vec<Key>) {
        let owner = Owner::Pod(pod.clone());
        let (work, statuses) = (owner.allowed_work(), owner.statuses());
        let needs = |entry: &ClaimEntry| match (work, entry.named(&statuses)) {
            (AllowedWork::All, named) => self.pod_claim_needs_work(pod, entry, named),
            (AllowedWork::Record, named) => matches!(named, Err(NameError::NotCreated(_))),
            (AllowedWork::Nothing, _) => false,
        };
        if owner.claims().iter().any(needs) {
            keys.push(owner.work_key());
        }
    }

    /// Whether a pass for the pod may do something for one of its claims.
    fn pod_claim_needs_work(&self, pod: &Pod, entry: &ClaimEntry, named: Result<Named, NameError>) -> bool {
        let (name, is_generated) = match named {
            Err(_) => return true,
            Ok(Named::NotNeeded) => return false,
            Ok(Named::Claim { name, is_generated }) => (name, is_generated),
        };
        let key = ObjectKey::new(pod.metadata.namespace.as_deref().unwrap_or_default(), &name);
        let Some(claim) = self.claims.get(&key) else {
            // A user creates a claim that has no template. The pass of a group makes the claims of the group, whose status has the name.
            let group = self.group_of(pod);
            return is_generated
                && match (bind_target(pod, group.map(|group| &**group), entry, self.features), group) {
                    (Ok(BindTarget::PodGroup), Some(group)) => {
                        let is_new =
                            |s: &StatusEntry| s.name == entry.name && s.claim.as_ref().is_some_and(|c| *c != name);
                        Owner::PodGroup(group.clone()).statuses().iter().any(is_new)
                    }
                    (Ok(BindTarget::Pod | BindTarget::PodGroup) | Err(_), _) => true,
                };
        };
        if is_generated && belongs_to_pod(claim, pod, self.features).is_err() {
            return false;
        }
        node_name(pod).is_some()
            && is_allocated(claim)
            && !is_reserved_for_pod(claim, pod, self.features)
            && is_reservable(claim)
            && !self.undecodable_claims.contains(&key)
    }

    fn add_group(&self, group: &Arc<PodGroup>, keys: &mut Vec<Key>) {
        let owner = Owner::PodGroup(group.clone());
        let (statuses, namespace) = (owner.statuses(), owner.key().namespace);
        let needs = |entry: &ClaimEntry| match entry.named(&statuses) {
            Err(_) => true,
            Ok(Named::Claim { name, is_generated: true }) => {
                self.claims.get(&ObjectKey::new(&namespace, &name)).is_none()
            }
            Ok(Named::Claim { .. } | Named::NotNeeded) => false,
        };
        if owner.allowed_work() == AllowedWork::All && owner.claims().iter().any(needs) {
            keys.push(owner.work_key());
        }
    }

    /// Whether a known claim may be used by a pod or group.
    pub(super) fn belongs_to(&self, claim: &ResourceClaim, owner: &Owner) -> Result<(), NotOwned> {
        match owner {
            Owner::Pod(pod) => belongs_to_pod(claim, pod, self.features),
            Owner::PodGroup(group) => belongs_to_group(claim, group),
        }
    }
}

/// Removes repeated keys. The first occurrence of each key stays in its order.
fn distinct(mut keys: Vec<Key>) -> Vec<Key> {
    let mut seen = HashSet::new();
    keys.retain(|key| seen.insert(key.clone()));
    keys
}
