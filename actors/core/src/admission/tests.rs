//! Tables of the node's checks, and the property of all admissions together.

mod model;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::requests::Requests;
use super::*;
use crate::pod::{Phase, SYSTEM_CRITICAL_PRIORITY};
use crate::testing::{PodBuilder, pod};

// POD-S53
#[test]
fn pods_that_run_may_run_or_still_stop_are_active() {
    let none = PodActivity::default();
    let rows = [
        ("Failed", none, false),
        ("Succeeded", none, false),
        ("Running", PodActivity { termination_requested: true, ..none }, true),
        ("Pending", none, true),
        ("Running", none, true),
        ("Running", PodActivity { cached_phase: Some(Phase::Failed), ..none }, false),
        ("Running", PodActivity { known_terminated: true, termination_requested: true, ..none }, false),
        ("Failed", PodActivity { termination_requested: true, ..none }, true),
    ];
    for (i, (phase, activity, active)) in rows.into_iter().enumerate() {
        assert_eq!(is_active(&pod("p").phase(phase).build(), activity), active, "row {i}");
    }
}

/// A pod with these fields in its spec.
fn of(name: &str, fields: Value) -> PodBuilder {
    pod(name).spec(|spec| {
        let mut all = serde_json::to_value(&*spec).unwrap();
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        *spec = serde_json::from_value(all).unwrap();
    })
}

fn requesting(name: &str, requests: Value) -> PodBuilder {
    of(name, json!({"containers": [{"name": "main", "resources": {"requests": requests}}]}))
}

#[test]
fn a_pod_that_requests_more_than_is_left_is_rejected_with_a_reason() {
    let node = NodeCapacity::new(2000, 1 << 30, 3).ephemeral_storage(1 << 30).huge_pages("hugepages-2Mi", 4 << 20);
    let used = json!({"cpu": "1500m", "ephemeral-storage": "1Gi", "hugepages-2Mi": "2Mi"});
    let running = Admitted::from_iter([requesting("a", used).build()]);
    for (requests, expected) in [
        (json!({}), None),
        (json!({"cpu": "500m", "memory": "1Gi", "hugepages-2Mi": "2Mi"}), None),
        (json!({"cpu": "501m"}), Some(("OutOfcpu", "cpu, requested: 501, used: 1500, capacity: 2000"))),
        (
            json!({"memory": "2Gi"}),
            Some(("OutOfmemory", "memory, requested: 2147483648, used: 0, capacity: 1073741824")),
        ),
        (
            json!({"ephemeral-storage": "1"}),
            Some(("OutOfephemeral-storage", "ephemeral-storage, requested: 1, used: 1073741824, capacity: 1073741824")),
        ),
        (
            json!({"hugepages-2Mi": "4Mi"}),
            Some(("OutOfhugepages-2Mi", "hugepages-2Mi, requested: 4194304, used: 2097152, capacity: 4194304")),
        ),
        (
            json!({"hugepages-1Gi": "1Gi"}),
            Some(("OutOfhugepages-1Gi", "hugepages-1Gi, requested: 1073741824, used: 0, capacity: 0")),
        ),
        // The node has no such resource, and upstream admits the pod.
        (json!({"example.com/gpu": "1"}), None),
        (json!({"deviceclass.resource.kubernetes.io/gpu": "1"}), None),
        (json!({"memory": "2Gi", "cpu": "1"}), Some(("OutOfcpu", "cpu, requested: 1000, used: 1500, capacity: 2000"))),
    ] {
        let rejection = node.admit(&requesting("b", requests.clone()).build(), &running).err();
        let rejection = rejection.map(|it| (it.reason, it.message));
        let text =
            |(reason, end): (&str, &str)| (reason.to_owned(), format!("Node didn't have enough resource: {end}"));
        assert_eq!(rejection, expected.map(text), "{requests}");
    }
    let three = Admitted::from_iter(["a", "b", "c"].map(|name| pod(name).build()));
    let rejection = node.admit(&pod("d").build(), &three).unwrap_err();
    assert_eq!(rejection.reason, "OutOfpods");
    assert_eq!(rejection.message, "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3");
}

#[test]
fn the_first_failed_check_of_a_node_gives_reason_and_message() {
    let taint = serde_json::from_value(json!({"key": "drain", "effect": "NoExecute"})).unwrap();
    let node = NodePredicates::new("n1", NodeCapacity::new(2000, 1 << 30, 3))
        .labels(BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]))
        .taints(vec![taint])
        .strict_groups(|| false);
    let port = json!({"name": "main", "ports": [{"containerPort": 80, "hostPort": 80}]});
    let others = Admitted::from_iter([of("web", json!({"containers": [port]})).build()]);
    let critical = json!({"priority": SYSTEM_CRITICAL_PRIORITY});
    let with = |fields: &[Value]| {
        let mut all = json!({"tolerations": [{"operator": "Exists"}]});
        for field in fields {
            all.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        }
        all
    };
    let greedy = json!({"containers": [{"name": "main", "resources": {"requests": {"cpu": "9"}}}]});
    let groups = |policy: &str| json!({"securityContext": {"supplementalGroupsPolicy": policy}});
    let arch = super::node_predicates::architecture();
    let cpu = "Node didn't have enough resource: cpu, requested: 9000, used: 0, capacity: 2000";
    let ports = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    let affinity = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    let name = "Predicate NodeName failed: node(s) didn't match the requested node name";
    for (fields, expected) in [
        (with(&[]), None),
        (
            with(&[
                json!({"nodeSelector": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": "n1", "disk": "ssd"}}),
            ]),
            None,
        ),
        (with(&[json!({"nodeSelector": {"kubernetes.io/arch": arch}, "nodeName": "n1"})]), None),
        (with(&[json!({"os": {"name": "linux"}}), groups("Merge")]), None),
        (
            with(&[json!({"os": {"name": "windows"}}), greedy.clone()]),
            Some(("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")),
        ),
        (
            with(&[groups("Strict"), greedy.clone()]),
            Some((
                "SupplementalGroupsPolicyNotSupported",
                "SupplementalGroupsPolicy=Strict is not supported in this node",
            )),
        ),
        (with(&[greedy.clone(), json!({"nodeName": "n2"})]), Some(("OutOfcpu", cpu))),
        (with(&[greedy.clone(), critical.clone()]), Some(("OutOfcpu", cpu))),
        // A critical pod preempts no other pod if it cannot start anyway.
        (with(&[greedy, json!({"nodeName": "n2"}), critical]), Some(("NodeName", name))),
        (with(&[json!({"nodeSelector": {"disk": "hdd"}, "nodeName": "n2"})]), Some(("NodeAffinity", affinity))),
        (with(&[json!({"nodeName": "n2", "containers": [port]})]), Some(("NodeName", name))),
        (with(&[json!({"containers": [port]})]), Some(("NodePorts", ports))),
        (
            json!({}),
            Some((
                "TaintToleration",
                "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
            )),
        ),
    ] {
        let rejection = node.admit(&of("p", fields.clone()).build(), &others).err();
        let rejection = rejection.map(|it| (it.reason, it.message));
        assert_eq!(rejection, expected.map(|(reason, text)| (reason.to_owned(), text.to_owned())), "{fields}");
    }
    assert_eq!(node.admit(&pod("p").static_pod().build(), &others), Ok(()), "static pods ignore taints");
    let rejection = node.admit(&pod("p").label("kubernetes.io/os", "windows").build(), &others).unwrap_err();
    assert_eq!(rejection.reason, "PodOSSelectorNodeLabelDoesNotMatch");
    assert_eq!(rejection.message, "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label");
}

#[test]
fn only_a_lack_of_something_that_pods_give_back_may_end() {
    let node = NodePredicates::new("n1", NodeCapacity::new(2000, 1 << 30, 3));
    let port = json!({"containers": [{"name": "main", "ports": [{"containerPort": 80, "hostPort": 80}]}]});
    let others = Admitted::from_iter([of("web", port.clone()).build()]);
    for (fields, may_end) in [
        (port, true),
        (json!({"containers": [{"name": "main", "resources": {"requests": {"cpu": "9"}}}]}), true),
        (json!({"nodeName": "n2"}), false),
        (json!({"nodeSelector": {"a": "b"}}), false),
        (json!({"os": {"name": "windows"}}), false),
    ] {
        let rejection = node.admit(&of("p", fields.clone()).build(), &others).unwrap_err();
        assert_eq!((rejection.may_end(), is_lack(&rejection.reason)), (may_end, may_end), "{fields}");
    }
}

#[test]
fn room_that_a_stopping_pod_frees_is_kept_for_the_waiting_pod() {
    let node = NodeCapacity::new(4000, i64::MAX, 10);
    let cpu = |name: &str, cpu: &str| requesting(name, json!({"cpu": cpu})).build();
    let mut others = Admitted::default();
    others.push(cpu("stays", "1"));
    others.push_stopping(cpu("victim", "2"), None);
    others.push_waiting(cpu("critical", "3"), false);
    // One core is free now, and none once the critical pod runs.
    assert_eq!(node.admit(&cpu("late", "1"), &others).unwrap_err().reason, "OutOfcpu");
    assert_eq!(node.admit(&cpu("late", "0"), &others), Ok(()));
    let settled = others.settled(false);
    assert_eq!(settled.pods().map(|pod| pod.full_name().name()).collect::<Vec<_>>(), ["stays", "critical"]);
    let mut others = Admitted::default();
    others.push(cpu("stays", "1"));
    others.push_stopping(cpu("victim", "2"), None);
    others.push_waiting(cpu("critical", "2"), false);
    assert_eq!(node.admit(&cpu("late", "1"), &others), Ok(()), "the free core is not needed by the critical pod");
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    // Pods arrive, are stopped, wait and end in any order. What was admitted never requests more than the node has, and neither
    // does it together with the waiting pods once the stopping pods are gone.
    #[test]
    fn admitted_pods_never_request_more_than_the_node_has(
        events in prop::collection::vec((0u8..4, 0i64..1500, 0usize..8), 1..60),
    ) {
        let node = NodeCapacity::new(4000, i64::MAX, 6);
        let (mut staying, mut stopping, mut waiting) = (Vec::new(), Vec::new(), Vec::<Arc<PodObject>>::new());
        for (number, (event, cpu, index)) in events.into_iter().enumerate() {
            let others = |staying: &[Arc<PodObject>], stopping: &[Arc<PodObject>], waiting: &[Arc<PodObject>]| {
                let mut others = Admitted::default();
                staying.iter().for_each(|pod| others.push(pod.clone()));
                stopping.iter().for_each(|pod| others.push_stopping(pod.clone(), None));
                waiting.iter().for_each(|pod| others.push_waiting(pod.clone(), false));
                others
            };
            match event {
                0 | 1 => {
                    let new = requesting(&format!("p{number}"), json!({"cpu": format!("{cpu}m")})).static_pod().build();
                    let all = others(&staying, &stopping, &waiting);
                    if node.admit(&new, &all).is_ok() {
                        staying.push(new);
                    } else if node.admit(&new, &all.settled(false)).is_ok() {
                        waiting.push(new);
                    }
                }
                2 if !staying.is_empty() => stopping.push(staying.swap_remove(index % staying.len())),
                3 if !stopping.is_empty() => {
                    stopping.swap_remove(index % stopping.len());
                    let mut left = Vec::new();
                    while let Some(pod) = waiting.pop() {
                        let mut reserved = left.clone();
                        reserved.extend(waiting.iter().cloned());
                        match node.admit(&pod, &others(&staying, &stopping, &reserved)) {
                            Ok(()) => staying.push(pod),
                            Err(_) => left.push(pod),
                        }
                    }
                    waiting = left;
                }
                _ => {}
            }
            let sum = |pods: &mut dyn Iterator<Item = &Arc<PodObject>>| {
                let mut sum = Requests::default();
                pods.for_each(|pod| sum.add(&Requests::of(pod)));
                (sum.get("cpu"), sum.get("pods"))
            };
            for (cpu, pods) in [
                sum(&mut staying.iter().chain(&stopping)),
                sum(&mut staying.iter().chain(&waiting)),
            ] {
                prop_assert!(cpu <= 4000 && pods <= 6, "{cpu} {pods}");
            }
            prop_assert!(!stopping.is_empty() || waiting.is_empty(), "a waiting pod is admitted once nothing stops");
        }
    }
}
