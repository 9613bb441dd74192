//! Containers whose exit the runtime has missed.

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::Op;
use podwright_ports::ContainerProcess;

use super::explain::reading::waits;
use crate::support::test_node::TestNode;

/// What the pod waits for and its `RuntimeLied` events.
fn reports(node: &TestNode) -> (String, Vec<String>) {
    let events = node.events.of("RuntimeLied").into_iter().map(|event| event.message);
    (waits(node, "a"), events.collect())
}

// KF24
#[actix::test]
async fn container_that_runs_after_three_stops_is_reported_with_the_state_of_its_process() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a")]).await;
    node.runtime.lose_exits(Some(ContainerProcess { pid: 4711, has_ended: true }));
    node.deliver(&[pod("a").deleting(1)]).await;
    node.wait(5.0).await;
    let (explanation, events) = reports(&node);
    assert!(explanation.contains(r#"container "main" still runs although"#), "{explanation}");
    assert_eq!(events, [""; 0], "a single stop may end while the container is read");

    node.wait(300.0).await;
    let (explanation, events) = reports(&node);
    assert_eq!(events.len(), 1, "{events:?}");
    let evidence = "as running, but stops of the container succeeded, and its process 4711 has ended: read the log";
    assert!(events[0].starts_with(r#"the container runtime reports container "main" ("#), "{events:?}");
    assert!(events[0].contains(evidence), "{events:?}");
    assert!(explanation.contains(evidence), "each retry gives the same error: {explanation}");
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Terminating), "the pod does not end before its container");

    // Somebody restarts the runtime, which then finds the exit.
    node.runtime.find_exits();
    node.wait(60.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
}

// KF24
#[actix::test]
async fn container_without_a_process_that_cannot_be_stopped_is_reported() {
    let node = TestNode::start().await;
    for (has_ended, expected) in [(false, 0), (true, 1)] {
        node.deliver(&[pod("a")]).await;
        node.runtime.lose_exits(Some(ContainerProcess { pid: 4711, has_ended }));
        node.runtime.fail(Op::Stop);
        node.deliver(&[pod("a").deleting(1)]).await;
        node.wait(300.0).await;
        let (explanation, events) = reports(&node);
        assert_eq!(events.len(), expected, "{events:?}");
        let evidence = "but stops of the container failed, and its process 4711 has ended (last error: it broke)";
        assert!(events.iter().all(|event| event.contains(evidence)), "{events:?}");
        assert_eq!(explanation.contains("its process 4711 has ended"), has_ended, "{explanation}");
        node.runtime.heal();
        node.runtime.find_exits();
        node.wait(60.0).await;
        node.deliver(&[]).await;
        node.wait(10.0).await;
        assert_eq!(node.lifecycle("a"), None);
    }
}

// KF24
#[actix::test]
async fn container_that_runs_after_its_stops_is_reported_although_the_stop_of_its_sandbox_fails() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a")]).await;
    node.runtime.lose_exits(None);
    node.runtime.fail(Op::StopSandbox);
    node.deliver(&[pod("a").deleting(1)]).await;
    node.wait(300.0).await;
    let (explanation, events) = reports(&node);
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(explanation.contains("as running, but stops of the container succeeded"), "{explanation}");
    assert!(explanation.contains("it broke"), "the failed stop is named too: {explanation}");

    node.runtime.heal();
    node.wait(300.0).await;
    assert_eq!(reports(&node).1.len(), 1, "one report for each container");
    node.runtime.find_exits();
    node.wait(60.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
}

// A runtime may report the end of a container late, so one or two stops that change nothing are no contradiction.
#[actix::test]
async fn container_that_a_retry_stops_is_not_reported() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a").containers(&["main", "other"])]).await;
    node.runtime.lose_exits(None);
    node.deliver(&[pod("a").containers(&["main", "other"]).deleting(1)]).await;
    node.wait(5.0).await;
    node.runtime.find_exits();
    node.wait(60.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    assert_eq!(node.events.of("RuntimeLied"), []);
}
