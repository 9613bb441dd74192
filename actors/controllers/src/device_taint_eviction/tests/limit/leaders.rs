//! The limit of a rule after a change of the leader, and after a late write of an earlier leader.

use super::*;

/// A new leader after the end of the pods `p1` and `p2`, with this limit.
fn new_leader(old: &World, limit: u64) -> World {
    let settings = Settings { max_evictions_per_rule: NonZeroU64::new(limit), ..Settings::default() };
    let mut new = World::with(settings);
    new.now = old.now;
    new.apply(Change::Rule(old.rule()));
    for number in 3..=5 {
        let (claim, pod) = (format!("c{number}"), format!("p{number}"));
        new.apply(Change::Claim(claim_for(&claim, &pod)));
        new.apply(Change::Pod(pod_of(&pod, &[&claim])));
    }
    new
}

#[test]
fn a_new_leader_respects_the_condition_of_the_former_one() {
    let mut old = limited(2);
    old.run_until(after(60));
    let mut new = new_leader(&old, 2);
    assert_eq!(evicted_and_pending(&mut new), (0, 3));
    continue_to(&mut new, "3");
    assert_eq!(evicted_and_pending(&mut new), (1, 2));
}

#[test]
fn a_new_leader_after_one_of_two_evictions_goes_on_with_one() {
    let mut old = limited(2);
    for number in 2..=5 {
        old.delete(Change::Pod(pod_of(&format!("p{number}"), &[])));
    }
    old.run();
    assert_eq!(old.evicted.len(), 1);
    assert_eq!(evicted_and_pending(&mut new_leader(&old, 2)), (1, 2));
}

/// The leader ends right after its last deletion. Its last write has reserved six evictions.
#[test]
fn a_new_leader_counts_what_a_leader_that_was_killed_had_reserved() {
    let mut old = limited(20);
    old.run();
    assert_eq!(old.evicted.len(), 5);
    assert_eq!(evicted_and_pending(&mut new_leader(&old, 6)), (0, 3));
    old.run_until(after(10));
    assert_eq!(evicted_and_pending(&mut new_leader(&old, 6)), (1, 2), "the exact number is stored at rest");
}

/// Without the permission for the status, each of a row of leaders would otherwise begin with nothing.
#[test]
fn leaders_that_cannot_write_the_status_evict_nothing() {
    let mut old = limited(100);
    for _ in 0..3 {
        old.refuse = Some("status");
        old.refusal = ApiErrorKind::Refused;
        old.run_until(old.now + Duration::from_secs(60));
        assert_eq!(old.evicted.len(), 0);
        old = new_leader(&old, 100);
    }
}

/// The rule was deleted, and made again with the same name.
#[test]
fn a_rule_with_another_uid_has_its_own_number() {
    let mut world = limited(2);
    world.run_until(after(60));
    let mut again = rule();
    again.metadata.uid = Some("another-uid".into());
    world.apply(Change::Rule(again));
    world.run_until(after(120));
    assert_eq!((world.evicted.len(), world.pending().len()), (4, 1));
}

#[test]
fn a_new_leader_goes_on_if_the_limit_was_raised_before() {
    let mut old = limited(2);
    old.run_until(after(60));
    let mut restarted = new_leader(&old, 3);
    assert_eq!(evicted_and_pending(&mut restarted), (1, 2), "the flag was raised");
    continue_to(&mut old, "4");
    let mut new = new_leader(&old, 2);
    assert_eq!(evicted_and_pending(&mut new), (2, 1), "the annotation was raised before the status was written");
}

#[test]
fn a_new_leader_counts_on_while_the_limit_is_not_reached() {
    let mut old = limited(1);
    old.run_until(after(60));
    old.refuse = Some("get");
    continue_to(&mut old, "4");
    old.run_until(after(120));
    assert_eq!(limit_condition(&old).as_deref(), Some("False"));
    let mut new = new_leader(&old, 2);
    continue_to(&mut new, "3");
    assert_eq!(evicted_and_pending(&mut new), (1, 2), "one of three was evicted before, and one more was reserved");
}

#[test]
fn a_condition_without_a_number_stops_a_new_leader() {
    let mut old = limited(2);
    old.run_until(after(60));
    let mut rule = old.rule();
    for condition in rule.status.as_mut().unwrap().conditions.as_mut().unwrap() {
        condition.message = "the limit of 2 evictions is reached".into();
    }
    old.apply(Change::Rule(rule));
    assert_eq!(evicted_and_pending(&mut new_leader(&old, 3)), (0, 3));
}

#[test]
fn the_condition_stays_while_the_rule_is_at_its_limit() {
    let mut world = limited(2);
    world.run_until(after(60));
    let mut rule = world.rule();
    rule.spec.taint.value = Some("other".into());
    rule.metadata.generation = Some(2);
    world.apply(Change::Rule(rule));
    world.run();
    continue_to(&mut world, "1");
    world.run_until(after(120));
    assert_eq!(limit_condition(&world).as_deref(), Some("True"), "changes that do not raise the limit");
    let mut changed = world.rule();
    changed.metadata.generation = Some(3);
    world.apply(Change::Rule(changed));
    assert_eq!(evicted_and_pending(&mut new_leader(&world, 2)), (0, 3), "the condition is of an earlier generation");
    for number in 1..=5 {
        world.delete(Change::Pod(pod_of(&format!("p{number}"), &[])));
    }
    world.run_until(after(180));
    assert_eq!((world.pending().len(), limit_condition(&world).as_deref()), (0, Some("True")), "no pod is left");
    continue_to(&mut world, "3");
    world.run_until(after(240));
    assert_eq!(limit_condition(&world).as_deref(), Some("False"));
}

/// The earlier leader has evicted two pods. Its write of the status reaches the server after the new leader has read the rule.
#[test]
fn a_late_write_of_the_former_leader_counts_for_the_limit() {
    let mut old = limited(2);
    old.run_until(after(60));
    let mut new = limited(2);
    new.now = old.now;
    new.apply(Change::Rule(old.rule()));
    assert_eq!(evicted_and_pending(&mut new), (0, 5));
    assert_eq!(limit_condition(&new).as_deref(), Some("True"));
    continue_to(&mut new, "3");
    assert_eq!(evicted_and_pending(&mut new), (1, 4));

    let mut working = limited(3);
    working.now = old.now;
    working.during = Some(("delete p1", Change::Rule(old.rule())));
    assert_eq!(evicted_and_pending(&mut working), (1, 4), "its own eviction is the third");
    let last = working.calls().pop().unwrap();
    assert!(last.contains("3 evictions counted; the limit of 3 evictions is reached"), "{last}");

    let mut patching = limited(2);
    patching.now = old.now;
    patching.during = Some(("patch p1", Change::Rule(old.rule())));
    assert_eq!(evicted_and_pending(&mut patching), (0, 5), "the pod with a slot is not deleted yet");
}

#[test]
fn a_late_write_counts_also_if_the_watch_shows_it_together_with_another_spec() {
    let mut old = limited(2);
    old.run_until(after(60));
    let mut rule = old.rule();
    rule.spec.taint.value = Some("other".into());
    rule.metadata.generation = Some(2);
    let mut new = limited(2);
    new.now = old.now;
    new.apply(Change::Rule(rule));
    assert_eq!(evicted_and_pending(&mut new), (0, 5));
}

#[test]
fn an_older_write_of_the_leader_itself_does_not_count_again() {
    let mut world = limited(2);
    world.run_until(after(60));
    let shown = world.rule();
    continue_to(&mut world, "3");
    world.run_until(after(120));
    world.apply(Change::Rule(shown));
    continue_to(&mut world, "4");
    assert_eq!(evicted_and_pending(&mut world), (4, 1));
}

#[test]
fn a_late_condition_of_a_lower_limit_is_corrected() {
    let mut old = limited(2);
    old.run_until(after(60));
    let late = old.rule().status.unwrap().conditions.unwrap().pop().unwrap();
    assert_eq!(late.type_, LIMIT_CONDITION);
    let without_number = "the limit of 2 evictions is reached";
    let cases =
        [late.message.as_str(), without_number].map(|message| [(0, message, None), (5, message, Some("False"))]);
    for (limit, message, expected) in cases.into_iter().flatten() {
        let settings = Settings { max_evictions_per_rule: NonZeroU64::new(limit), ..Settings::default() };
        let mut new = World::with(settings);
        new.apply(Change::Rule(rule()));
        new.run_until(after(60));
        assert_eq!(limit_condition(&new), None);
        let mut shown = new.rule();
        let mut late = late.clone();
        late.message = message.to_owned();
        shown.status.as_mut().unwrap().conditions.as_mut().unwrap().push(late);
        new.apply(Change::Rule(shown));
        new.run_until(after(70));
        assert_eq!(limit_condition(&new).as_deref(), expected, "the limit {limit} and the message {message:?}");
        new.calls();
        new.run_until(after(3600));
        assert_eq!((new.calls(), new.queue.len()), (vec![], 0), "its own write is no change of another writer");
    }
}
