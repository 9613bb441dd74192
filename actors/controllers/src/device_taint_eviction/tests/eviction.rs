//! Which pods are evicted, and which are not.

use serde_json::json;

use super::*;

/// Asserts that these changes, in each order, evict pod `p`.
fn evicts(settings: Settings, changes: &[Change]) {
    in_all_orders(settings, changes, World::assert_evicted);
}

/// Asserts that these changes, in each order, evict no pod.
fn evicts_nothing(changes: &[Change]) {
    in_all_orders(Settings::default(), changes, World::assert_no_eviction);
}

fn with_groups() -> Settings {
    Settings { pod_groups: true, ..Settings::default() }
}

fn in_group(mut pod: k8s_openapi::api::core::v1::Pod) -> k8s_openapi::api::core::v1::Pod {
    pod.spec.as_mut().unwrap().scheduling_group = serde_json::from_value(json!({ "podGroupName": "g" })).unwrap();
    pod
}

fn group_claim() -> k8s_openapi::api::resource::v1::ResourceClaim {
    let claim = claim_of("c", &["i"], &[reserved("podgroups", "g", "g-uid")]);
    owned(claim, "scheduling.k8s.io/v1alpha2", "PodGroup", "g", "g-uid")
}

/// TAINT-S7.
#[test]
fn a_tainted_device_evicts_its_pod_with_three_calls() {
    let changes =
        [Change::Slice(tainted_slice()), Change::Slice(other_slice()), Change::Claim(claim()), Change::Pod(pod())];
    evicts(Settings::default(), &changes);
}

#[test]
fn the_condition_is_set_before_the_deletion_and_not_again_on_a_retry() {
    let mut world = World::after([Change::Slice(tainted_slice()), Change::Claim(claim()), Change::Pod(pod())]);
    world.refuse = Some("delete");
    world.run_until(after(60));
    let calls = world.calls();
    assert_eq!(calls.iter().filter(|call| *call == "patch p").count(), 1, "{calls:?}");
    assert!(calls.iter().filter(|call| *call == "delete p").count() > 5, "{calls:?}");
    world.refuse = None;
    world.run_until(after(3600));
    assert_eq!(world.evicted.len(), 1);
    assert_eq!(world.events(), ["p: Marking for deletion"], "one event, whatever the number of attempts");
}

#[test]
fn a_condition_with_another_reason_is_replaced_and_keeps_the_time_of_its_status() {
    let earlier = Time::from_secs(946_681_200);
    for (status, expected) in [("True", earlier), ("False", T0)] {
        let condition = json!([{ "type": "DisruptionTarget", "status": status, "reason": "Other",
            "lastTransitionTime": "1999-12-31T23:00:00Z" }]);
        let mut marked = pod();
        marked.status.get_or_insert_default().conditions = serde_json::from_value(condition).unwrap();
        let mut world = World::after([Change::Slice(tainted_slice()), Change::Claim(claim()), Change::Pod(marked)]);
        world.refuse = Some("delete");
        world.run();
        let stored = world.core.pods.get(&ObjectKey::new(NAMESPACE, "p")).unwrap().status.clone().unwrap();
        let conditions = stored.conditions.unwrap();
        let [condition] = conditions.as_slice() else { panic!("there is one condition") };
        assert_eq!(condition.reason.as_deref(), Some(PodCondition::REASON));
        let since = condition.last_transition_time.as_ref().map(|since| Time::from_timestamp(since.0));
        assert_eq!(since, Some(expected), "{status}");
    }
}

#[test]
fn consumers_that_an_allocated_claim_gets_and_loses_are_evaluated() {
    let shared = |pods: &[&str]| {
        let consumers: Vec<_> = pods.iter().map(|pod| reserved("pods", pod, &format!("{pod}-uid"))).collect();
        Change::Claim(tolerating(claim_of("c", &["i"], &consumers), &[for_seconds(60)]))
    };
    let [p, q] = ["p", "q"].map(|name| (name.to_owned(), after(60)));
    let pods = ["p", "q"].map(|name| Change::Pod(pod_of(name, &["c"])));
    let mut world = World::after([Change::Slice(tainted_slice()), shared(&["p"])].into_iter().chain(pods));
    assert_eq!(world.pending(), std::slice::from_ref(&p));
    world.apply(shared(&["p", "q"]));
    assert_eq!(world.pending(), [p, q.clone()]);
    world.apply(shared(&["q"]));
    assert_eq!(world.pending(), [q]);
    assert_eq!(world.events(), ["p: Cancelling deletion"]);
}

/// TAINT-S8.
#[test]
fn a_claim_of_a_group_evicts_the_pods_of_the_group() {
    let changes = [Change::Slice(tainted_slice()), Change::Claim(group_claim()), Change::Pod(in_group(pod()))];
    evicts(with_groups(), &changes);
    evicts_nothing(&changes);
}

/// TAINT-S9.
#[test]
fn a_generated_claim_evicts_the_pod_whose_status_names_it() {
    let changes = [Change::Slice(tainted_slice()), Change::Claim(claim()), Change::Pod(template_pod(Some("c")))];
    evicts(Settings::default(), &changes);
}

/// TAINT-S58 and KF46.
#[test]
fn the_claim_of_extended_resources_evicts_its_pod() {
    let mut extended = pod_of("p", &[]);
    let status = json!({ "resourceClaimName": "c", "requestMappings": [] });
    extended.status.get_or_insert_default().extended_resource_claim_status = serde_json::from_value(status).unwrap();
    evicts(Settings::default(), &[Change::Slice(tainted_slice()), Change::Claim(claim()), Change::Pod(extended)]);
}

#[test]
fn a_device_with_admin_access_evicts_its_pod() {
    let mut admin = claim();
    let allocation = admin.status.as_mut().and_then(|status| status.allocation.as_mut()).unwrap();
    allocation.devices.as_mut().and_then(|devices| devices.results.as_mut()).unwrap()[0].admin_access = Some(true);
    evicts(Settings::default(), &[Change::Slice(tainted_slice()), Change::Claim(admin), Change::Pod(pod())]);
}

/// TAINT-S10.
#[test]
fn a_pod_that_gets_its_node_is_evicted() {
    let mut world =
        World::after([Change::Slice(tainted_slice()), Change::Claim(claim()), Change::Pod(without_node(pod()))]);
    assert_eq!(world.pending(), []);
    world.apply(Change::Pod(pod()));
    world.assert_evicted();
}

/// TAINT-S18.
#[test]
fn objects_that_reach_their_full_state_by_updates_evict_as_well() {
    let start = [
        Change::Slice(slice()),
        Change::Claim(without_allocation(claim())),
        Change::Pod(without_node(template_pod(None))),
    ];
    let ends = [Change::Slice(tainted_slice()), Change::Claim(claim()), Change::Pod(template_pod(Some("c")))];
    in_all_orders(Settings::default(), &start, |mut world| {
        ends.iter().for_each(|change| world.apply(change.clone()));
        world.assert_evicted();
    });
}

/// TAINT-S11.
#[test]
fn a_toleration_with_seconds_delays_the_eviction() {
    let claim = tolerating(claim(), &[for_seconds(3600)]);
    let changes = [Change::Slice(tainted_slice()), Change::Claim(claim), Change::Pod(pod())];
    in_all_orders(Settings::default(), &changes, |mut world| {
        assert_eq!(world.pending(), [("p".into(), after(3600))]);
        world.run_until(after(3599));
        assert_eq!(world.calls(), Vec::<String>::new());
        world.run_until(after(3600));
        assert_eq!(world.calls(), ["get p", "patch p", "delete p"]);
    });
}

#[test]
fn the_shortest_toleration_with_seconds_counts_unless_one_is_for_ever() {
    let due = |tolerations: &[_]| {
        let claim = tolerating(claim(), tolerations);
        World::after([Change::Slice(tainted_slice()), Change::Claim(claim), Change::Pod(pod())]).pending()
    };
    assert_eq!(due(&[for_seconds(30), for_seconds(20), for_seconds(40)]), [("p".into(), after(20))]);
    assert_eq!(due(&[for_seconds(30), for_seconds(-5)]), [("p".into(), T0)], "a negative time is none");
    let lasting = toleration(json!({ "operator": "Exists", "effect": "NoExecute" }));
    assert_eq!(due(&[for_seconds(30), lasting]), []);
}

/// TAINT-S12.
#[test]
fn a_toleration_for_another_key_delays_nothing() {
    let other = toleration(json!({ "key": "u", "value": "v", "effect": "NoExecute", "tolerationSeconds": 60 }));
    let claim = tolerating(claim(), &[other]);
    evicts(Settings::default(), &[Change::Slice(tainted_slice()), Change::Claim(claim), Change::Pod(pod())]);
}

/// TAINT-S14.
#[test]
fn a_tolerated_taint_is_no_reason_and_another_taint_still_evicts() {
    let taints = vec![taint("first", "", "NoExecute"), taint("second", "", "NoExecute")];
    let lasting = toleration(json!({ "key": "first", "operator": "Exists", "effect": "NoExecute" }));
    let claim = tolerating(claim(), &[lasting]);
    let world = World::after([Change::Slice(slice_with(taints)), Change::Claim(claim), Change::Pod(pod())]);
    assert_eq!(world.claim_eviction(), Some((T0, vec!["slice s i 1".into()])));
    world.assert_evicted();
}

/// TAINT-S15.
#[test]
fn an_entry_of_reserved_for_that_is_gone_replaced_or_unknown_hides_no_other() {
    let consumers = [
        reserved("pods", "absent", "absent-uid"),
        reserved("pods", "p", "another-uid"),
        reserved("unknown", "p", "p-uid"),
        reserved("podgroups", "g", "g-uid"),
        reserved("pods", "p", "p-uid"),
    ];
    let claim = claim_of("c", &["i"], &consumers);
    evicts(Settings::default(), &[Change::Slice(tainted_slice()), Change::Claim(claim), Change::Pod(pod())]);
}

#[test]
fn two_claims_evict_at_the_earlier_time_with_all_reasons() {
    let later = tolerating(claim_for("c2", "p"), &[for_seconds(50)]);
    let sooner = tolerating(claim(), &[for_seconds(20)]);
    let pod = pod_of("p", &["c", "c2"]);
    let changes = [Change::Slice(tainted_slice()), Change::Claim(later), Change::Claim(sooner), Change::Pod(pod)];
    in_all_orders(Settings::default(), &changes, |world| assert_eq!(world.pending(), [("p".into(), after(20))]));
}

/// TAINT-S13, TAINT-S21 to TAINT-S22, TAINT-S24 to TAINT-S31, KF46.
#[test]
fn these_pods_stay() {
    let [slice, claim, pod] = [Change::Slice(tainted_slice()), Change::Claim(claim()), Change::Pod(pod())];
    let change_pod = |change: fn(&mut k8s_openapi::api::core::v1::Pod)| {
        let mut pod = super::pod();
        change(&mut pod);
        Change::Pod(pod)
    };
    let devices = |name: &str| Change::Slice(slice_of("s", POOL, 1, &[(name, vec![evicting()])]));
    let taints = |effect: &str| Change::Slice(slice_with(vec![taint("t", "v", effect), taint("u", "", effect)]));
    let tolerate = |toleration| Change::Claim(tolerating(super::claim(), &[toleration]));
    let mut shared = super::claim();
    shared.metadata.owner_references.as_mut().unwrap()[0].uid = "another-uid".into();
    let with_phase = |phase: &str| {
        let mut pod = super::pod();
        pod.status.get_or_insert_default().phase = Some(phase.to_owned());
        Change::Pod(pod)
    };
    let cases = [
        ("without a node", slice.clone(), claim.clone(), Change::Pod(without_node(super::pod()))),
        ("of a device without taints", Change::Slice(super::slice()), claim.clone(), pod.clone()),
        ("without a recorded claim", slice.clone(), claim.clone(), Change::Pod(template_pod(None))),
        ("of a device that is not in the slice", devices("other"), claim.clone(), pod.clone()),
        ("of another UID", slice.clone(), claim.clone(), change_pod(|pod| pod.metadata.uid = Some("x".into()))),
        ("with only the effect None", taints("None"), claim.clone(), pod.clone()),
        ("with an unknown effect", taints("Shatter"), claim.clone(), pod.clone()),
        ("whose claim has another owner", slice.clone(), Change::Claim(shared), Change::Pod(template_pod(Some("c")))),
        ("that succeeded", slice.clone(), claim.clone(), with_phase("Succeeded")),
        ("that failed", slice.clone(), claim.clone(), with_phase("Failed")),
        (
            "that tolerates all effects, whatever the seconds",
            slice.clone(),
            tolerate(toleration(json!({ "operator": "Exists", "tolerationSeconds": 5 }))),
            pod.clone(),
        ),
        (
            "that tolerates for ever",
            slice.clone(),
            tolerate(toleration(json!({ "key": "t", "operator": "Exists", "effect": "NoExecute" }))),
            pod.clone(),
        ),
        ("for which the claim is not reserved", slice.clone(), Change::Claim(claim_of("c", &["i"], &[])), pod.clone()),
        ("that is being deleted", slice, claim, change_pod(|pod| pod.metadata.deletion_timestamp = Some(T0.to_api()))),
    ];
    for (name, slice, claim, pod) in cases {
        eprintln!("a pod {name}");
        evicts_nothing(&[slice, claim, pod]);
    }
}

/// TAINT-S23.
#[test]
fn a_change_of_a_slice_without_effect_evaluates_no_pod() {
    let mut world = World::after([Change::Slice(slice()), Change::Claim(claim()), Change::Pod(pod())]);
    let mut changed = slice();
    changed.spec.devices.as_mut().unwrap()[0].taints = Some(vec![taint("x", "", "NoSchedule")]);
    world.core.slice_event(crate::resource_claim::WatchEvent::Apply(changed.into()), T0);
    assert_eq!(world.core.marked_pods(), 0);
    world.assert_no_eviction();
}

#[test]
fn the_condition_that_the_controller_writes_evaluates_no_pod() {
    let mut world = World::after([Change::Slice(slice()), Change::Claim(claim()), Change::Pod(pod())]);
    let mut changed = pod();
    let condition = json!([{ "type": "DisruptionTarget", "status": "True" }]);
    changed.status.get_or_insert_default().conditions = serde_json::from_value(condition).unwrap();
    world.core.pod_event(crate::resource_claim::WatchEvent::Apply(changed.into()), T0);
    assert_eq!(world.core.marked_pods(), 0);
}
