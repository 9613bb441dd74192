//! The status of rules, and the deletions for them.

use super::*;

fn second_claim() -> Change {
    Change::Claim(claim_for("c2", "p2"))
}

fn second_pod() -> Change {
    Change::Pod(pod_of("p2", &["c2"]))
}

fn ready_and_later(world: &mut World) -> (usize, usize) {
    let now = world.queue.numbers(world.now).depth;
    (usize::try_from(now).unwrap(), world.queue.len() - usize::try_from(now).unwrap())
}

/// TAINT-S36.
#[test]
fn a_rule_alone_has_not_started() {
    let mut world = World::after([Change::Rule(rule())]);
    assert_eq!(ready_and_later(&mut world), (1, 0));
    world.run();
    assert_eq!(world.calls(), ["status r: False NotStarted"]);
    assert!(world.queue.is_empty() || world.queue.next_due() == Some(after(10)));
    world.run_until(after(60));
    assert_eq!((world.calls(), world.queue.len()), (vec![], 0), "no difference, no write");
}

#[test]
fn the_delay_of_a_status_ends_after_the_clock_was_set_back() {
    let mut world = World::after([Change::Rule(rule())]);
    world.now = after(100);
    world.run();
    let item = Item::Rule(RuleId { name: "r".into(), uid: "r-uid".into() });
    let begin = |world: &mut World, seconds| world.core.begin(&item).step(&mut world.core, None, after(seconds));
    let again =
        |step, seconds| matches!(step, Step::Done(Report { outcome: Outcome::Again(at), .. }) if at == after(seconds));
    assert!(again(begin(&mut world, 60), 70), "the stamp is ahead");
    assert!(again(begin(&mut world, 50), 60), "the first reading is ahead");
    assert!(again(begin(&mut world, 55), 60));
}

/// TAINT-S37.
#[test]
fn a_rule_with_a_claim_and_no_pod_has_not_started() {
    in_all_orders(Settings::default(), &[Change::Rule(rule()), Change::Claim(claim())], |mut world| {
        world.run_until(after(60));
        assert_eq!(world.calls(), ["status r: False NotStarted"]);
        assert_eq!(world.claim_eviction(), Some((T0, vec!["rule r".into()])));
    });
}

/// TAINT-S38.
#[test]
fn a_rule_shows_its_pending_pod_before_the_deletion_and_completes_after_it() {
    let mut world = World::after([Change::Claim(claim()), Change::Pod(pod()), Change::Rule(rule())]);
    assert_eq!(ready_and_later(&mut world), (2, 0));
    world.run();
    let pending = "status r: True PodsPendingEviction 1 pod pending eviction in 1 namespace";
    assert_eq!(world.calls(), [pending, "get p", "patch p", "delete p"]);
    world.run_until(after(9));
    assert_eq!(world.calls(), Vec::<String>::new());
    world.run_until(after(10));
    assert_eq!(world.calls(), ["status r: False Completed 1 pod evicted since controller start"]);
    world.run_until(after(3600));
    assert_eq!((world.calls(), world.queue.len()), (vec![], 0));
}

/// TAINT-S39 to TAINT-S40.
#[test]
fn pods_and_their_namespaces_are_counted() {
    for (namespace, expected) in [("shop", "1 namespace"), ("bank", "2 namespaces")] {
        let claim_2 = in_namespace(claim_for("c2", "p2"), namespace);
        let pod_2 = in_namespace(pod_of("p2", &["c2"]), namespace);
        let first = [Change::Claim(claim()), Change::Pod(pod()), Change::Claim(claim_2), Change::Pod(pod_2)];
        let mut world = World::after(first);
        world.apply(Change::Rule(rule()));
        world.run();
        assert_eq!(
            world.calls()[0],
            format!("status r: True PodsPendingEviction 2 pods pending eviction in {expected}")
        );
        world.run_until(after(10));
        assert_eq!(world.calls(), ["status r: False Completed 2 pods evicted since controller start"]);
    }
}

/// TAINT-S41.
#[test]
fn a_pod_with_two_claims_of_the_rule_counts_once() {
    let both = Change::Pod(pod_of("p", &["c", "c2"]));
    let changes = [Change::Claim(claim()), Change::Claim(claim_for("c2", "p")), both, Change::Rule(rule())];
    in_all_orders(Settings::default(), &changes, |mut world| {
        world.run_until(after(60));
        assert_eq!(world.calls().last().unwrap(), "status r: False Completed 1 pod evicted since controller start");
        assert_eq!(world.evicted.len(), 1);
    });
}

const PREVIEW: &str = "would be evicted under NoExecute; refreshed only when the spec changes";

/// TAINT-S42.
#[test]
fn a_rule_without_effect_shows_what_it_would_evict() {
    let changes = [Change::Slice(slice()), Change::Claim(claim()), Change::Pod(pod()), Change::Rule(rule_of("None"))];
    let mut world = World::after(changes);
    world.run_until(after(3600));
    let hits = "3 published devices match; 1 allocated device matches; 1 pod in 1 namespace";
    assert_eq!(world.calls(), [format!("status r: False NoEffect {hits} {PREVIEW}")]);
    assert_eq!((world.pending(), world.queue.len(), world.events()), (vec![], 0, vec![]));
}

/// TAINT-S44.
#[test]
fn the_preview_counts_the_pods_of_a_group() {
    let settings = Settings { pod_groups: true, ..Settings::default() };
    let claim = claim_of("c", &["i"], &[reserved("podgroups", "g", "g-uid")]);
    let mut pod = pod();
    let group = serde_json::json!({ "podGroupName": "g" });
    pod.spec.as_mut().unwrap().scheduling_group = serde_json::from_value(group).unwrap();
    for (settings, pods) in [(settings, "1 pod in 1 namespace"), (Settings::default(), "0 pods in 0 namespaces")] {
        let mut world = World::with(settings);
        world.apply(Change::Claim(claim.clone()));
        world.apply(Change::Pod(pod.clone()));
        world.apply(Change::Rule(rule_of("None")));
        world.run();
        let hits = format!("0 published devices match; 1 allocated device matches; {pods}");
        assert_eq!(world.calls(), [format!("status r: False NoEffect {hits} {PREVIEW}")]);
    }
}

/// TAINT-S43.
#[test]
fn the_preview_counts_devices_of_claims_without_slices() {
    let two = claim_of("c2", &["i", "x"], &[reserved("pods", "p2", "p2-uid")]);
    let mut world = World::after([Change::Claim(claim()), Change::Claim(two), Change::Pod(pod()), second_pod()]);
    world.apply(Change::Rule(rule_of("None")));
    world.run();
    let hits = "0 published devices match; 3 allocated devices match; 2 pods in 1 namespace";
    assert_eq!(world.calls(), [format!("status r: False NoEffect {hits} {PREVIEW}")]);
}

#[test]
fn other_effects_never_evict() {
    for effect in ["NoSchedule", "Shatter"] {
        let mut world = World::after([Change::Claim(claim()), Change::Pod(pod()), Change::Rule(rule_of(effect))]);
        world.run_until(after(60));
        assert_eq!(world.calls(), ["status r: False OtherEffect this effect never evicts"]);
    }
}

/// TAINT-S45.
#[test]
fn a_rule_that_becomes_no_execute_evicts_at_once_and_its_end_forgets_the_statistics() {
    let mut world = World::after([Change::Claim(claim()), Change::Pod(pod()), Change::Rule(rule_of("None"))]);
    world.run_until(after(20));
    world.calls();
    world.apply(Change::Rule(changed_rule(&world.rule(), "NoExecute", after(20))));
    world.run();
    let pending = "status r: True PodsPendingEviction 1 pod pending eviction in 1 namespace";
    assert_eq!(world.calls(), [pending, "get p", "patch p", "delete p"]);
    assert_eq!(world.evicted[0].late, std::time::Duration::ZERO);
    world.run_until(after(30));
    assert_eq!(world.calls(), ["status r: False Completed 1 pod evicted since controller start"]);
    let id = RuleId { name: "r".into(), uid: "r-uid".into() };
    assert_eq!(world.core.rule_counts(&id).evicted, 1);
    world.delete(Change::Rule(world.rule()));
    assert_eq!(world.core.rule_counts(&id), RuleCounts::default());
}

/// TAINT-S46.
#[test]
fn a_rule_stays_in_progress_while_its_pod_is_tolerated() {
    let claim = tolerating(claim(), &[for_seconds(30)]);
    let mut world = World::after([Change::Claim(claim), Change::Pod(pod()), Change::Rule(rule_of("None"))]);
    world.run_until(after(20));
    world.apply(Change::Rule(changed_rule(&world.rule(), "NoExecute", after(20))));
    world.run_until(after(49));
    assert_eq!(world.evicted, []);
    world.run_until(after(59));
    assert_eq!(world.evicted.len(), 1);
    let calls = world.calls();
    assert_eq!(&calls[calls.len() - 3..], ["get p", "patch p", "delete p"], "the status stays until the update");
    world.run_until(after(60));
    assert_eq!(world.calls(), ["status r: False Completed 1 pod evicted since controller start"]);
}

/// TAINT-S47.
#[test]
fn a_rule_whose_pod_disappears_is_not_in_progress_ten_seconds_later() {
    let claim = tolerating(claim(), &[for_seconds(9000)]);
    let mut world = World::after([Change::Claim(claim), Change::Pod(pod()), Change::Rule(rule())]);
    world.run_until(after(60));
    world.calls();
    world.delete(Change::Pod(pod()));
    world.run_until(after(70));
    assert_eq!(world.calls(), ["status r: False NotStarted"]);
}

/// TAINT-S48.
#[test]
fn rules_have_no_effect_while_their_feature_gate_is_off() {
    let settings = Settings { rules: false, ..Settings::default() };
    let changes = [Change::Claim(claim()), Change::Pod(pod()), Change::Rule(rule())];
    in_all_orders(settings, &changes, |mut world| {
        assert_eq!(world.queue.len(), 0);
        world.run_until(after(60));
        assert_eq!((world.calls(), world.claim_eviction()), (vec![], None));
    });
}

/// TAINT-S49.
#[test]
fn a_rule_that_replaces_another_starts_with_new_statistics_and_an_immediate_status() {
    let mut world = World::after([Change::Claim(claim()), Change::Pod(pod()), Change::Rule(rule())]);
    world.run_until(after(60));
    world.calls();
    let mut new = rule();
    new.metadata.uid = Some("new-uid".into());
    world.apply(Change::Rule(new));
    world.run();
    assert_eq!(world.calls(), ["status r: False NotStarted"]);
}

#[test]
fn a_change_of_the_metadata_of_a_rule_evaluates_and_queues_nothing() {
    let mut world = World::after([Change::Claim(claim()), Change::Pod(pod()), Change::Rule(rule_of("None"))]);
    world.run();
    let mut labelled = world.rule();
    labelled.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    world.core.rule_event(crate::resource_claim::WatchEvent::Apply(labelled.into()), T0);
    assert!(!world.core.has_work());
}

/// The write of an earlier leader may reach the server after those of the next one.
#[test]
fn a_status_that_another_writer_has_changed_is_written_again() {
    let mut world = World::after([Change::Rule(rule())]);
    world.run_until(after(60));
    world.calls();
    let mut late = world.rule();
    let condition = &mut late.status.as_mut().unwrap().conditions.as_mut().unwrap()[0];
    (condition.status, condition.reason) = ("True".to_owned(), "PodsPendingEviction".to_owned());
    world.apply(Change::Rule(late));
    world.run_until(after(69));
    assert_eq!(world.calls(), Vec::<String>::new());
    world.run_until(after(70));
    assert_eq!(world.calls(), ["status r: False NotStarted"]);
    world.run_until(after(3600));
    assert_eq!((world.calls(), world.queue.len()), (vec![], 0), "its own write is no change of another writer");
}

#[test]
fn a_status_with_a_time_of_the_future_is_replaced_after_ten_seconds() {
    let claim = tolerating(claim(), &[for_seconds(9000)]);
    let mut written = rule();
    let condition = serde_json::json!([{
        "type": "EvictionInProgress", "status": "False", "reason": "NotStarted", "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2000-01-01T00:30:00Z",
    }]);
    written.status.get_or_insert_default().conditions = serde_json::from_value(condition).unwrap();
    let mut world = World::after([Change::Claim(claim), Change::Pod(pod()), Change::Rule(written), second_claim()]);
    world.run_until(after(9));
    assert_eq!(world.calls(), Vec::<String>::new());
    world.run_until(after(10));
    assert_eq!(world.calls(), ["status r: True PodsPendingEviction 1 pod pending eviction in 1 namespace"]);
}

#[test]
fn a_refused_status_is_tried_again() {
    let mut world = World::after([Change::Rule(rule())]);
    world.refuse = Some("status");
    world.run_until(after(30));
    assert!(world.calls().len() > 5);
    world.refuse = None;
    world.run_until(after(3600));
    assert_eq!(world.calls().len(), 1);
}
