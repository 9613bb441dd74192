//! Taints, claims, pods and rules that change while pods are evicted, also while no watch runs.

use std::sync::atomic::{AtomicUsize, Ordering};

use podwright_cluster::taints::{LONG_AGO, RULES, forever};
use podwright_controllers::device_taint_eviction::Settings;
use podwright_stand_in::{Fault, Verb};

use super::taint_replica::TaintReplica;
use super::*;

/// The notes of the events of a pod.
fn notes(cluster: &Cluster, pod: &str) -> Vec<String> {
    let events = cluster.server.all("events");
    let of_pod = events.iter().filter(|event| {
        let object = if event["regarding"].is_null() { &event["involvedObject"] } else { &event["regarding"] };
        object["name"] == pod
    });
    let note = |event: &Arc<Value>| event["note"].as_str().or(event["message"].as_str()).unwrap_or_default().to_owned();
    of_pod.map(note).collect()
}

/// Stalls these calls from the one of this number on, and counts them.
fn stall(cluster: &Cluster, verb: Verb, resource: &'static str, from: usize) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let (stalled, mut number) = (count.clone(), 0);
    cluster.server.faults().on(move |request| {
        if request.verb != Some(verb) || request.resource != resource {
            return None;
        }
        number += 1;
        (number > from).then(|| {
            stalled.fetch_add(1, Ordering::Relaxed);
            Fault::Stall
        })
    });
    count
}

async fn until_stalled(stalled: &AtomicUsize, count: usize) {
    eventually("the calls are sent", || async { (stalled.load(Ordering::Relaxed) == count).then_some(()) }).await;
}

fn taint() -> Value {
    json!([{"key": "t", "value": "v", "effect": "NoExecute", "timeAdded": LONG_AGO}])
}

/// A claim that several pods share, while entries of absent and replaced pods and of unknown kinds stand before them.
#[tokio::test]
async fn all_consumers_of_a_shared_claim_are_evicted_whatever_entries_precede_them() {
    let cluster = Cluster::start().await;
    cluster.claim_of_device("shared", "i0", &json!([]));
    for pod in ["replaced", "a", "b"] {
        let claims = json!([{"name": "c0", "resourceClaimName": "shared"}]);
        cluster.pod_with(pod, &claims, &json!({"nodeName": "n1"}));
    }
    let consumers = json!([
        {"resource": "pods", "name": "absent", "uid": "absent-uid"},
        {"resource": "pods", "name": "replaced", "uid": "earlier-uid"},
        {"resource": "widgets", "apiGroup": "example.com", "name": "w", "uid": "w-uid"},
        {"resource": "podgroups", "apiGroup": "scheduling.k8s.io", "name": "g", "uid": "g-uid"},
        cluster.consumer("a"),
        cluster.consumer("b"),
    ]);
    cluster.reserve("shared", &consumers);
    cluster.tainted_slice();
    let replica = TaintReplica::start(client(&cluster).await, Settings::default());
    eventually("both pods are deleted", || async {
        ["a", "b"].iter().all(|pod| cluster.is_deleted(pod)).then_some(())
    })
    .await;
    replica.until_pending(0).await;
    assert!(!cluster.is_deleted("replaced"));
    assert_eq!(cluster.calls(Verb::Delete, "pods").len(), 2);
    replica.stop().await;
}

/// The taint is lifted at each step of the pass of its pod, and added again.
#[tokio::test]
async fn taint_that_is_lifted_at_each_step_keeps_the_pod_and_evicts_it_when_it_returns() {
    for (verb, resource) in [(Verb::Get, "pods"), (Verb::Patch, "pods/status")] {
        let cluster = Cluster::start().await;
        cluster.users(1, &json!([]));
        let stalled = stall(&cluster, verb, resource, 0);
        cluster.tainted_slice();
        let replica = TaintReplica::start(client(&cluster).await, Settings::default());
        replica.until_pending(1).await;
        until_stalled(&stalled, 1).await;
        cluster.set_taints(&json!([]));
        replica.until_pending(0).await;
        cluster.server.faults().clear();
        eventually("the pass has ended", || async {
            let controller = replica.current.borrow().clone()?;
            (controller.queued() == 0).then_some(())
        })
        .await;
        assert!(!cluster.is_deleted("p0"), "after {verb:?} {resource}");
        assert_eq!(cluster.calls(Verb::Delete, "pods").len(), 0);
        eventually("the event is written", || async {
            notes(&cluster, "p0").iter().any(|note| note == "Cancelling deletion").then_some(())
        })
        .await;
        cluster.set_taints(&taint());
        eventually("the pod is deleted", || async { cluster.is_deleted("p0").then_some(()) }).await;
        replica.stop().await;
    }
}

/// Changes the cluster while no watch runs. The next watches begin with lists.
async fn during_an_outage(cluster: &Cluster, change: impl FnOnce()) {
    cluster.server.stop().await;
    change();
    cluster.server.compact();
    cluster.server.resume().await.unwrap();
}

#[tokio::test]
async fn claim_that_gets_another_device_during_an_outage_evicts_its_pod() {
    let cluster = Cluster::start().await;
    cluster.claim_of_device("c0", "untainted", &forever());
    cluster.pod_with("p0", &json!([{"name": "c0", "resourceClaimName": "c0"}]), &json!({"nodeName": "n1"}));
    cluster.reserve("c0", &json!([cluster.consumer("p0")]));
    cluster.tainted_slice();
    let replica = TaintReplica::start(client(&cluster).await, Settings::default());
    replica.until_pending(0).await;
    during_an_outage(&cluster, || {
        let none = json!({"status": {"allocation": null, "reservedFor": null}});
        cluster.server.request("PATCH", &format!("{CLAIMS}/c0/status"), MERGE, &none).unwrap();
        let result = json!({"request": "r", "driver": "d", "pool": "w", "device": "i0"});
        let status = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
        cluster.server.request("PATCH", &format!("{CLAIMS}/c0/status"), MERGE, &status).unwrap();
        cluster.reserve("c0", &json!([cluster.consumer("p0")]));
    })
    .await;
    eventually("the pod is deleted", || async { cluster.is_deleted("p0").then_some(()) }).await;
    replica.stop().await;
}

#[tokio::test]
async fn pod_and_rule_that_are_replaced_during_an_outage_are_others() {
    let cluster = Cluster::start().await;
    cluster.users(1, &forever());
    cluster.rule();
    let replica = TaintReplica::start(client(&cluster).await, Settings::default());
    replica.until_pending(1).await;
    eventually("the rule is in progress", || async {
        (cluster.progress()? == (json!("True"), json!("PodsPendingEviction"))).then_some(())
    })
    .await;
    during_an_outage(&cluster, || {
        cluster.delete(PODS, "p0");
        cluster.delete(RULES, "r");
        cluster.pod_with("p0", &json!([{"name": "c0", "resourceClaimName": "c0"}]), &json!({"nodeName": "n1"}));
        cluster.rule();
    })
    .await;
    // The claim is still reserved for the earlier pod.
    replica.until_pending(0).await;
    eventually("the new rule has a status", || async {
        (cluster.progress()? == (json!("False"), json!("NotStarted"))).then_some(())
    })
    .await;
    cluster.reserve("c0", &json!([cluster.consumer("p0")]));
    replica.until_pending(1).await;
    assert!(notes(&cluster, "p0").is_empty(), "the earlier pod is gone, so it has no event");
    replica.stop().await;
}

#[tokio::test]
async fn rule_that_is_deleted_during_an_outage_keeps_the_pods() {
    let cluster = Cluster::start().await;
    cluster.users(2, &forever());
    cluster.rule();
    let replica = TaintReplica::start(client(&cluster).await, Settings::default());
    replica.until_pending(2).await;
    during_an_outage(&cluster, || cluster.delete(RULES, "r")).await;
    replica.until_pending(0).await;
    eventually("the events are written", || async {
        ["p0", "p1"].iter().all(|pod| notes(&cluster, pod) == ["Cancelling deletion"]).then_some(())
    })
    .await;
    replica.stop().await;
}

/// Two replicas lead at the same time, such as after the machine of one was suspended. Neither disturbs the other.
#[tokio::test]
async fn leaders_that_overlap_delete_all_pods_and_no_other() {
    const PODS: usize = 16;
    let cluster = Cluster::start().await;
    cluster.users(PODS, &json!([]));
    cluster.claim_of_device("other", "untainted", &json!([]));
    cluster.pod_with("other", &json!([{"name": "c0", "resourceClaimName": "other"}]), &json!({"nodeName": "n1"}));
    cluster.reserve("other", &json!([cluster.consumer("other")]));
    let leaders = [
        TaintReplica::start(client(&cluster).await, Settings::default()),
        TaintReplica::start(client(&cluster).await, Settings::default()),
    ];
    for leader in &leaders {
        leader.until_pending(0).await;
    }
    let devices: Vec<_> = (0..PODS).map(|at| format!("i{at}")).collect();
    cluster.slice_with_tainted(&devices.iter().map(String::as_str).collect::<Vec<_>>());
    eventually("all pods are deleted", || async {
        (0..PODS).all(|at| cluster.is_deleted(&format!("p{at}"))).then_some(())
    })
    .await;
    for leader in leaders {
        leader.until_pending(0).await;
        leader.stop().await;
    }
    assert!(!cluster.is_deleted("other"));
    let refused =
        cluster.calls(Verb::Delete, "pods").into_iter().find(|served| served.code >= 400 && served.code != 404);
    assert!(refused.is_none(), "{refused:?}");
}

/// The leader dies while it deletes pods. The next one deletes the others, and none twice.
#[tokio::test]
async fn next_leader_deletes_the_pods_that_are_left() {
    const PODS: usize = 24;
    let cluster = Cluster::start().await;
    cluster.users(PODS, &json!([]));
    let stalled = stall(&cluster, Verb::Delete, "pods", 10);
    let leader = TaintReplica::elected(client(&cluster).await, Settings::default(), "leader");
    cluster.rule();
    // All workers wait.
    until_stalled(&stalled, 8).await;
    leader.crash();
    // The server may perform the calls of the dead leader, or not.
    cluster.server.faults().clear();
    let next = TaintReplica::elected(client(&cluster).await, Settings::default(), "next");
    eventually("all pods are deleted", || async {
        (0..PODS).all(|at| cluster.is_deleted(&format!("p{at}"))).then_some(())
    })
    .await;
    next.until_pending(0).await;
    for at in 0..PODS {
        let name = format!("p{at}");
        let deleted = cluster.calls(Verb::Delete, "pods").iter().filter(|s| s.name == name && s.code == 200).count();
        assert!(deleted <= 1, "{name} was deleted {deleted} times");
    }
    next.stop().await;
}
