//! Explanations of pods and rules.

use std::num::NonZeroU64;

use super::*;

const SHOP_P: &str = "shop/p";

fn synced(mut world: World) -> World {
    world.complete_lists();
    world
}

fn explained(world: &World) -> PodTaintExplanation {
    world.core.explain_pod(&ObjectKey::new(NAMESPACE, "p"), world.now)
}

#[test]
fn pod_is_explained_with_its_taints_and_what_would_keep_it() {
    let claim = tolerating(claim(), &[for_seconds(60)]);
    let changes = [Change::Slice(tainted_slice()), Change::Claim(claim), Change::Pod(pod()), Change::Rule(rule())];
    let world = synced(World::after(changes));
    let explanation = explained(&world);
    assert_eq!((explanation.state, explanation.at), (PodTaintState::Pending, Some(after(60))));
    let sources: Vec<_> = explanation.claims[0].taints.iter().map(|taint| taint.source.as_str()).collect();
    assert_eq!(sources, ["DeviceTaintRule r", "ResourceSlice s"]);
    let text = explanation.to_string();
    for part in [
        "shop/p: The pod is evicted at 2000-01-01T00:01:00Z (in 60 s).\n",
        "  c: ResourceClaim c\n",
        "    device d/w/i: taint t=v of DeviceTaintRule r since 2000-01-01T00:00:00Z: tolerated for 60 s, evicts at 2000-01-01T00:01:00Z\n",
        "  DeviceTaintRule r is deleted, or gets another effect than NoExecute or another deviceSelector. (All of these are necessary.)\n",
        "  Driver d removes taint number 1 of device i of pool w from ResourceSlice s. (All of these are necessary.)\n",
        "The tolerations of allocated devices cannot be changed",
    ] {
        assert!(text.contains(part), "{part}{text}");
    }
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!((&json["state"], &json["at"]), (&"pending".into(), &"2000-01-01T00:01:00Z".into()));
}

#[test]
fn states_of_a_pod_are_distinguished() {
    let slice = || Change::Slice(tainted_slice());
    let state = |changes: Vec<Change>| explained(&synced(World::after(changes))).state;
    let lasting = toleration(serde_json::json!({ "operator": "Exists" }));
    assert_eq!(state(vec![]), PodTaintState::Absent);
    assert_eq!(explained(&World::new()).state, PodTaintState::NotSynced);
    let without = Change::Pod(without_node(pod()));
    assert_eq!(state(vec![slice(), Change::Claim(claim()), without]), PodTaintState::NotEvictable);
    let tolerating = Change::Claim(tolerating(claim(), &[lasting]));
    assert_eq!(state(vec![slice(), tolerating, Change::Pod(pod())]), PodTaintState::Stays);
    assert_eq!(state(vec![slice(), Change::Claim(claim()), Change::Pod(pod())]), PodTaintState::Pending);
    let unreserved = Change::Claim(claim_of("c", &["i"], &[]));
    let world = synced(World::after([slice(), unreserved, Change::Pod(pod())]));
    let explanation = explained(&world);
    assert_eq!(explanation.state, PodTaintState::Stays);
    assert_eq!(explanation.claims[0].unused.as_deref(), Some("ResourceClaim shop/c is not reserved for the pod"));
    let text = explanation.to_string();
    assert!(text.starts_with(&format!("{SHOP_P}: No taint evicts the pod.\n\nclaims\n  c: not used: ")), "{text}");
}

#[test]
fn held_pod_names_the_rule_with_the_limit() {
    let settings = Settings { max_evictions_per_rule: NonZeroU64::new(1), ..Settings::default() };
    let mut world = World::with(settings);
    for change in [
        Change::Claim(claim_for("a", "a")),
        Change::Pod(pod_of("a", &["a"])),
        Change::Claim(claim()),
        Change::Pod(pod()),
        Change::Rule(rule()),
    ] {
        world.apply(change);
    }
    let mut world = synced(world);
    world.run_until(after(30));
    let explanation = explained(&world);
    assert_eq!(explanation.state, PodTaintState::Held);
    assert!(explanation.detail.contains("DeviceTaintRule r has reached the limit"), "{}", explanation.detail);
    let rule = world.core.explain_rule("r", world.now);
    assert_eq!((rule.state, rule.limit, rule.counts.evicted), (RuleState::AtLimit, Some(1), 1));
    assert!(rule.detail.contains(CONTINUE_ANNOTATION), "{}", rule.detail);
    let text = rule.to_string();
    for part in [
        "  evictions that count for the limit, with those of earlier leaders: 1\n",
        "1 pod in 1 namespace is evicted; 1 of them is held\n",
        "  shop        p      w      0          held\n",
    ] {
        assert!(text.contains(part), "{part}{text}");
    }
    // The next leader knows the number from the status only.
    let mut next = World::with(settings);
    for change in [Change::Rule(world.rule()), Change::Claim(claim()), Change::Pod(pod())] {
        next.apply(change);
    }
    let rule = next.core.explain_rule("r", next.now);
    assert_eq!((rule.counts.evicted, rule.counted), (0, Some(1)));
}

#[test]
fn rule_that_must_store_its_number_says_that_pods_are_held() {
    let settings = Settings { max_evictions_per_rule: NonZeroU64::new(1), ..Settings::default() };
    let mut world = World::with(settings);
    world.refuse = Some("status");
    for change in [Change::Claim(claim()), Change::Pod(pod()), Change::Rule(rule())] {
        world.apply(change);
    }
    let mut world = synced(world);
    world.run_until(after(30));
    let rule = world.core.explain_rule("r", world.now);
    assert_eq!((rule.state, rule.counted), (RuleState::InProgress, Some(0)));
    let held = "1 pod is held until the controller has stored the number of evictions in the status of the rule.";
    assert!(rule.detail.ends_with(held), "{}", rule.detail);
    assert!(rule.preview.unwrap().pods[0].is_held);
}

#[test]
fn rule_is_explained_with_its_pods_and_what_would_keep_them() {
    let claim = tolerating(claim(), &[for_seconds(60)]);
    let mut world = synced(World::after([Change::Claim(claim), Change::Pod(pod()), Change::Rule(rule())]));
    let explanation = world.core.explain_rule("r", T0);
    assert_eq!((explanation.state, explanation.counts.pending), (RuleState::InProgress, 1));
    let text = explanation.to_string();
    for part in [
        "r: 1 pod waits in 1 namespace for the eviction by this rule.\n",
        "  shop        p      w      0          at 2000-01-01T00:01:00Z (in 60 s)",
        "what would keep the pods\n  DeviceTaintRule r is deleted",
    ] {
        assert!(text.contains(part), "{part}{text}");
    }
    world.run_until(after(60));
    let explanation = world.core.explain_rule("r", world.now);
    assert_eq!((explanation.state, explanation.counts.evicted), (RuleState::Idle, 1));
    assert!(explanation.kept_by.is_empty());
    assert!(explanation.to_string().contains("pods evicted since the start of the controller: 1"), "{explanation}");
}

#[test]
fn states_of_a_rule_are_distinguished() {
    let state = |world: &World, name: &str| world.core.explain_rule(name, world.now).state;
    assert_eq!(state(&World::new(), "r"), RuleState::NotSynced);
    assert_eq!(state(&World::with(Settings { rules: false, ..Settings::default() }), "r"), RuleState::Off);
    let world = synced(World::after([Change::Rule(rule_of("NoSchedule")), Change::Claim(claim()), Change::Pod(pod())]));
    assert_eq!(state(&world, "r"), RuleState::NeverEvicts);
    assert_eq!(state(&world, "another"), RuleState::Absent);
    let text = world.core.explain_rule("r", T0).to_string();
    assert!(text.contains("1 pod in 1 namespace would be evicted under NoExecute"), "{text}");
}
