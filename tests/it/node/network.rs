//! Pods that wait for a runtime that is not ready, or for a network.

use std::time::Duration;

use podwright_actors::ports::Unready;

use super::explain::reading::explain;
use crate::support::pods::pod;
use crate::support::test_node::TestNode;

// S95
#[actix::test]
async fn a_pod_waits_for_the_network_unless_it_uses_the_nodes() {
    let node = TestNode::start().await;
    node.runtime.unready(Unready { runtime: None, network: Some("cni plugin not initialized".into()) });
    node.deliver(&[pod("a"), pod("h").spec("hostNetwork", true)]).await;
    node.wait(10.0).await;
    assert_eq!(node.runtime.running("a"), [""; 0]);
    assert_eq!(node.runtime.running("h"), ["main"]);
    let told = node.events.of("NetworkNotReady");
    let expected = "network is not ready: cni plugin not initialized";
    assert!(node.events.has("a", "NetworkNotReady") && told.iter().all(|event| event.message == expected), "{told:?}");
    assert!(!node.events.has("h", "NetworkNotReady"));
    let why = explain(&node, "a").to_string();
    assert!(
        why.contains("waits for the network for pods") && why.contains("there is no network for pods: cni plugin"),
        "{why}"
    );

    // Asked for again soon, and not after the backoff of errors.
    node.runtime.unready(Unready::default());
    tokio::time::sleep(Duration::from_secs_f64(1.6)).await;
    node.settled().await;
    assert_eq!(node.runtime.running("a"), ["main"]);
}

#[actix::test]
async fn nothing_begins_with_a_runtime_that_says_it_is_not_ready_and_what_runs_goes_on() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a")]).await;
    node.runtime.unready(Unready { runtime: Some("its disk is full".into()), network: None });
    let (old, new, gone) = (pod("a").label("2"), pod("b").spec("hostNetwork", true), pod("c"));
    node.deliver(&[old.clone(), new.clone(), gone]).await;
    node.wait(10.0).await;
    node.deliver(&[old, new]).await;
    node.wait(30.0).await;
    assert_eq!(node.runtime.running("a"), ["main"]);
    assert_eq!(node.runtime.calls_of("b"), [""; 0]);
    assert_eq!(node.lifecycle("c"), None, "what is to go goes");
    let why = explain(&node, "b").to_string();
    assert!(why.contains("its disk is full"), "{why}");

    node.runtime.unready(Unready::default());
    node.wait(30.0).await;
    assert_eq!(node.runtime.running("b"), ["main"]);
}
