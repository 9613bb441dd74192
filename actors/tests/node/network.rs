//! Unready conditions of the runtime, and pods that wait for the network.

use std::time::Duration;

use podwright_fixtures::api_pods::pod;
use podwright_ports::Unready;

use super::explain::reading::explain;
use crate::support::test_node::TestNode;

// Scenario POD-S95.
#[actix::test]
async fn pod_waits_for_the_network_unless_it_uses_the_host_network() {
    let node = TestNode::start().await;
    node.runtime.unready(Unready { runtime: None, network: Some("cni plugin not initialized".into()) });
    node.deliver(&[pod("a"), pod("h").spec("hostNetwork", true)]).await;
    node.wait(10.0).await;
    assert_eq!(node.runtime.running("a"), [""; 0]);
    assert_eq!(node.runtime.running("h"), ["main"]);
    let events = node.events.of("NetworkNotReady");
    let expected = "network is not ready: cni plugin not initialized";
    assert!(
        node.events.has("a", "NetworkNotReady") && events.iter().all(|event| event.message == expected),
        "{events:?}"
    );
    assert!(!node.events.has("h", "NetworkNotReady"));
    let why = explain(&node, "a").to_string();
    assert!(
        why.contains("waits for the network for pods") && why.contains("there is no network for pods: cni plugin"),
        "{why}"
    );

    // The pod is retried soon, and not after the backoff of errors.
    node.runtime.unready(Unready::default());
    tokio::time::sleep(Duration::from_secs_f64(1.6)).await;
    node.settled().await;
    assert_eq!(node.runtime.running("a"), ["main"]);
}

#[actix::test]
async fn unready_runtime_conditions_are_listed_for_the_node() {
    let node = TestNode::start().await;
    assert_eq!(node.node.explainer().node_problems(), []);
    node.runtime.unready(Unready { runtime: Some("its disk is full".into()), network: Some("no plugin".into()) });
    let reasons: Vec<_> = node.node.explainer().node_problems().into_iter().map(|wait| wait.detail).collect();
    assert_eq!(reasons, ["its disk is full", "no plugin"]);
}
