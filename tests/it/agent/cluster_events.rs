//! Events in the API server that the stand-in serves over HTTP.

use std::sync::Arc;
use std::time::Duration;

use podwright_stand_in::{Fault, Rule};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::harness::{eventually, manifest};

impl Cluster {
    /// The event of a pod with this reason, once it has occurred `count` times.
    async fn event(&self, pod: &str, reason: &str, count: u64) -> Arc<Value> {
        let is_it = |event: &&Arc<Value>| {
            event["involvedObject"]["name"] == pod
                && event["reason"] == reason
                && event["count"].as_u64() >= Some(count)
        };
        let find = || async { self.server.all("events").iter().find(is_it).cloned() };
        eventually(&format!("{pod} has the event {reason} {count} times"), find).await
    }
}

#[tokio::test]
async fn events_of_a_pod_have_the_fields_of_a_kubelet_and_repetitions_are_counted() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    let ends = json!({"simulated.podwright.dev/run-for": "300ms", "simulated.podwright.dev/exit-code": "3"});
    cluster.create("web", &ends, &json!({}));
    let event = cluster.event("web", "Started", 1).await;
    let pod = cluster.server.get("pods", "default", "web").unwrap();
    let object = &event["involvedObject"];
    assert_eq!(object["uid"], pod["metadata"]["uid"]);
    assert_eq!(
        (&object["kind"], &object["apiVersion"], &object["namespace"]),
        (&json!("Pod"), &json!("v1"), &json!("default"))
    );
    assert_eq!(object["fieldPath"], "spec.containers{main}");
    assert!(object["resourceVersion"].is_string());
    assert_eq!(event["metadata"]["namespace"], "default");
    assert_eq!(event["source"], json!({"component": "kubelet", "host": "n1"}));
    assert_eq!((&event["reportingComponent"], &event["reportingInstance"]), (&json!("kubelet"), &json!("n1")));
    assert_eq!((&event["type"], &event["message"]), (&json!("Normal"), &json!("Container started")));

    let repeated = cluster.event("web", "Started", 2).await;
    assert_eq!(repeated["metadata"]["name"], event["metadata"]["name"], "it is the same object");
    assert_eq!(repeated["firstTimestamp"], event["firstTimestamp"]);
    let back_off = cluster.event("web", "BackOff", 1).await;
    assert_eq!(back_off["type"], "Warning");
}

#[tokio::test]
async fn failed_mount_and_the_events_of_a_static_pod_are_in_the_api_server() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    let volume = json!({"volumes": [{"name": "data", "hostPath": {"path": "/nowhere", "type": "Directory"}}]});
    cluster.create("web", &json!({}), &volume);
    let event = cluster.event("web", "FailedMount", 1).await;
    assert_eq!(event["type"], "Warning");
    assert!(event["involvedObject"].get("fieldPath").is_none());

    cluster.home.put("static.yaml", &manifest("static", "sleep 100", "terminationGracePeriodSeconds: 1"));
    let event = cluster.event("static-n1", "Started", 1).await;
    cluster.wait_for_phase("static-n1", "Running").await;
    let mirror = cluster.server.get("pods", "default", "static-n1").unwrap();
    // `kubectl describe` searches the events of a mirror pod by this UID.
    assert_eq!(event["involvedObject"]["uid"], mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"]);
}

#[tokio::test]
async fn events_of_the_node_are_in_the_api_server() {
    let cluster = Cluster::start().await;
    // The node controller sets this status while no agent runs.
    let unknown = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    let path = "/api/v1/nodes/n1/status";
    cluster.server.request("PATCH", path, "application/strategic-merge-patch+json", &unknown).unwrap();
    let _agent = cluster.agent().await;
    for reason in ["Starting", "NodeHasSufficientMemory", "NodeReady"] {
        let event = cluster.event("n1", reason, 1).await;
        // `kubectl describe node` searches for this UID.
        assert_eq!(event["involvedObject"], json!({"kind": "Node", "name": "n1", "uid": "n1"}));
        assert_eq!((&event["metadata"]["namespace"], &event["type"]), (&json!("default"), &json!("Normal")));
    }
}

#[tokio::test]
async fn events_of_an_outage_are_written_after_it() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.server.stop().await;
    cluster.home.put("static.yaml", &manifest("static", "sleep 100", "terminationGracePeriodSeconds: 1"));
    agent.ready("static-n1").await;
    let has_event = |event: &Value| event["involvedObject"]["name"] == "static-n1";
    assert!(!cluster.server.all("events").iter().any(|event| has_event(event)));
    cluster.server.resume().await.unwrap();
    cluster.event("static-n1", "Started", 1).await;
}

#[tokio::test]
async fn events_of_the_stop_are_written_before_the_agent_ends() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent_with(&["--pods-on-exit", "stop"]).await;
    let names: Vec<String> = (0..8).map(|number| format!("web-{number}")).collect();
    for name in &names {
        cluster.create(name, &json!({}), &json!({}));
    }
    for name in &names {
        cluster.event(name, "Started", 1).await;
    }
    // Two of the eight pods share one of the four queues.
    cluster.server.faults().inject(Rule::new().resource("events"), Fault::Delay(Duration::from_millis(200)));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
    let events = cluster.server.all("events");
    for name in &names {
        let is_killing = |event: &Arc<Value>| event["involvedObject"]["name"] == **name && event["reason"] == "Killing";
        assert!(events.iter().any(is_killing), "{name}: {}", agent.logged());
    }
}
