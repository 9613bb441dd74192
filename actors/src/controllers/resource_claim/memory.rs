//! What the controller remembers because the watches have not shown it yet, or will not show it again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;

use super::owners::OwnerId;
use crate::time::Time;

/// The number of UIDs of deleted objects that are remembered, as in upstream.
const UIDS: usize = 500;
/// If the watch has not shown a created claim for this time, a call reads the claim from the server.
const TRUSTED: Duration = Duration::from_secs(30);
/// A created claim is forgotten after this time.
const LONGEST: Duration = Duration::from_secs(3600);

/// The UIDs of the objects that were deleted last. The least recently used one is forgotten first.
#[derive(Clone, Default)]
pub(super) struct Uids {
    used: BTreeMap<String, u64>,
    order: BTreeMap<u64, String>,
    next: u64,
}

/// Prints the UIDs, the least recently used one first.
impl fmt::Debug for Uids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.order.values()).finish()
    }
}

impl Uids {
    pub(super) fn insert(&mut self, uid: &str) {
        self.remove(uid);
        self.next += 1;
        self.used.insert(uid.to_owned(), self.next);
        self.order.insert(self.next, uid.to_owned());
        if self.used.len() > UIDS
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.used.remove(&oldest);
        }
    }

    /// Whether the UID is known. It counts as used.
    pub(super) fn contains(&mut self, uid: &str) -> bool {
        let is_known = self.used.contains_key(uid);
        if is_known {
            self.insert(uid);
        }
        is_known
    }

    pub(super) fn remove(&mut self, uid: &str) {
        if let Some(number) = self.used.remove(uid) {
            self.order.remove(&number);
        }
    }
}

/// A claim that was created, and that the watch has not shown.
#[derive(Clone, Debug)]
pub(super) struct PendingClaim {
    pub(super) claim: Arc<ResourceClaim>,
    created: Time,
    /// When the server was last known to have the claim. `None` after a list that did not show it.
    confirmed: Option<Time>,
}

impl PendingClaim {
    pub(super) fn uid(&self) -> &str {
        self.claim.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Whether the claim was created or confirmed so recently that it counts as existing.
    pub(super) fn is_trusted(&self, now: Time) -> bool {
        self.confirmed.is_some_and(|confirmed| now.since(confirmed) <= TRUSTED)
    }
}

/// The claims that were created, and that the watch has not shown. Their number has no limit. A claim is forgotten when the watch
/// shows it or the deletion of its owner, and at the latest after an hour.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingClaims {
    /// For each owner its claims by UID.
    owners: BTreeMap<OwnerId, BTreeMap<String, PendingClaim>>,
    owner_of: BTreeMap<String, OwnerId>,
    /// The claims in the order of their age.
    ages: BTreeSet<(Time, String)>,
    /// The UIDs of claims that the watch has shown as deleted. The answer to a create may come after that.
    gone: Uids,
}

impl PendingClaims {
    /// Remembers a claim that the watch does not show.
    pub(super) fn insert(&mut self, owner: OwnerId, claim: ResourceClaim, now: Time) {
        while let Some((created, uid)) = self.ages.first()
            && now.since(*created) > LONGEST
        {
            let oldest = uid.clone();
            self.remove(&oldest);
        }
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        if self.gone.contains(&uid) {
            return;
        }
        let pending = PendingClaim { claim: Arc::new(claim), created: now, confirmed: Some(now) };
        self.ages.insert((now, uid.clone()));
        self.owner_of.insert(uid.clone(), owner.clone());
        self.owners.entry(owner).or_default().insert(uid, pending);
    }

    /// The remembered claims of an owner.
    pub(super) fn of<'a>(&'a self, owner: &OwnerId, now: Time) -> impl Iterator<Item = &'a PendingClaim> {
        let claims = self.owners.get(owner).into_iter().flat_map(BTreeMap::values);
        claims.filter(move |pending| now.since(pending.created) <= LONGEST)
    }

    /// The server still has the claim.
    pub(super) fn confirm(&mut self, uid: &str, now: Time) {
        let claims = self.owner_of.get(uid).and_then(|owner| self.owners.get_mut(owner));
        if let Some(pending) = claims.and_then(|claims| claims.get_mut(uid)) {
            pending.confirmed = Some(now);
        }
    }

    /// A list did not show these claims: they are new, or they are gone and no watch will show that. Returns them.
    pub(super) fn distrust(&mut self) -> impl Iterator<Item = &PendingClaim> {
        self.owners.values_mut().flat_map(BTreeMap::values_mut).map(|pending| {
            pending.confirmed = None;
            &*pending
        })
    }

    /// The watch shows the claim, or the server does not have it.
    pub(super) fn remove(&mut self, uid: &str) {
        let Some(owner) = self.owner_of.remove(uid) else { return };
        if let Some(claims) = self.owners.get_mut(&owner) {
            if let Some(claim) = claims.remove(uid) {
                self.ages.remove(&(claim.created, uid.to_owned()));
            }
            if claims.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }

    /// The watch has shown the deletion of the claim.
    pub(super) fn claim_gone(&mut self, uid: &str) {
        self.remove(uid);
        self.gone.insert(uid);
    }

    /// The owner is gone.
    pub(super) fn owner_gone(&mut self, owner: &OwnerId) {
        for (uid, claim) in self.owners.remove(owner).into_iter().flatten() {
            self.owner_of.remove(&uid);
            self.ages.remove(&(claim.created, uid));
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.owner_of.len().max(self.ages.len())
    }
}
