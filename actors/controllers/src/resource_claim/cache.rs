//! The known objects with their indexes, and what the controller remembers of its own calls and of deleted objects.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_model::resource_version::ResourceVersion;
use podwright_model::time::Time;

use super::api::POD_CLAIM_NAME_ANNOTATION;
use super::features::Features;
use super::keys::ObjectKey;
use super::memory::{PendingClaims, Uids};
use super::names::{ClaimEntry, Named};
use super::owners::{Owner, OwnerId, object_key, pod_group_name};
use super::table::{Change, Index, Table, WatchEvent};
use super::unanswered::UnansweredCreates;
use super::written::OwnWrites;
use crate::ports::resource_claims::ListedClaims;

/// What the controller knows. The owner locks it for each event and for each step of a pass, and awaits nothing meanwhile.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub struct Core {
    pub(super) features: Features,
    pub(super) pods: Table<Pod>,
    pub(super) groups: Table<PodGroup>,
    pub(super) claims: Table<ResourceClaim>,
    /// The known claims whose present content cannot be decoded.
    pub(super) undecodable_claims: HashSet<ObjectKey>,
    pub(super) templates: Table<ResourceClaimTemplate>,
    pub(super) pods_by_claim: Index<ObjectKey>,
    pub(super) pods_by_template: Index<ObjectKey>,
    pub(super) pods_by_group: Index<ObjectKey>,
    pub(super) groups_by_claim: Index<ObjectKey>,
    pub(super) groups_by_template: Index<ObjectKey>,
    pub(super) claims_by_owner: Index<OwnerId>,
    /// The UIDs of pods and groups that were deleted.
    pub(super) deleted: Uids,
    pub(super) pending: PendingClaims,
    pub(super) unanswered: UnansweredCreates,
    /// When the watch of claims began the list that runs. The request of that list is sent later.
    pub(super) claims_list_began: Option<Time>,
    pub(super) own_writes: OwnWrites,
}

/// A claim that was generated for a claim of a spec.
#[derive(Debug)]
pub(super) enum Found {
    /// The name of a claim that exists.
    Claim(String),
    /// A claim that may not exist any more, so that a call must read it first.
    Unconfirmed(Arc<ObjectMeta>),
}

impl Core {
    /// A core without objects.
    pub fn new(features: Features) -> Self {
        Core { features, ..Core::default() }
    }

    /// A core of a new term, with the creates of the last term whose results are not known.
    #[must_use]
    pub fn with_unanswered(self, unanswered: UnansweredCreates) -> Self {
        Core { unanswered, ..self }
    }

    /// The creates whose results are not known at the end of the term.
    pub fn unanswered_creates(&self, now: Time) -> UnansweredCreates {
        self.unanswered.at_end_of_term(now)
    }

    /// Whether each watch has completed its first list. No pass may run before.
    pub fn is_synced(&self) -> bool {
        let has_groups = !self.features.pod_groups || self.groups.is_synced();
        self.pods.is_synced() && self.claims.is_synced() && self.templates.is_synced() && has_groups
    }

    /// The known claims.
    pub fn claims(&self) -> impl Iterator<Item = &Arc<ResourceClaim>> {
        self.claims.iter()
    }

    /// The known pods.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.iter()
    }

    /// The events that show the known pods. If their watch lists, these are the beginning of the list.
    pub(crate) fn list_pods(&self) -> Vec<WatchEvent<Pod>> {
        self.pods.list()
    }

    /// The events that show the known claims, like [`list_pods`](Self::list_pods).
    pub(crate) fn list_claims(&self) -> Vec<WatchEvent<ResourceClaim>> {
        self.claims.list()
    }

    /// The events that show the known templates, like [`list_pods`](Self::list_pods).
    pub(crate) fn list_templates(&self) -> Vec<WatchEvent<ResourceClaimTemplate>> {
        self.templates.list()
    }

    /// The events that show the known pod groups, like [`list_pods`](Self::list_pods).
    pub(crate) fn list_pod_groups(&self) -> Vec<WatchEvent<PodGroup>> {
        self.groups.list()
    }

    /// The pod or group, in its newest known state. `None` if it is gone, or was replaced under its name.
    pub(super) fn current(&self, owner: &Owner) -> Option<Owner> {
        let key = owner.key();
        let current = match owner {
            Owner::Pod(_) => Owner::Pod(self.pods.get(&key)?.clone()),
            Owner::PodGroup(_) => Owner::PodGroup(self.groups.get(&key)?.clone()),
        };
        (current.uid() == owner.uid()).then_some(current)
    }

    /// A known claim. `None` while its present content cannot be decoded: no pass may change what it does not know.
    pub(super) fn decoded_claim(&self, key: &ObjectKey) -> Option<&Arc<ResourceClaim>> {
        self.claims.get(key).filter(|_| !self.undecodable_claims.contains(key))
    }

    /// The known group of a pod.
    pub(super) fn group_of(&self, pod: &Pod) -> Option<&Arc<PodGroup>> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        self.groups.get(&ObjectKey::new(namespace, pod_group_name(pod)?))
    }

    /// The claim that was generated for a claim of a spec, known or pending. Prefers a known claim that is not being deleted. A
    /// pending claim with a newer version replaces it, because a watch that lags may show an earlier claim that was deleted since.
    ///
    /// While the result of a create is not known, no claim counts before a call has read it. An earlier claim that was deleted would hide
    /// that the server may still perform the create.
    pub(super) fn generated(&self, owner: &OwnerId, entry: &str, now: Time) -> Option<Found> {
        let known = self.claims_by_owner.get(owner).filter_map(|key| self.claims.get(key)).map(|claim| &claim.metadata);
        let known: Vec<_> = known.filter(|claim| is_of_entry(claim, entry) && !self.pending.is_gone(claim)).collect();
        let kept = known.iter().find(|claim| claim.deletion_timestamp.is_none()).copied();
        let pending = self.pending.of(owner, now).filter(|pending| is_of_entry(&pending.claim, entry));
        let version_of = ResourceVersion::of;
        let newest = pending.max_by_key(|pending| version_of(&pending.claim));
        let newest = newest.filter(|pending| kept.is_none_or(|kept| version_of(kept) < version_of(&pending.claim)));
        let is_settled = self.unanswered.settling(owner, entry, now).is_none();
        let found = newest.map(|pending| &*pending.claim).or(kept).or_else(|| known.first().copied())?;
        if is_settled && newest.is_none_or(|pending| pending.is_trusted(now)) {
            Some(Found::Claim(found.name.clone()?))
        } else {
            Some(Found::Unconfirmed(Arc::new(found.clone())))
        }
    }

    /// Remembers a claim that the server has, unless a watch has shown it.
    pub(super) fn remember(&mut self, owner: OwnerId, claim: ObjectMeta, now: Time) {
        let known = self.claims.get(&object_key(&claim));
        if known.is_none_or(|known| known.metadata.uid != claim.uid) {
            self.pending.insert(owner, claim, now);
        }
    }

    /// A list of a namespace, which was sent at the time `requested` or later, has these claims. Remembers the claims of the pods and groups
    /// whose creates it settles or moves on, like [`remember`](Self::remember).
    pub(super) fn namespace_listed(&mut self, namespace: &str, claims: &ListedClaims, requested: Time, now: Time) {
        let is_of = |claim: &ObjectMeta, owner: &OwnerId| OwnerId::of_claim(claim).as_ref() == Some(owner);
        let has_claim = |owner: &OwnerId, entry: &str| {
            claims.of(&owner.uid).iter().any(|claim| is_of(claim, owner) && is_of_entry(claim, entry))
        };
        for (owner, _) in self.unanswered.listed(Some(namespace), requested, has_claim) {
            let own = claims.of(&owner.uid).iter().filter(|claim| is_of(claim, &owner));
            own.for_each(|claim| self.remember(owner.clone(), claim.clone(), now));
        }
    }

    pub(super) fn pod_changed(&mut self, change: &Change<Pod>) {
        self.pods.commit(change);
        let key = object_key(&change.object().metadata);
        let owners = |pod: Option<&Arc<Pod>>| pod.map(|pod| Owner::Pod(pod.clone()));
        let (old, new) = (owners(change.old()), owners(change.current()));
        self.pods_by_claim.update(&key, claim_keys(old.as_ref()), claim_keys(new.as_ref()));
        self.pods_by_template.update(&key, template_keys(old.as_ref()), template_keys(new.as_ref()));
        let group = |pod: Option<&Arc<Pod>>| Some(ObjectKey::new(&key.namespace, pod_group_name(pod?)?));
        self.pods_by_group.update(&key, group(change.old()), group(change.current()));
        self.owner_changed(old, new);
    }

    pub(super) fn group_changed(&mut self, change: &Change<PodGroup>) {
        self.groups.commit(change);
        let key = object_key(&change.object().metadata);
        let owners = |group: Option<&Arc<PodGroup>>| group.map(|group| Owner::PodGroup(group.clone()));
        let (old, new) = (owners(change.old()), owners(change.current()));
        self.groups_by_claim.update(&key, claim_keys(old.as_ref()), claim_keys(new.as_ref()));
        self.groups_by_template.update(&key, template_keys(old.as_ref()), template_keys(new.as_ref()));
        self.owner_changed(old, new);
    }

    fn owner_changed(&mut self, old: Option<Owner>, new: Option<Owner>) {
        match (old, new) {
            // If a stale list lacked the object, it counts as deleted until an event shows it again.
            (_, Some(new)) => {
                self.deleted.remove(new.uid());
                self.own_writes.shown(&new);
            }
            (Some(old), None) => {
                self.pending.owner_gone(&old.id());
                self.unanswered.owner_gone(&old.id());
                self.own_writes.owner_gone(&old.id());
                if uses_claims(&old) {
                    self.deleted.insert(old.uid());
                }
            }
            (None, None) => {}
        }
    }

    pub(super) fn claim_changed(&mut self, change: &Change<ResourceClaim>) {
        self.claims.commit(change);
        let claim = change.object();
        let owner = |claim: Option<&Arc<ResourceClaim>>| claim.and_then(|claim| OwnerId::of_claim(&claim.metadata));
        let key = object_key(&claim.metadata);
        self.claims_by_owner.update(&key, owner(change.old()), owner(change.current()));
        if change.is_gone() {
            self.pending.claim_gone(&claim.metadata);
        } else {
            self.pending.remove(&claim.metadata);
        }
    }
}

/// Whether a claim was generated for this claim of a spec.
pub(super) fn is_of_entry(claim: &ObjectMeta, entry: &str) -> bool {
    let annotations = claim.annotations.as_ref();
    annotations.and_then(|annotations| annotations.get(POD_CLAIM_NAME_ANNOTATION)).is_some_and(|e| e == entry)
}

/// Whether a pod has claims in its spec or for extended resources, or a group has claims.
pub(super) fn uses_claims(owner: &Owner) -> bool {
    let extended = match owner {
        Owner::Pod(pod) => super::owners::extended_claim(pod).is_some(),
        Owner::PodGroup(_) => false,
    };
    extended || !owner.claims().is_empty()
}

/// The claims of a spec whose names are known.
pub(super) fn claim_keys(owner: Option<&Owner>) -> Vec<ObjectKey> {
    let Some(owner) = owner else { return Vec::new() };
    let (statuses, namespace) = (owner.statuses(), owner.key().namespace);
    let named = |entry: ClaimEntry| match entry.named(&statuses) {
        Ok(Named::Claim { name, .. }) if !name.is_empty() => Some(ObjectKey::new(&namespace, &name)),
        Ok(Named::Claim { .. } | Named::NotNeeded) | Err(_) => None,
    };
    owner.claims().into_iter().filter_map(named).collect()
}

fn template_keys(owner: Option<&Owner>) -> Vec<ObjectKey> {
    let Some(owner) = owner else { return Vec::new() };
    let namespace = owner.key().namespace;
    let templates = owner.claims().into_iter().filter_map(|entry| entry.template);
    templates.map(|template| ObjectKey::new(&namespace, &template)).collect()
}
