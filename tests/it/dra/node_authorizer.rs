//! The objects of new pods, while the Node authorizer learns of the pods later than the node.

use std::time::Duration;

use serde_json::json;

use super::claim_cluster::{ClaimCluster, DRIVER};
use crate::agent::harness::{eventually, text};

const CORE: &str = "/api/v1/namespaces/default";

/// Creates a pod with its own claim, config map, secret and service account. No node runs it yet.
fn create_whole_pod(cluster: &ClaimCluster, name: &str) {
    for plural in ["configmaps", "secrets", "serviceaccounts"] {
        cluster.server.create(&format!("{CORE}/{plural}"), json!({"metadata": {"name": name}})).unwrap();
    }
    let pod = json!({"metadata": {"name": name}, "spec": {
        "serviceAccountName": name, "terminationGracePeriodSeconds": 1,
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        "volumes": [{"name": "settings", "configMap": {"name": name}}, {"name": "login", "secret": {"secretName": name}}],
        "containers": [{"name": "main", "image": cluster.image, "command": ["/bin/sh", "-c", "exec sleep 1000"],
            "resources": {"claims": [{"name": "gpu"}]},
            "volumeMounts": [{"name": "settings", "mountPath": "/settings"}, {"name": "login", "mountPath": "/login"}]}]}});
    cluster.server.create(&format!("{CORE}/pods"), pod).unwrap();
}

/// In a pod with volumes, the claim is read last. The other pods have only a claim.
#[tokio::test]
async fn new_pods_start_without_a_warning() {
    let cluster = ClaimCluster::with(|settings| settings.node_authorizer_delay = Duration::from_millis(300)).await;
    let agent = cluster.agent().await;
    let _driver = cluster.driver(&["--devices", "20"]).await;
    let connected = || async {
        let output = agent.run_client(&["explain"]).await;
        text(&output.stdout).contains("1 of 1 instances connected").then_some(())
    };
    eventually("the driver is connected", connected).await;
    let names: Vec<String> = (0..20).map(|number| format!("pod-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        cluster.claim(name);
        if number % 2 == 0 {
            create_whole_pod(&cluster, name);
        } else {
            cluster.create_pod(name, name);
        }
        cluster.allocate(name, &format!("device-{number}"), DRIVER, &[name.as_str()]);
    }
    names.iter().for_each(|name| cluster.bind(name));
    for name in &names {
        cluster.wait_for_phase(name, "Running").await;
        // The events of a pod are written in their order.
        cluster.event(name, "Started").await;
    }
    let events = cluster.server.all("events").into_iter();
    // A busy machine may need more than the time that a pod waits for the objects of its volumes. The test in
    // `tests/it/node_authorizer.rs` checks that wait in paused time.
    let of_pods = events.filter(|event| {
        event["involvedObject"]["kind"] == "Pod" && event["type"] == "Warning" && event["reason"] != "FailedMount"
    });
    let warnings: Vec<String> = of_pods.map(|event| format!("{}: {}", event["reason"], event["message"])).collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
    assert!(!agent.logged().contains("Status {"), "{}", agent.logged());
}

#[tokio::test]
async fn claim_that_stays_refused_is_named_with_the_sentence_of_the_server() {
    let cluster = ClaimCluster::with(|settings| settings.node_authorizer_delay = Duration::from_secs(86_400)).await;
    let agent = cluster.agent().await;
    cluster.run("cam", &["web"]);
    let event = cluster.event("web", "FailedPrepareDynamicResources").await;
    let message = event["message"].as_str().unwrap();
    let begin = "cannot read ResourceClaim cam: the API server refused the call: \
                 resourceclaims.resource.k8s.io \"cam\" is forbidden: User \"system:node:n1\" cannot get resource";
    let end = ": no relationship found between node 'n1' and this object";
    assert!(message.contains(begin) && message.ends_with(end), "{message}");
    let dump = "Status {";
    assert_eq!((message.matches(end).count(), message.contains(dump)), (1, false), "{message}");
    let explained = agent.explain("web");
    assert!(explained.contains(end) && !explained.contains(dump), "{explained}");
    assert!(!agent.logged().contains(dump), "{}", agent.logged());
}
