//! The largest number of evictions for a rule.

mod leaders;
mod other_rules;
mod stored;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;

use super::super::super::table::WatchEvent;
use super::*;

/// Five pods, a limit, and a rule for all of them.
fn limited(limit: u64) -> World {
    limited_by(limit, rule())
}

fn limited_by(limit: u64, rule: DeviceTaintRule) -> World {
    let settings = Settings { max_evictions_per_rule: NonZeroU64::new(limit), ..Settings::default() };
    let mut world = World::with(settings);
    for number in 1..=5 {
        let (claim, pod) = (format!("c{number}"), format!("p{number}"));
        world.apply(Change::Claim(claim_for(&claim, &pod)));
        world.apply(Change::Pod(pod_of(&pod, &[&claim])));
    }
    world.apply(Change::Rule(rule));
    world
}

fn continue_to(world: &mut World, number: &str) {
    let mut rule = world.rule();
    rule.metadata.annotations = Some([(CONTINUE_ANNOTATION.to_owned(), number.to_owned())].into());
    world.apply(Change::Rule(rule));
}

fn limit_condition(world: &World) -> Option<String> {
    let conditions = world.rule().status?.conditions?;
    conditions.into_iter().find(|condition| condition.type_ == LIMIT_CONDITION).map(|condition| condition.status)
}

/// KF47.
#[test]
fn a_rule_for_all_devices_evicts_no_more_pods_than_the_limit() {
    let mut world = limited_by(2, rule_with("NoExecute", serde_json::json!({})));
    world.run_until(after(3600));
    assert_eq!((world.evicted.len(), world.pending().len()), (2, 3));
}

#[test]
fn evictions_stop_at_the_limit_and_a_condition_says_so() {
    let mut world = limited(2);
    world.run_until(after(3600));
    assert_eq!((world.evicted.len(), world.pending().len()), (2, 3));
    assert_eq!(limit_condition(&world).as_deref(), Some("True"));
    let last = world.calls().pop().unwrap();
    assert!(last.contains("3 pods pending eviction in 1 namespace; 2 pods evicted"), "{last}");
    assert!(last.contains("the limit of 2 evictions is reached"), "{last}");
    assert!(last.contains(CONTINUE_ANNOTATION), "{last}");
}

#[test]
fn the_annotation_of_the_rule_lets_the_evictions_go_on() {
    let mut world = limited(2);
    world.run_until(after(60));
    continue_to(&mut world, "4");
    world.run_until(after(120));
    assert_eq!(world.evicted.len(), 4);
    assert_eq!(limit_condition(&world).as_deref(), Some("True"));
    continue_to(&mut world, "no number");
    world.run_until(after(180));
    assert_eq!(world.evicted.len(), 4);
    continue_to(&mut world, "100");
    world.run_until(after(3600));
    assert_eq!((world.evicted.len(), world.pending().len()), (5, 0));
    assert_eq!(limit_condition(&world).as_deref(), Some("False"));
}

#[test]
fn a_limit_that_is_not_reached_has_a_condition_with_the_number_of_evictions() {
    let mut world = limited(100);
    world.run_until(after(3600));
    assert_eq!((world.evicted.len(), limit_condition(&world).as_deref()), (5, Some("False")));
    let calls = world.calls();
    let statuses: Vec<_> = calls.iter().filter(|call| call.starts_with("status")).collect();
    assert_eq!(statuses.len(), 2, "the number has no write of its own: {statuses:?}");
    assert!(statuses[0].ends_with("| False BelowLimit 0 evictions counted; 10 more reserved"), "{statuses:?}");
    assert!(statuses[1].ends_with("| False BelowLimit 5 evictions counted"), "{statuses:?}");
}

#[test]
fn the_number_is_stored_ahead_in_tenths_of_the_limit() {
    let mut world = limited(20);
    world.run();
    let calls = world.calls();
    let kinds: Vec<_> =
        calls.iter().map(|call| call.split(' ').next().unwrap()).filter(|kind| *kind != "get").collect();
    let pods = |number| ["patch", "delete"].repeat(number);
    let expected = [vec!["status"], pods(2), vec!["status"], pods(2), vec!["status"], pods(1)].concat();
    assert_eq!(kinds, expected, "{calls:?}");
    assert!(calls[0].ends_with("0 evictions counted; 2 more reserved"), "{calls:?}");
    world.run_until(after(3600));
    let statuses: Vec<_> = world.calls().into_iter().filter(|call| call.starts_with("status")).collect();
    assert!(matches!(statuses.as_slice(), [exact] if exact.ends_with("5 evictions counted")), "{statuses:?}");
}

#[test]
fn pods_that_are_due_apart_need_one_more_write_each() {
    let statuses = |limit| {
        let mut world = World::with(Settings { max_evictions_per_rule: NonZeroU64::new(limit), ..Settings::default() });
        for number in 1..=5 {
            let (claim, pod) = (format!("c{number}"), format!("p{number}"));
            world.apply(Change::Claim(tolerating(claim_for(&claim, &pod), &[for_seconds(30 * number)])));
            world.apply(Change::Pod(pod_of(&pod, &[&claim])));
        }
        world.apply(Change::Rule(rule()));
        world.run_until(after(3600));
        assert_eq!(world.evicted.len(), 5);
        world.calls().into_iter().filter(|call| call.starts_with("status")).count()
    };
    assert_eq!(statuses(100), statuses(0) + 5, "the limit and no limit");
}

#[test]
fn no_pod_goes_before_the_number_is_stored() {
    for (limit, after_all) in [(2, 2), (20, 5)] {
        let mut world = limited(limit);
        world.refuse = Some("status");
        world.run_until(after(60));
        assert_eq!(world.evicted.len(), 0, "the limit {limit}");
        let detail = world.core.explain_pod(&ObjectKey::new(NAMESPACE, "p5"), world.now).detail;
        assert!(detail.contains("must store the number of its evictions in its status first"), "{detail}");
        world.refuse = None;
        world.run_until(after(3600));
        assert_eq!(world.evicted.len(), after_all, "the limit {limit}");
    }
}

#[test]
fn evictions_go_on_ten_seconds_after_a_long_outage_of_the_status() {
    // A server that does not serve rules yet has no rule.
    for kind in [ApiErrorKind::Unknown, ApiErrorKind::Refused, ApiErrorKind::NotFound] {
        let mut world = limited(2);
        (world.refuse, world.refusal) = (Some("status"), kind);
        world.run_until(after(2000));
        assert_eq!(world.evicted.len(), 0, "{kind:?}");
        world.refuse = None;
        world.run_until(after(2010));
        assert_eq!(world.evicted.len(), 2, "{kind:?}");
    }
}

#[test]
fn a_status_goes_before_pods_that_are_ready_only_if_pods_wait_for_it() {
    let mut world = World::after([Change::Slice(tainted_slice()), Change::Claim(claim()), Change::Pod(pod())]);
    world.queue.make_all_ready();
    world.apply(Change::Rule(rule()));
    assert!(matches!(world.queue.take(world.now), Some(Item::Pod(_))), "no limit");
    assert!(matches!(world.queue.take(world.now), Some(Item::Rule(_))));

    let mut world = limited(1);
    assert!(matches!(world.queue.take(world.now), Some(Item::Rule(_))), "the order of the additions");
    let first = world.queue.take(world.now).unwrap();
    let step = world.core.begin(&first).step(&mut world.core, None, world.now);
    assert!(matches!(step, Step::Done(_)), "{first} waits for the status");
    let rule = Item::Rule(RuleId { name: "r".into(), uid: "r-uid".into() });
    world.queue.done(&rule, podwright_work_queue::Outcome::Finished, world.now);
    world.evaluate();
    assert_eq!(world.queue.take(world.now), Some(rule), "before the four other pods");
}

/// Five pods that tolerate the rule for different times, so that the order of their names is not that of their evictions. The controller
/// starts when all are overdue.
fn overdue(limit: u64) -> World {
    let settings = Settings { max_evictions_per_rule: NonZeroU64::new(limit), ..Settings::default() };
    let mut world = World::with(settings);
    world.now = after(1000);
    for number in 1..=5 {
        let (claim, pod) = (format!("c{number}"), format!("p{number}"));
        let tolerations = [for_seconds(100 - 10 * number)];
        world.apply(Change::Claim(tolerating(claim_for(&claim, &pod), &tolerations)));
        world.apply(Change::Pod(pod_of(&pod, &[&claim])));
    }
    world.apply(Change::Rule(rule()));
    world
}

#[test]
fn the_pods_whose_evictions_were_due_first_get_the_slots() {
    for is_refused_first in [false, true] {
        let mut world = overdue(3);
        if is_refused_first {
            // All pods wait for the first write.
            world.refuse = Some("status");
            world.run();
            world.refuse = None;
        }
        world.run_until(after(2000));
        let evicted: Vec<_> = world.evicted.iter().map(|evicted| evicted.pod.key.name.as_str()).collect();
        assert_eq!(evicted, ["p5", "p4", "p3"]);
        let preview = world.core.explain_rule("r", world.now).preview.unwrap();
        let left: Vec<_> = preview.pods.iter().map(|pod| pod.pod.name.as_str()).collect();
        assert_eq!(left, ["p2", "p1"]);
    }
}

#[test]
fn a_pod_of_a_slice_does_not_wait_for_the_status_of_a_rule() {
    let mut world = limited(2);
    world.refuse = Some("status");
    world.apply(Change::Slice(tainted_slice()));
    assert_eq!(evicted_and_pending(&mut world), (5, 0));
}

#[test]
fn a_cancelled_eviction_frees_its_slot_for_another_pod() {
    let mut world = limited(1);
    world.during = Some(("patch p1", Change::Claim(claim_of("c1", &["i"], &[]))));
    world.run_until(after(3600));
    assert_eq!((world.evicted.len(), world.pending().len()), (1, 3));
}

#[test]
fn a_deletion_without_an_answer_keeps_its_slot() {
    let mut world = limited(1);
    world.refuse = Some("delete p1");
    world.run_until(after(60));
    world.delete(Change::Pod(pod_of("p1", &["c1"])));
    world.run_until(after(3600));
    assert_eq!((world.evicted.len(), world.pending().len()), (0, 4), "the pod may have been the one that was allowed");
}

fn evicted_and_pending(world: &mut World) -> (usize, usize) {
    world.run_until(world.now + Duration::from_secs(3600));
    (world.evicted.len(), world.pending().len())
}

/// A list of an older state of the server lacks the rule, and the watch shows it again before the pods are evaluated.
#[test]
fn a_rule_that_disappears_for_a_moment_does_not_lose_the_pods_that_it_holds() {
    let mut world = limited(1);
    world.run_until(after(60));
    let rule = Arc::new(world.rule());
    world.core.rule_event(WatchEvent::Delete(rule.clone()), world.now);
    world.core.rule_event(WatchEvent::Apply(rule), world.now);
    world.evaluate();
    assert_eq!(evicted_and_pending(&mut world), (1, 4));
    continue_to(&mut world, "100");
    assert_eq!(evicted_and_pending(&mut world), (5, 0));
}

#[test]
fn a_pod_whose_deletion_is_refused_frees_its_slot() {
    let refused = [
        ("patch p1", ApiErrorKind::Unknown, 2, 3),
        ("patch p1", ApiErrorKind::Refused, 2, 3),
        ("delete p1", ApiErrorKind::Refused, 2, 3),
        ("delete p1", ApiErrorKind::Unknown, 1, 4),
    ];
    for (call, kind, evicted, pending) in refused {
        let mut world = limited(2);
        (world.refuse, world.refusal) = (Some(call), kind);
        assert_eq!(evicted_and_pending(&mut world), (evicted, pending), "{call} {kind:?}");
    }
}

#[test]
fn a_slot_that_may_be_used_is_not_freed_by_a_later_refusal() {
    let mut world = limited(1);
    world.refuse = Some("delete p1");
    world.run();
    world.refusal = ApiErrorKind::Refused;
    assert_eq!(evicted_and_pending(&mut world), (0, 5));
}

#[test]
fn an_annotation_without_a_number_is_reported() {
    let mut world = limited(2);
    continue_to(&mut world, "all");
    world.run_until(after(60));
    let ignored = format!("the annotation {CONTINUE_ANNOTATION} is ignored, because \"all\" is no number");
    let last = world.calls().pop().unwrap();
    assert!(last.contains(&ignored), "{last}");
    let detail = world.core.explain_rule("r", world.now).detail;
    assert!(detail.contains(&ignored), "{detail}");
    continue_to(&mut world, "every");
    world.run_until(after(120));
    let last = world.calls().pop().unwrap();
    assert!(last.contains("because \"every\" is no number"), "{last}");
}

#[test]
fn the_condition_keeps_the_time_of_its_status_when_its_message_changes() {
    let mut world = limited(2);
    world.run_until(after(60));
    let times = |world: &World| {
        let conditions = world.rule().status.unwrap().conditions.unwrap();
        [IN_PROGRESS_CONDITION, LIMIT_CONDITION].map(|type_| {
            let condition = conditions.iter().find(|condition| condition.type_ == type_).unwrap();
            Time::from_timestamp(condition.last_transition_time.0)
        })
    };
    let [in_progress, limit] = times(&world);
    continue_to(&mut world, "all");
    world.run_until(after(120));
    let [later, same] = times(&world);
    assert!(later > in_progress, "the message is written");
    assert_eq!(same, limit);
}

#[test]
fn taints_of_slices_have_no_limit() {
    let settings = Settings { max_evictions_per_rule: NonZeroU64::new(1), ..Settings::default() };
    let mut world = World::with(settings);
    world.apply(Change::Slice(tainted_slice()));
    for number in 1..=3 {
        let (claim, pod) = (format!("c{number}"), format!("p{number}"));
        world.apply(Change::Claim(claim_for(&claim, &pod)));
        world.apply(Change::Pod(pod_of(&pod, &[&claim])));
    }
    world.run_until(after(60));
    assert_eq!(world.evicted.len(), 3);
}
