//! What the controller remembers because the watches have not shown it yet, or will not show it again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_model::time::Time;

use crate::owners::{OwnerId, object_key};
use crate::ports::resource_claims::ObjectKey;
use crate::table::Index;

/// The number of UIDs of deleted objects that are remembered, as in upstream.
const UIDS: usize = 500;
/// If the watch has not shown a created claim for this time, a call reads the claim from the server.
const TRUSTED: Duration = Duration::from_secs(30);
/// A created claim no longer counts after this time.
const LONGEST: Duration = Duration::from_secs(3600);
/// The shortest time between two searches for claims to forget.
const SWEEP_PERIOD: Duration = Duration::from_secs(60);

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

    /// Whether the UID is known. It does not count as used.
    fn peek(&self, uid: &str) -> bool {
        self.used.contains_key(uid)
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
    pub(super) claim: Arc<ObjectMeta>,
    owner: OwnerId,
    created: Time,
    /// When the server was last known to have the claim. `None` after a list that did not show it.
    confirmed: Option<Time>,
}

impl PendingClaim {
    /// Whether the claim was created or confirmed so recently that it counts as existing.
    pub(super) fn is_trusted(&self, now: Time) -> bool {
        self.confirmed.is_some_and(|confirmed| now.since(confirmed) <= TRUSTED)
    }

    fn is_too_old(&self, now: Time) -> bool {
        now.since(self.created) > LONGEST
    }
}

/// The claims that were created, and that the watch has not shown. Their number has no limit. A claim is forgotten when the watch
/// shows it or the deletion of its owner. After an hour it no longer counts, and a later [`insert`](Self::insert) drops it.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingClaims {
    /// Changed only by [`set`](Self::set), which also updates the index.
    claims: BTreeMap<ObjectKey, PendingClaim>,
    by_owner: Index<OwnerId>,
    /// When the claims that are too old were dropped last.
    swept: Time,
    /// The UIDs of claims that are gone. The answer to a create may come after that, and the watch may show the claim after that.
    gone: Uids,
}

impl PendingClaims {
    /// Remembers a claim that the watch does not show. A claim of the same name that was remembered before is replaced.
    pub(super) fn insert(&mut self, owner: OwnerId, claim: ObjectMeta, now: Time) {
        self.sweep(now);
        if self.gone.contains(claim.uid.as_deref().unwrap_or_default()) {
            return;
        }
        let key = object_key(&claim);
        let pending = PendingClaim { claim: Arc::new(claim), owner, created: now, confirmed: Some(now) };
        self.set(&key, Some(pending));
    }

    /// The remembered claims of an owner.
    pub(super) fn of<'a>(&'a self, owner: &OwnerId, now: Time) -> impl Iterator<Item = &'a PendingClaim> {
        let claims = self.by_owner.get(owner).filter_map(|key| self.claims.get(key));
        claims.filter(move |pending| !pending.is_too_old(now))
    }

    /// The server still has the claim.
    pub(super) fn confirm(&mut self, claim: &ObjectMeta, now: Time) {
        let known = self.claims.get_mut(&object_key(claim)).filter(|pending| pending.claim.uid == claim.uid);
        if let Some(pending) = known {
            pending.confirmed = Some(now);
        }
    }

    /// A list did not show these claims: they are new, or they are gone and no watch will show that. Returns them.
    pub(super) fn distrust(&mut self) -> impl Iterator<Item = &PendingClaim> {
        self.claims.values_mut().map(|pending| {
            pending.confirmed = None;
            &*pending
        })
    }

    /// The watch shows the claim.
    pub(super) fn remove(&mut self, claim: &ObjectMeta) {
        let key = object_key(claim);
        if self.claims.get(&key).is_some_and(|pending| pending.claim.uid == claim.uid) {
            self.set(&key, None);
        }
    }

    /// The watch has shown the deletion of the claim, or the server does not have it.
    pub(super) fn claim_gone(&mut self, claim: &ObjectMeta) {
        self.remove(claim);
        self.gone.insert(claim.uid.as_deref().unwrap_or_default());
    }

    /// Whether the claim is one of those that are known to be gone.
    pub(super) fn is_gone(&self, claim: &ObjectMeta) -> bool {
        self.gone.peek(claim.uid.as_deref().unwrap_or_default())
    }

    /// The owner is gone.
    pub(super) fn owner_gone(&mut self, owner: &OwnerId) {
        let keys: Vec<_> = self.by_owner.get(owner).cloned().collect();
        keys.iter().for_each(|key| self.set(key, None));
    }

    /// Drops the claims that are too old, at most once in [`SWEEP_PERIOD`].
    fn sweep(&mut self, now: Time) {
        if now.since(self.swept) < SWEEP_PERIOD {
            return;
        }
        self.swept = now;
        let old = self.claims.iter().filter(|(_, pending)| pending.is_too_old(now));
        let keys: Vec<_> = old.map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.set(key, None));
    }

    fn set(&mut self, key: &ObjectKey, new: Option<PendingClaim>) {
        let owner = |pending: Option<&PendingClaim>| pending.map(|pending| pending.owner.clone());
        let of_new = owner(new.as_ref());
        let old = match new {
            Some(new) => self.claims.insert(key.clone(), new),
            None => self.claims.remove(key),
        };
        self.by_owner.update(key, owner(old.as_ref()), of_new);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.claims.len()
    }
}
