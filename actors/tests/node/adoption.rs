//! An agent that starts where an earlier agent left running pods.

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::scripted_runtime::Op;
use podwright_model::ids::FullName;

use crate::support::test_node::{Setup, TestNode};

/// A node whose runtime already runs a pod's container, which an earlier agent created from this definition.
async fn restarted(running: &str, definition: &PodBuilder) -> TestNode {
    let before = TestNode::start().await;
    before.deliver(std::slice::from_ref(definition)).await;
    let made = before.runtime.inspect(&running.into()).containers[0].clone();
    let setup = Setup::again(true);
    setup.runtime.plant(running, FullName::new("test", running), "main");
    setup.runtime.edit(running, "main", |container| {
        container.spec_hash = made.spec_hash;
        container.restart_count = 4;
    });
    setup.start()
}

async fn deliver(node: &TestNode, pod: &PodBuilder) {
    node.deliver(std::slice::from_ref(pod)).await;
    node.wait(5.0).await;
}

#[actix::test]
async fn running_container_is_adopted_and_not_restarted() {
    let a = pod("a");
    let node = restarted("a", &a).await;
    deliver(&node, &a.phase("Running")).await;
    assert_eq!(node.runtime.calls_of("a"), [""; 0]);
    assert_eq!(node.phase("a"), "Running");
    assert_eq!(node.status("a").container_statuses.unwrap()[0].restart_count, 4);
    assert_eq!(node.pod_counts(), ["active_pods{} 1", "desired_pods{} 1", "working_pods{desired,sync,} 1"]);
}

#[actix::test]
async fn running_pod_is_not_admitted_again_and_counts_before_new_pods() {
    let old = pod("old").cpu("3");
    let node = restarted("old", &old).await;
    node.deliver(&[pod("new").cpu("3"), old.clone()]).await;
    assert_eq!((node.phase("old"), node.runtime.calls_of("old")), ("Running".into(), vec![]));
    assert_eq!((node.phase("new"), node.reason("new")), ("Failed".into(), "OutOfcpu".into()));
}

#[actix::test]
async fn running_pod_stays_admitted_after_a_new_pod_took_its_capacity() {
    let old = pod("old").cpu("3");
    let node = restarted("old", &old).await;
    node.deliver(&[pod("other").cpu("2")]).await;
    node.deliver(&[pod("other").cpu("2"), old]).await;
    assert_eq!(node.phase("old"), "Running");
}

#[actix::test]
async fn running_pod_with_unreadable_status_is_not_admitted_again() {
    let old = pod("old").cpu("3");
    let node = restarted("old", &old).await;
    node.runtime.fail(Op::Status);
    node.deliver(&[pod("new").cpu("3"), old.clone()]).await;
    node.wait(5.0).await;
    node.runtime.heal();
    node.wait(30.0).await;
    assert_eq!((node.phase("old"), node.runtime.calls_of("old")), ("Running".into(), vec![]));
    assert_eq!((node.phase("new"), node.reason("new")), ("Failed".into(), "OutOfcpu".into()));
}

#[actix::test]
async fn running_container_with_another_spec_hash_is_replaced() {
    let node = restarted("a", &pod("a").containers(&["main", "other"]).cpu("1")).await;
    deliver(&node, &pod("a").spec("containers", serde_json::json!([{"name": "main", "image": "newer"}]))).await;
    assert_eq!(node.runtime.calls_of("a")[..1], ["stop main 30"]);
    assert_eq!(node.runtime.running("a"), ["main"]);
    assert_eq!(node.status("a").container_statuses.unwrap()[0].restart_count, 5);
}

// Scenario POD-S6 and rule POD-W14.
#[actix::test]
async fn failed_pod_with_running_containers_is_stopped() {
    let a = pod("a");
    let node = restarted("a", &a).await;
    deliver(&node, &a.phase("Succeeded")).await;
    assert_eq!(node.runtime.calls_of("a")[..2], ["stop main 30", "stop-sandbox"]);
    assert_eq!((node.lifecycle("a"), node.phase("a")), (Some(Lifecycle::Finished), "Succeeded".into()));
}

// Scenario POD-S7.
#[actix::test]
async fn failed_pod_without_running_containers_is_only_cleaned_up() {
    let node = TestNode::start().await;
    deliver(&node, &pod("a").phase("Failed")).await;
    assert_eq!(node.runtime.calls_of("a"), [""; 0]);
    let snapshot = node.node.engine().snapshot(&"a".into()).unwrap();
    let moves: Vec<_> = snapshot.transitions.iter().map(|transition| transition.to).collect();
    assert_eq!(moves, [Lifecycle::Terminated, Lifecycle::Finished]);
    assert_eq!(node.pod_counts(), ["desired_pods{} 1", "working_pods{desired,terminated,} 1"]);
}

// POD-S96: the API object is deleted by the status writer.
#[actix::test]
async fn pod_first_seen_during_its_deletion_is_stopped_and_cleaned_up() {
    let a = pod("a");
    let node = restarted("a", &a).await;
    deliver(&node, &a.phase("Running").deleting(7)).await;
    assert_eq!(node.runtime.calls_of("a")[..2], ["stop main 7", "stop-sandbox"]);
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    assert!(node.node.statuses().is_finished(&"a".into()));
}
