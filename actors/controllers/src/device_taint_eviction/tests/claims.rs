//! Pools, and the evictions of claims.

use super::*;

fn pools(world: &World) -> Vec<(String, usize)> {
    world.core.pools().into_iter().map(|(pool, slices)| (pool.to_string(), slices)).collect()
}

/// TAINT-S1.
#[test]
fn without_events_nothing_is_known_and_nothing_is_queued() {
    let mut world = World::new();
    world.run();
    assert_eq!((world.core.pending().len(), world.core.claim_evictions().len()), (0, 0));
    assert_eq!((pools(&world), world.queue.len(), world.calls()), (vec![], 0, vec![]));
}

/// TAINT-S2 to TAINT-S3.
#[test]
fn each_pool_has_its_slices() {
    let mut world = World::after([Change::Slice(tainted_slice()), Change::Slice(other_slice())]);
    assert_eq!(pools(&world), [("d/w".into(), 1), ("d/w2".into(), 1)]);
    world.apply(Change::Slice(slice()));
    world.delete(Change::Slice(other_slice()));
    assert_eq!(pools(&world), [("d/w".into(), 1)]);
    world.apply(Change::Claim(claim()));
    assert_eq!(world.claim_eviction(), None, "the new slice counts");
}

#[test]
fn a_slice_that_moves_to_another_pool_leaves_no_taint_behind() {
    let mut world = World::after([Change::Slice(tainted_slice()), Change::Claim(claim()), Change::Pod(pod())]);
    let mut moved = tainted_slice();
    moved.spec.pool.name = "w3".into();
    world.apply(Change::Slice(moved));
    assert_eq!(pools(&world), [("d/w3".into(), 1)]);
    assert_eq!((world.claim_eviction(), world.pending()), (None, vec![]));
}

/// A cluster has many pods without claims, and no taint evicts them.
#[test]
fn pods_without_claims_are_not_kept() {
    let mut world = World::after([Change::Pod(pod_of("without", &[])), Change::Pod(pod())]);
    let kept: Vec<_> = world.core.pods.iter().filter_map(|pod| pod.metadata.name.clone()).collect();
    assert_eq!(kept, ["p"]);
    let mut replaced = pod_of("p", &[]);
    replaced.metadata.uid = Some("other".to_owned());
    world.apply(Change::Pod(replaced));
    assert_eq!(world.core.pods.iter().count(), 0);
}

/// TAINT-S4.
#[test]
fn a_claim_of_an_untainted_device_has_no_eviction() {
    let changes = [Change::Slice(slice()), Change::Slice(other_slice()), Change::Claim(claim())];
    in_all_orders(Settings::default(), &changes, |world| assert_eq!(world.claim_eviction(), None));
}

/// TAINT-S5.
#[test]
fn the_taint_of_a_slice_is_the_reason_of_a_claim() {
    let changes = [Change::Slice(tainted_slice()), Change::Slice(other_slice()), Change::Claim(claim())];
    in_all_orders(Settings::default(), &changes, |world| {
        assert_eq!(world.claim_eviction(), Some((T0, vec!["slice s i 0".into()])));
    });
}

/// TAINT-S6.
#[test]
fn a_rule_needs_no_slice_to_taint_an_allocated_device() {
    let changes = [Change::Rule(rule()), Change::Claim(claim())];
    in_all_orders(Settings::default(), &changes, |world| {
        assert_eq!(world.claim_eviction(), Some((T0, vec!["rule r".into()])));
    });
}

#[test]
fn reasons_are_rules_first_and_then_slices_and_also_name_taints_that_are_due_later() {
    let late = toleration(
        serde_json::json!({ "key": "t", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 90 }),
    );
    let claim = tolerating(claim_of("c", &["k", "i"], &[]), &[late]);
    let world = World::after([Change::Slice(tainted_slice()), Change::Claim(claim), Change::Rule(rule())]);
    // The taint of k is not tolerated. That of i and that of the rule, for both devices, are tolerated for a time.
    let reasons = ["rule r", "slice s i 0", "slice s k 1"].map(String::from).to_vec();
    assert_eq!(world.claim_eviction(), Some((T0, reasons)));
}

#[test]
fn only_the_newest_generation_of_a_pool_counts_and_an_older_one_may_return() {
    let newest = slice_of("new", POOL, 2, &[("i", vec![])]);
    let mut world = World::after([Change::Slice(tainted_slice()), Change::Claim(claim()), Change::Pod(pod())]);
    world.apply(Change::Slice(newest.clone()));
    assert_eq!(
        (world.claim_eviction(), world.pending()),
        (None, vec![]),
        "the taint is lifted by the newer generation"
    );
    world.delete(Change::Slice(newest));
    assert_eq!(world.claim_eviction(), Some((T0, vec!["slice s i 0".into()])));
    assert_eq!(world.pending(), [("p".into(), T0)]);
}

/// TAINT-S56.
#[test]
fn a_list_without_a_slice_lifts_its_taints() {
    let mut world = World::after([Change::Slice(tainted_slice()), Change::Claim(claim()), Change::Pod(pod())]);
    world.core.slice_event(crate::resource_claim::WatchEvent::Init, T0);
    world.evaluate();
    assert_eq!(world.pending().len(), 1, "what is known stays known until the end of the list");
    world.core.slice_event(crate::resource_claim::WatchEvent::InitDone, T0);
    world.evaluate();
    assert_eq!((world.pending(), pools(&world)), (vec![], vec![]));
    assert_eq!(world.events(), ["p: Cancelling deletion"]);
}

/// TAINT-S57.
#[test]
fn a_list_that_shows_a_claim_with_another_device_computes_its_eviction_anew() {
    let mut world = World::after([Change::Slice(slice()), Change::Claim(claim()), Change::Pod(pod())]);
    assert_eq!(world.pending(), []);
    let other = owned(claim_of("c", &["k"], &[reserved("pods", "p", "p-uid")]), "v1", "Pod", "p", "p-uid");
    world.apply(Change::Claim(other));
    assert_eq!(world.claim_eviction(), Some((T0, vec!["slice s k 1".into()])));
    assert_eq!(world.pending(), [("p".into(), T0)]);
}

#[test]
fn a_taint_without_a_time_counts_from_when_it_was_first_received() {
    let mut timeless = evicting();
    timeless.time_added = None;
    let mut world = World::new();
    world.now = after(5);
    world.apply(Change::Slice(slice_with(vec![timeless.clone()])));
    world.now = after(50);
    world.apply(Change::Slice(slice_with(vec![taint("x", "", "NoSchedule"), timeless])));
    world.apply(Change::Claim(tolerating(claim(), &[for_seconds(60)])));
    assert_eq!(world.claim_eviction(), Some((after(65), vec!["slice s i 1".into()])));
}

#[test]
fn a_taint_of_a_far_future_never_evicts() {
    let mut future = evicting();
    future.time_added = Some(serde_json::from_value(serde_json::json!("9999-01-01T00:00:00Z")).unwrap());
    let claim = tolerating(claim(), &[for_seconds(i64::MAX)]);
    let changes = [Change::Slice(slice_with(vec![future])), Change::Claim(claim), Change::Pod(pod())];
    let mut world = World::after(changes);
    world.run_until(after(1_000_000_000));
    assert_eq!((world.calls(), world.pending().len()), (vec![], 1));
    assert!(world.core.explain_pod(&ObjectKey::new(NAMESPACE, "p"), world.now).to_string().contains("2554-07-21"));
}

#[test]
fn a_taint_of_the_future_evicts_at_its_time() {
    let mut future = evicting();
    future.time_added = Some(after(100).to_api());
    let changes = [Change::Slice(slice_with(vec![future])), Change::Claim(claim()), Change::Pod(pod())];
    in_all_orders(Settings::default(), &changes, |mut world| {
        world.run_until(after(99));
        assert_eq!(world.calls(), Vec::<String>::new());
        world.run_until(after(100));
        assert_eq!(world.calls(), ["get p", "patch p", "delete p"]);
    });
}
