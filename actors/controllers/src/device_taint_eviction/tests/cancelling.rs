//! Evictions that are cancelled, and pods that others delete or replace.

use super::*;

fn pending() -> World {
    let claim = tolerating(claim(), &[for_seconds(60)]);
    let mut world = World::after([Change::Slice(tainted_slice()), Change::Claim(claim), Change::Pod(pod())]);
    world.run_until(after(5));
    assert_eq!(world.pending(), [("p".into(), after(60))]);
    world
}

/// The pod stays, with one event.
fn assert_cancelled(mut world: World) {
    assert_eq!(world.pending(), []);
    world.run_until(after(7200));
    assert_eq!((world.calls(), world.events()), (vec![], vec!["p: Cancelling deletion".to_owned()]));
}

/// TAINT-S32.
#[test]
fn a_taint_that_goes_cancels_the_eviction() {
    let mut world = pending();
    world.apply(Change::Slice(slice()));
    assert_cancelled(world);
}

/// TAINT-S33.
#[test]
fn an_effect_that_becomes_no_schedule_cancels_the_eviction() {
    let mut world = pending();
    world.apply(Change::Slice(slice_with(vec![taint("t", "v", "NoSchedule")])));
    assert_cancelled(world);
}

/// TAINT-S34.
#[test]
fn a_slice_that_goes_cancels_the_eviction() {
    let mut world = pending();
    world.delete(Change::Slice(tainted_slice()));
    assert_cancelled(world);
}

#[test]
fn a_claim_that_goes_or_loses_its_allocation_or_consumer_cancels_the_eviction() {
    let mut world = pending();
    world.delete(Change::Claim(claim()));
    assert_cancelled(world);
    for claim in [without_allocation(claim()), claim_of("c", &["i"], &[])] {
        let mut world = pending();
        world.apply(Change::Claim(claim));
        assert_cancelled(world);
    }
}

#[test]
fn a_rule_that_goes_or_gets_another_effect_or_selector_cancels_the_eviction() {
    let elsewhere = rule_with("NoExecute", serde_json::json!({ "driver": "another" }));
    for changed in [Some(rule_of("None")), Some(elsewhere), None] {
        let claim = tolerating(claim(), &[for_seconds(60)]);
        let mut world = World::after([Change::Rule(rule()), Change::Claim(claim), Change::Pod(pod())]);
        world.run_until(after(5));
        assert_eq!(world.pending(), [("p".into(), after(60))]);
        match changed {
            Some(changed) => world.apply(Change::Rule(changed)),
            None => world.delete(Change::Rule(rule())),
        }
        assert_eq!(world.pending(), []);
        world.run_until(after(7200));
        assert_eq!((world.events(), world.evicted.len()), (vec!["p: Cancelling deletion".to_owned()], 0));
    }
}

#[test]
fn a_slice_that_is_published_again_with_its_taints_changes_nothing() {
    let mut world = pending();
    let mut again = tainted_slice();
    again.spec.pool.generation = 2;
    let devices = again.spec.devices.as_mut().unwrap();
    let mut another = devices[0].clone();
    another.name = "another".into();
    devices.push(another);
    world.core.slice_event(crate::resource_claim::WatchEvent::Apply(again.into()), world.now);
    assert_eq!(world.core.marked_pods(), 0);
    world.run_until(after(60));
    assert_eq!((world.events(), world.evicted.len()), (vec!["p: Marking for deletion".to_owned()], 1));
}

#[test]
fn a_taint_that_another_slice_publishes_has_another_reason_and_the_same_eviction() {
    let mut world = pending();
    let mut other = tainted_slice();
    other.metadata.name = Some("s2".into());
    world.apply(Change::Slice(other));
    world.delete(Change::Slice(tainted_slice()));
    assert_eq!(world.claim_eviction(), Some((after(60), vec!["slice s2 i 0".to_owned()])));
    world.run_until(after(7200));
    assert_eq!(world.calls(), ["get p", "patch p", "delete p"]);
    assert_eq!(world.events(), ["p: Marking for deletion"]);
}

#[test]
fn a_taint_that_returns_evicts_again() {
    let mut world = pending();
    world.apply(Change::Slice(slice()));
    world.run_until(after(10));
    world.apply(Change::Slice(tainted_slice()));
    world.run_until(after(60));
    assert_eq!(world.calls(), ["get p", "patch p", "delete p"]);
    assert_eq!(world.events(), ["p: Cancelling deletion", "p: Marking for deletion"]);
}

#[test]
fn a_taint_that_is_lifted_and_re_added_before_the_evaluation_changes_nothing() {
    let mut world = pending();
    for slice in [slice(), tainted_slice()] {
        world.core.slice_event(crate::resource_claim::WatchEvent::Apply(slice.into()), world.now);
    }
    world.evaluate();
    assert_eq!(world.events(), Vec::<String>::new());
    world.run_until(after(60));
    assert_eq!(world.evicted.len(), 1);
}

/// TAINT-S35.
#[test]
fn a_pod_that_its_user_deletes_costs_no_call_and_no_event() {
    let mut world = pending();
    world.delete(Change::Pod(pod()));
    world.run_until(after(7200));
    assert_eq!((world.calls(), world.events(), world.evicted.len()), (vec![], vec![], 0));
}

#[test]
fn a_pod_that_is_being_deleted_is_not_pending_and_gets_no_event() {
    let mut world = pending();
    let mut deleted = pod();
    deleted.metadata.deletion_timestamp = Some(world.now.to_api());
    world.apply(Change::Pod(deleted));
    world.run_until(after(7200));
    assert_eq!((world.pending(), world.calls(), world.events()), (vec![], vec![], vec![]));
}

#[test]
fn a_cancel_at_each_step_of_the_pass_stops_it() {
    const STEPS: [&str; 3] = ["get p", "patch p", "delete p"];
    for cancelled in [slice(), slice_with(vec![taint("t", "v", "NoSchedule")])] {
        for (at, call) in STEPS.into_iter().enumerate() {
            let mut world = pending();
            // Without the cancellation, the controller would try again.
            world.refuse = Some("delete");
            world.during = Some((call, Change::Slice(cancelled.clone())));
            world.run_until(after(7200));
            assert_eq!(world.calls(), STEPS[..=at]);
            assert_eq!(world.evicted, []);
            assert_eq!(world.events().last().map(String::as_str), Some("p: Cancelling deletion"));
        }
    }
}

#[test]
fn a_cancel_during_a_deletion_that_the_server_performs_is_too_late() {
    for cancelled in [slice(), slice_with(vec![taint("t", "v", "NoSchedule")])] {
        let mut world = pending();
        world.during = Some(("delete p", Change::Slice(cancelled)));
        world.run_until(after(7200));
        assert_eq!(world.calls(), ["get p", "patch p", "delete p"]);
        assert_eq!((world.evicted.len(), world.pending(), world.queue.len()), (1, vec![], 0));
    }
}

#[test]
fn a_later_time_at_each_step_of_the_pass_delays_it() {
    for call in ["get", "patch"] {
        let mut world = pending();
        let later = tolerating(claim_for("c", "p"), &[for_seconds(100)]);
        world.during = Some((call, Change::Claim(later)));
        world.run_until(after(99));
        assert_eq!(world.evicted, []);
        world.run_until(after(100));
        assert_eq!(world.evicted.len(), 1);
    }
}

#[test]
fn a_pod_that_replaces_another_under_its_name_is_not_deleted_for_it() {
    let mut replacement = pod();
    replacement.metadata.uid = Some("new-uid".into());
    for call in ["get", "patch", "delete"] {
        let mut world = pending();
        world.during = Some((call, Change::Pod(replacement.clone())));
        world.run_until(after(7200));
        assert_eq!(world.evicted, [], "during {call}");
        assert_eq!(world.pending(), []);
        assert!(world.queue.is_empty(), "during {call}");
    }
}

#[test]
fn a_pod_that_this_controller_has_deleted_and_that_still_terminates_is_left_alone() {
    let mut world = pending();
    world.run_until(after(60));
    assert_eq!(world.evicted.len(), 1);
    world.calls();
    // A watch that lags behind the deletion shows the pod again.
    let mut terminating = pod();
    terminating.metadata.deletion_timestamp = Some(after(60).to_api());
    world.apply(Change::Pod(terminating));
    world.apply(Change::Slice(slice()));
    world.apply(Change::Slice(tainted_slice()));
    world.run_until(after(7200));
    assert_eq!((world.calls(), world.evicted.len()), (vec![], 1));
}
