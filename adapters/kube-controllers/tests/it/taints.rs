//! The device taint eviction controller: pods of tainted devices are deleted, once each.

use podwright_cluster::taints::SLICES;
use podwright_controllers::device_taint_eviction::Settings;
use podwright_stand_in::{Fault, Refusal, Rule, Verb};

use super::taint_replica::TaintReplica;
use super::*;

#[tokio::test]
async fn tainted_device_evicts_its_pod_with_three_calls_and_an_event() {
    let cluster = Cluster::start().await;
    cluster.users(2, &json!([]));
    let off = Settings { rules: false, ..Settings::default() };
    let replica = TaintReplica::start(client(&cluster).await, off);
    cluster.rule();
    replica.until_pending(0).await;
    cluster.server.forget_requests();
    cluster.tainted_slice();
    eventually("the pod is deleted", || async { cluster.is_deleted("p0").then_some(()) }).await;
    let conditions = cluster.object("pods", "p0")["status"]["conditions"].clone();
    let condition = conditions.as_array().unwrap().iter().find(|c| c["type"] == "DisruptionTarget").unwrap().clone();
    assert_eq!(condition["reason"], "DeletionByDeviceTaintManager");
    eventually("the event is written", || async {
        cluster
            .server
            .all("events")
            .iter()
            .any(|event| event["note"] == "Marking for deletion" || event["message"] == "Marking for deletion")
            .then_some(())
    })
    .await;
    eventually("the deletion is counted", || async {
        let text = replica.metrics.encode(podwright_metrics::Format::Classic);
        text.contains("device_taint_eviction_controller_pod_deletions_total 1\n").then_some(())
    })
    .await;
    let calls = [(Verb::Get, "pods"), (Verb::Patch, "pods/status"), (Verb::Delete, "pods")];
    assert_eq!(calls.map(|(verb, resource)| cluster.calls(verb, resource).len()), [1, 1, 1]);
    assert!(!cluster.is_deleted("p1"));
    assert!(cluster.server.requests().iter().all(|served| served.resource != "devicetaintrules"));
    replica.stop().await;
}

#[tokio::test]
async fn rule_shows_its_evictions() {
    let cluster = Cluster::start().await;
    cluster.users(
        3,
        &json!([{"key": "t", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2_000_000_000}]),
    );
    cluster.rule();
    let replica = TaintReplica::start(client(&cluster).await, Settings::default());
    replica.until_pending(3).await;
    eventually("the rule is in progress", || async {
        (cluster.progress()? == (json!("True"), json!("PodsPendingEviction"))).then_some(())
    })
    .await;
    assert_eq!(cluster.calls(Verb::Delete, "pods").len(), 0);
    replica.stop().await;
}

#[tokio::test]
async fn slice_that_is_deleted_during_an_outage_cancels_the_eviction() {
    let cluster = Cluster::start().await;
    cluster.users(1, &json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2_000_000_000}]));
    cluster.tainted_slice();
    let replica = TaintReplica::start(client(&cluster).await, Settings::default());
    replica.until_pending(1).await;
    cluster.server.stop().await;
    cluster.delete(SLICES, "s");
    cluster.server.compact();
    cluster.server.resume().await.unwrap();
    replica.until_pending(0).await;
    assert!(!cluster.is_deleted("p0"));
    replica.stop().await;
}

#[tokio::test]
async fn server_that_fails_half_of_the_writes_deletes_each_pod_once() {
    const PODS: usize = 40;
    let cluster = Cluster::start().await;
    cluster.users(PODS, &json!([]));
    let faults = [
        Fault::too_many_requests(1),
        Fault::status(500),
        Fault::RefuseAfter(Refusal::plain(500, "InternalError", "the answer was lost")),
    ];
    for (verb, resource) in [(Verb::Patch, "pods/status"), (Verb::Delete, "pods")] {
        for fault in &faults {
            let rule = Rule::new().verb(verb).resource(resource).percent(20);
            cluster.server.faults().inject(rule, fault.clone());
        }
    }
    let replica = TaintReplica::start(client(&cluster).await, Settings::default());
    replica.until_pending(0).await;
    cluster.rule();
    eventually("all pods are deleted", || async {
        (0..PODS).all(|at| cluster.is_deleted(&format!("p{at}"))).then_some(())
    })
    .await;
    replica.until_pending(0).await;
    for at in 0..PODS {
        let name = format!("p{at}");
        let succeeded = cluster.calls(Verb::Delete, "pods").iter().filter(|s| s.name == name && s.code == 200).count();
        assert!(succeeded <= 1, "{name} was deleted {succeeded} times");
    }
    replica.stop().await;
}
