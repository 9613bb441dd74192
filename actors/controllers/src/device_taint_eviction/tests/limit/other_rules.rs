//! Pods of a full rule that other taints evict.

use k8s_openapi::api::resource::v1::DeviceToleration;

use super::*;

/// The five pods after the limit is reached, and other taints.
fn limited_with(limit: u64, others: impl IntoIterator<Item = Change>) -> World {
    let mut world = limited(limit);
    world.run_until(after(60));
    others.into_iter().for_each(|change| world.apply(change));
    world
}

/// A rule for all devices of the pool.
fn other_rule(seconds: u64) -> Change {
    let mut rule = rule();
    rule.metadata.name = Some("z".into());
    rule.metadata.uid = Some("z-uid".into());
    rule.spec.taint.time_added = Some(after(seconds).to_api());
    Change::Rule(rule)
}

#[test]
fn a_full_rule_does_not_hold_a_pod_that_a_slice_evicts() {
    let mut world = limited_with(1, [Change::Slice(tainted_slice())]);
    let explanation = world.core.explain_pod(&ObjectKey::new(NAMESPACE, "p2"), world.now);
    assert_eq!(explanation.state, PodTaintState::NotSynced);
    assert!(explanation.detail.starts_with("The pod is evicted now."), "{}", explanation.detail);
    assert_eq!(evicted_and_pending(&mut world), (5, 0));
    assert_eq!(world.core.explain_rule("r", world.now).counts.evicted, 1, "the rule has evicted only its own");
}

#[test]
fn a_full_rule_does_not_hold_a_pod_that_another_rule_evicts() {
    let mut world = limited_with(3, [other_rule(0)]);
    assert_eq!(evicted_and_pending(&mut world), (5, 0));
    let counts = |rule| world.core.explain_rule(rule, world.now).counts.evicted;
    assert_eq!((counts("r"), counts("z")), (3, 2));
}

#[test]
fn a_pod_that_a_full_rule_holds_goes_at_the_time_of_another_rule() {
    let mut world = limited_with(3, [other_rule(100)]);
    world.run_until(after(99));
    assert_eq!(world.evicted.len(), 3);
    let detail = world.core.explain_pod(&ObjectKey::new(NAMESPACE, "p5"), world.now).detail;
    assert!(
        detail.starts_with("The pod is evicted at 2000-01-01T00:01:40Z (in 1 s). The eviction is due since"),
        "{detail}"
    );
    let preview = world.core.explain_rule("r", world.now).preview.unwrap();
    let rows: Vec<_> = preview.pods.iter().map(|row| (row.pod.name.as_str(), row.at, row.is_held)).collect();
    assert_eq!(rows, [("p4", after(100), false), ("p5", after(100), false)]);
    world.run_until(after(100));
    assert_eq!(world.evicted.len(), 5);
}

/// Rule `r` has evicted one of three pods with these tolerations, and is full.
fn full_for(tolerations: [DeviceToleration; 3]) -> World {
    let settings = Settings { max_evictions_per_rule: NonZeroU64::new(1), ..Settings::default() };
    let mut world = World::with(settings);
    for (number, toleration) in (1..).zip(tolerations) {
        let (claim, pod) = (format!("c{number}"), format!("p{number}"));
        world.apply(Change::Claim(tolerating(claim_for(&claim, &pod), &[toleration])));
        world.apply(Change::Pod(pod_of(&pod, &[&claim])));
    }
    world.apply(Change::Rule(rule()));
    world.run_until(after(60));
    world
}

fn tolerates(key: &str, seconds: Option<i64>) -> DeviceToleration {
    let (operator, effect) = ("Exists", "NoExecute");
    toleration(serde_json::json!({ "key": key, "operator": operator, "effect": effect, "tolerationSeconds": seconds }))
}

/// Rule `z` with the taint `u`.
fn rule_of_another_taint() -> Change {
    let mut rule = rule();
    (rule.metadata.name, rule.metadata.uid) = (Some("z".into()), Some("z-uid".into()));
    rule.spec.taint.key = "u".into();
    Change::Rule(rule)
}

fn evicted(world: &World) -> Vec<&str> {
    world.evicted.iter().map(|evicted| evicted.pod.key.name.as_str()).collect()
}

/// Rule `r` is full. Rule `z` evicts `p2` in 1000 s and `p3` now.
#[test]
fn a_pod_that_a_rule_evicts_later_does_not_keep_its_slot_from_others() {
    let mut world = full_for([tolerates("u", None), tolerates("u", Some(1000)), tolerates("t", None)]);
    world.refuse = Some("status z");
    world.apply(rule_of_another_taint());
    world.run();
    world.refuse = None;
    world.run_until(after(100));
    assert_eq!(evicted(&world), ["p1", "p3"]);
}

/// Rule `r` is full. Rule `z` evicts `p2` as soon as it has stored its number. The server wants the call again a minute later. Then `r`
/// gets a slot.
#[test]
fn a_pod_that_another_rule_evicts_does_not_wait_for_a_slot_of_the_full_rule() {
    let mut world = full_for([tolerates("u", None), tolerates("other", None), tolerates("u", None)]);
    world.refuse = Some("status z");
    world.apply(rule_of_another_taint());
    world.run();
    (world.refuse, world.retry_after) = (Some("get p2"), Duration::from_secs(60));
    world.run_until(after(75));
    assert!(world.calls().contains(&"get p2".to_owned()));
    continue_to(&mut world, "2");
    world.run_until(after(100));
    assert_eq!(evicted(&world), ["p1", "p3"]);
    world.refuse = None;
    world.run_until(after(200));
    assert_eq!(evicted(&world), ["p1", "p3", "p2"]);
}
