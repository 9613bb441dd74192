//! Tables of victims.

use serde_json::{Value, json};

use super::*;
use crate::pod::SYSTEM_CRITICAL_PRIORITY;
use crate::testing::{PodBuilder, pod};

/// A pod with CPU in thousandths and memory in bytes, and limits of the same size if it is guaranteed.
fn with(name: &str, class: &str, cpu: i64, memory: i64) -> PodBuilder {
    let amounts = json!({"cpu": format!("{cpu}m"), "memory": memory.to_string()});
    let resources = match class {
        "guaranteed" => json!({"requests": amounts, "limits": amounts}),
        "burstable" => json!({"requests": amounts}),
        _ => json!({}),
    };
    pod(name).spec(|spec| {
        spec.containers = serde_json::from_value(json!([{"name": "main", "resources": resources}])).unwrap();
    })
}

fn priority(pod: PodBuilder, priority: i32) -> Arc<PodObject> {
    pod.spec(|spec| spec.priority = Some(priority)).build()
}

fn short(missing: &[(&str, i64)]) -> Vec<Shortage> {
    let shortage = |(resource, missing): &(&str, i64)| Shortage {
        resource: (*resource).to_owned(),
        requested: *missing,
        used: 10,
        capacity: 10,
    };
    missing.iter().map(shortage).collect()
}

fn victims(pod: &PodObject, candidates: &[Arc<PodObject>], missing: &[(&str, i64)]) -> Result<Vec<String>, Value> {
    match choose_victims(pod, candidates, &short(missing)) {
        Ok(pods) => Ok(pods.iter().map(|pod| pod.full_name().name().to_owned()).collect()),
        Err(left) => Err(json!(left)),
    }
}

#[test]
fn victims_are_few_and_of_the_lowest_class_that_suffices() {
    let critical = priority(pod("critical"), SYSTEM_CRITICAL_PRIORITY);
    let all = [
        with("best", "best effort", 0, 0).build(),
        with("small", "burstable", 100, 100).build(),
        with("large", "burstable", 300, 300).build(),
        with("exact", "guaranteed", 100, 100).build(),
        with("huge", "guaranteed", 1000, 1000).build(),
    ];
    for (missing, expected) in [
        (&[("cpu", 50)][..], vec!["small"]),
        (&[("cpu", 100)], vec!["small"]),
        (&[("cpu", 101)], vec!["large"]),
        (&[("cpu", 300)], vec!["large"]),
        (&[("cpu", 400)], vec!["large", "small"]),
        // All burstable pods together give 400. The rest comes from the guaranteed pod with the smallest request.
        (&[("cpu", 401)], vec!["large", "small", "exact"]),
        (&[("cpu", 450)], vec!["large", "small", "exact"]),
        (&[("cpu", 501)], vec!["huge"]),
        (&[("cpu", 1500)], vec!["large", "small", "huge", "exact"]),
        (&[("pods", 1)], vec!["best"]),
        (&[("pods", 2), ("memory", 200)], vec!["best", "large"]),
        (&[], vec![]),
    ] {
        let victims = victims(&critical, &all, missing).unwrap();
        assert_eq!(victims, expected, "{missing:?}");
    }
}

#[test]
fn equal_distances_are_decided_by_the_smaller_request() {
    let critical = priority(pod("critical"), SYSTEM_CRITICAL_PRIORITY);
    let pods = [
        with("much memory", "burstable", 100, 900).build(),
        with("little memory", "burstable", 500, 100).build(),
        with("less cpu", "burstable", 400, 100).build(),
    ];
    assert_eq!(victims(&critical, &pods, &[("cpu", 100)]).unwrap(), ["less cpu"]);
}

#[test]
fn pods_that_cannot_give_enough_are_not_touched() {
    let critical = priority(pod("critical"), SYSTEM_CRITICAL_PRIORITY);
    let all = [with("a", "burstable", 100, 100).build(), with("b", "guaranteed", 100, 100).build()];
    assert_eq!(victims(&critical, &all, &[("cpu", 201), ("memory", 200)]), Err(json!([["cpu", 1]])));
    assert_eq!(victims(&critical, &[], &[("pods", 1), ("cpu", 5)]), Err(json!([["pods", 1], ["cpu", 5]])));
    assert_eq!(victims(&critical, &all, &[("hugepages-2Mi", 1)]), Err(json!([["hugepages-2Mi", 1]])));
}

#[test]
fn critical_pods_preempt_others_and_higher_priorities_preempt_lower_ones() {
    let system = SYSTEM_CRITICAL_PRIORITY;
    let api = |value: Option<i32>| pod("p").spec(|spec| spec.priority = value).build();
    let file = |value: Option<i32>| pod("p").static_pod().spec(|spec| spec.priority = value).build();
    for (own, other, expected) in [
        (file(None), api(None), true),
        (file(None), api(Some(system - 1)), true),
        (file(None), api(Some(system)), false),
        (file(None), file(None), false),
        (file(Some(5)), file(None), false),
        (file(Some(5)), file(Some(5)), false),
        (file(Some(5)), file(Some(4)), true),
        (file(Some(4)), file(Some(5)), false),
        (api(Some(system)), api(Some(5)), true),
        (api(Some(system + 1)), api(Some(system)), true),
        (api(Some(system)), file(None), false),
        (api(Some(7)), api(Some(5)), true),
        (api(None), api(None), false),
    ] {
        let (own_priority, other_priority) = (own.spec().priority, other.spec().priority);
        assert_eq!(may_preempt(&own, &other), expected, "{own_priority:?} {other_priority:?}");
    }
}
