//! Claims that were created, and that the watch has not shown.

use std::time::Duration;

use super::*;
use crate::resource_claim::memory::PendingClaims;

const T0: Time = Time::from_secs(1_000);

fn after(seconds: u64) -> Time {
    T0 + Duration::from_secs(seconds)
}

/// A claim is remembered from the answer to its create, and from each list that shows it. In an earlier version, the age of the first
/// memory stayed, and the next create more than an hour later looped for ever.
#[test]
fn claim_that_is_remembered_twice_is_forgotten_as_a_whole() {
    let owner = pod_owner(&pod("p", &[("res", "tpl")]));
    let (first, second) = (generated("p-res-1", &owner).metadata, generated("p-res-2", &owner).metadata);
    let mut pending = PendingClaims::default();
    pending.insert(owner.id(), first.clone(), T0);
    pending.insert(owner.id(), first.clone(), after(1));
    assert_eq!(pending.of(&owner.id(), after(1)).count(), 1);

    pending.remove(&first);
    assert_eq!(pending.len(), 0);
    pending.insert(owner.id(), second, after(3_700));
    assert_eq!(pending.of(&owner.id(), after(3_700)).count(), 1);
}

#[test]
fn claim_that_no_watch_shows_is_forgotten_after_an_hour() {
    let owner = pod_owner(&pod("p", &[("res", "tpl")]));
    let mut pending = PendingClaims::default();
    pending.insert(owner.id(), generated("p-res-1", &owner).metadata, T0);
    assert_eq!(pending.of(&owner.id(), after(3_600)).count(), 1);
    assert_eq!(pending.of(&owner.id(), after(3_601)).count(), 0);
    pending.insert(owner.id(), generated("p-res-2", &owner).metadata, after(3_601));
    assert_eq!(pending.len(), 1, "the old claim uses no memory");
}

/// A claim of the same name with another UID is another claim: what the watch shows of the old one does not concern the new one.
#[test]
fn claim_of_the_same_name_replaces_the_remembered_one() {
    let owner = pod_owner(&pod("p", &[("res", "tpl")]));
    let old = generated("p-res-1", &owner).metadata;
    let mut new = old.clone();
    new.uid = Some("another".to_owned());
    let mut pending = PendingClaims::default();
    pending.insert(owner.id(), old.clone(), T0);
    pending.insert(owner.id(), new.clone(), T0);
    pending.claim_gone(&old);
    let uids: Vec<_> = pending.of(&owner.id(), T0).map(|pending| pending.claim.uid.as_deref()).collect();
    assert_eq!(uids, [Some("another")]);
    pending.owner_gone(&owner.id());
    assert_eq!(pending.len(), 0);
    // The answer to the create comes after the watch has shown the deletion.
    pending.insert(owner.id(), old, T0);
    assert_eq!(pending.len(), 0);
}
