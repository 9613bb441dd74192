//! What a rule would do, before it is applied.

use serde_json::{Value, json};

use super::*;

/// A cluster with three pods: `p` and `late` use device `i`, and `quiet` tolerates all taints.
fn cluster() -> World {
    let late = tolerating(claim_for("c-late", "late"), &[for_seconds(30)]);
    let quiet = tolerating(claim_for("c-quiet", "quiet"), &[toleration(json!({ "operator": "Exists" }))]);
    let mut important = pod_of("late", &["c-late"]);
    important.spec.as_mut().unwrap().priority = Some(1000);
    World::after([
        Change::Slice(slice()),
        Change::Claim(claim()),
        Change::Claim(late),
        Change::Claim(quiet),
        Change::Pod(pod()),
        Change::Pod(important),
        Change::Pod(pod_of("quiet", &["c-quiet"])),
    ])
}

fn names(pods: &[PreviewedPod]) -> Vec<(&str, u64)> {
    pods.iter().map(|pod| (pod.pod.name.as_str(), pod.at.since(T0).as_secs())).collect()
}

#[test]
fn preview_lists_devices_and_pods_in_the_order_of_their_evictions() {
    let world = cluster();
    let preview = world.core.preview(&rule(), T0);
    assert_eq!(names(&preview.pods), [("p", 0), ("late", 30)]);
    assert_eq!(preview.pods.iter().map(|pod| pod.priority).collect::<Vec<_>>(), [0, 1000]);
    assert_eq!(preview.tolerating.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(), ["quiet"]);
    let devices: Vec<_> = preview.devices.iter().map(|d| (d.device.as_str(), d.is_published, d.claims.len())).collect();
    assert_eq!(devices, [("i", true, 3), ("j", true, 0), ("k", true, 0)]);
    assert_eq!((preview.namespaces, preview.evicts, preview.selects_all), (1, true, false));
    let text = preview.to_string();
    for line in [
        "DeviceTaintRule r: taint t=v:NoExecute, since 2000-01-01T00:00:00Z\n",
        "  selects all devices with driver \"d\"\n",
        "  3 published devices match; 3 allocated devices match; 2 pods in 1 namespace are evicted\n",
        "  NAMESPACE   NAME   NODE   PRIORITY   EVICTION                            NOTE\n",
        "  shop        p      w      0          now\n",
        "  shop        late   w      1000       at 2000-01-01T00:00:30Z (in 30 s)\n",
        "  shop/quiet\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    assert!(world.core.pending().is_empty() && !world.core.has_work(), "a preview changes nothing");
}

#[test]
fn preview_of_another_effect_shows_what_no_execute_would_evict() {
    let preview = cluster().core.preview(&rule_of("None"), T0);
    assert_eq!((names(&preview.pods).len(), preview.evicts), (2, false));
    let text = preview.to_string();
    assert!(text.contains("This effect evicts no pod."), "{text}");
    assert!(text.contains("2 pods in 1 namespace would be evicted under NoExecute"), "{text}");
}

/// Two claims may have one device, and one claim may have two shares of it.
#[test]
fn preview_and_status_count_the_same_devices() {
    let mut world = cluster();
    world.apply(Change::Claim(claim_of("shares", &["k", "k"], &[])));
    let none = rule_of("None");
    let summary = world.core.preview(&none, T0).summary();
    assert_eq!(
        summary,
        "3 published devices match; 5 allocated devices match; 2 pods in 1 namespace would be evicted under NoExecute"
    );
    world.apply(Change::Rule(none));
    world.run();
    let message = &world.rule().status.unwrap().conditions.unwrap()[0].message;
    assert!(message.starts_with(&summary), "{message}");
}

/// KF47.
#[test]
fn preview_warns_of_a_selector_without_fields() {
    let world = cluster();
    let text = |effect: &str, selector: Value| world.core.preview(&rule_with(effect, selector), T0).to_string();
    let all = text("NoExecute", json!({}));
    assert!(all.contains("WARNING: this rule evicts all pods of the cluster that use devices."), "{all}");
    assert!(!text("None", json!({})).contains("WARNING"));
    let none = text("NoExecute", Value::Null);
    assert!(none.contains("selects no device, because the rule has no deviceSelector"), "{none}");
    assert!(none.contains("0 pods in 0 namespaces are evicted"), "{none}");
    let one = text("NoExecute", json!({ "device": "i", "pool": POOL }));
    assert!(one.contains("selects devices with device \"i\", pool \"w\"\n"), "{one}");
}

#[test]
fn preview_names_the_time_at_which_other_taints_evict_a_pod_in_any_case() {
    let mut world = cluster();
    let mut other = rule_with("NoExecute", json!({ "device": "i" }));
    other.metadata.name = Some("other".into());
    other.spec.taint.time_added = Some(after(10).to_api());
    world.apply(Change::Rule(other));
    let mut later = rule();
    later.spec.taint.time_added = Some(after(60).to_api());
    let preview = world.core.preview(&later, T0);
    let times: Vec<_> = preview.pods.iter().map(|pod| (pod.at, pod.in_any_case_at)).collect();
    assert_eq!(times, [(after(10), Some(after(10))), (after(40), Some(after(40)))]);
    assert!(preview.to_string().contains("other taints evict the pod at this time in any case"), "{preview}");
}

#[test]
fn preview_takes_the_time_that_the_server_sets() {
    let mut world = cluster();
    let added = |world: &World, rule: &k8s_openapi::api::resource::v1beta2::DeviceTaintRule| {
        world.core.preview(rule, after(100)).since
    };
    let mut timeless = rule();
    timeless.spec.taint.time_added = None;
    assert_eq!(added(&world, &timeless), after(100), "a new rule");
    world.apply(Change::Rule(rule_of("None")));
    assert_eq!(added(&world, &rule()), after(100), "an update of the effect with the old time");
    let timed = changed_rule(&rule(), "NoExecute", after(50));
    assert_eq!(added(&world, &timed), after(50), "a time that is set");
    world.apply(Change::Rule(timed));
    assert_eq!(added(&world, &timeless), after(50), "an update without the time");
    let own: Vec<_> = world.core.preview(&timeless, after(100)).pods.iter().map(|pod| pod.in_any_case_at).collect();
    assert_eq!(own, [None, None], "the known rule of the name is no other taint");
}

#[test]
fn preview_is_what_happens_when_the_rule_is_applied() {
    let mut world = cluster();
    let preview = world.core.preview(&rule(), T0);
    world.apply(Change::Rule(rule()));
    let expected: Vec<_> = preview.pods.iter().map(|pod| (pod.pod.name.clone(), pod.at)).collect();
    let mut pending = world.pending();
    pending.sort_by_key(|(_, at)| *at);
    assert_eq!(pending, expected);
}
