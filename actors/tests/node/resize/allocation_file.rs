//! The file of allocations, and agents that are killed and started again.

use std::sync::Arc;

use podwright_fixtures::scripted_runtime::Op;
use serde_json::json;

use super::{ResizeNode, STRATEGIC, container, request};

#[actix::test]
async fn restarted_agent_keeps_allocations_and_admits_nothing_again() {
    let this = ResizeNode::start().await;
    this.run("web", &request("1")).await;
    this.run("other", &request("2")).await;
    this.resize("web", &request("3")["containers"]).await;
    assert!(this.condition("web", "PodResizePending").starts_with("Deferred"));
    let starts = this.node.runtime.times_of("start main").len();

    let this = this.restart().await;
    this.wait(3).await;
    assert!(this.condition("web", "PodResizePending").starts_with("Deferred: Node didn't have enough"));
    assert_eq!(this.resources("web").1, json!({"cpu": "1"}));
    assert_eq!(this.node.runtime.times_of("start main").len(), starts, "nothing restarts");
    // One CPU is free, because the desired resources of the pod do not count.
    this.run("small", &request("1")).await;
    assert!(this.updates("web").is_empty());
}

// A resize arrives while no agent runs. The next agent decides on it, and does not treat the desired resources as allocated.
#[actix::test]
async fn resize_that_arrives_without_an_agent_is_decided_by_the_next_one() {
    let this = ResizeNode::start().await;
    this.run("web", &json!({"containers": [container("main", "1", "64Mi")]})).await;
    this.run("other", &request("2")).await;
    let path = "/api/v1/namespaces/test/pods/web/resize";
    let large = json!({"spec": {"containers": [container("main", "3", "64Mi")]}});
    this.api.request("PATCH", path, STRATEGIC, &large).unwrap();
    let this = this.restart().await;
    this.wait(3).await;
    assert!(this.condition("web", "PodResizePending").starts_with("Deferred"));

    let fitting = json!({"spec": {"containers": [container("main", "2", "64Mi")]}});
    this.api.request("PATCH", path, STRATEGIC, &fitting).unwrap();
    let this = this.restart().await;
    this.wait(3).await;
    assert_eq!(this.updates("web"), ["update main cpu=2 memory=64Mi"]);
    assert_eq!(this.condition("web", "PodResizeInProgress"), "");
}

// The file of allocations is lost. The pod's status in the API server has the allocated resources.
#[actix::test]
async fn allocation_without_a_record_comes_from_the_status() {
    let mut this = ResizeNode::start().await;
    this.run("web", &request("1")).await;
    this.run("other", &request("2")).await;
    this.resize("web", &request("3")["containers"]).await;
    this.allocations = Arc::default();
    let this = this.restart().await;
    this.wait(3).await;
    assert_eq!(this.resources("web").1, json!({"cpu": "1"}));
    assert!(this.condition("web", "PodResizePending").starts_with("Deferred"));
}

// The agent is killed after a resize was allocated and before the runtime applied it.
#[actix::test]
async fn interrupted_resize_continues_after_a_restart() {
    let this = ResizeNode::start().await;
    this.run("web", &json!({"containers": [container("main", "1", "64Mi")]})).await;
    this.node.runtime.fail(Op::Update);
    this.resize("web", &json!([container("main", "2", "128Mi")])).await;
    assert_eq!(this.condition("web", "PodResizeInProgress"), "Error: it broke @2");
    this.node.runtime.heal();
    let before = this.updates("web").len();

    let this = this.restart().await;
    this.wait(3).await;
    let updates = this.updates("web")[before..].to_vec();
    assert_eq!(updates, ["update main cpu=1 memory=128Mi", "update main cpu=2 memory=128Mi"]);
    assert_eq!(this.condition("web", "PodResizeInProgress"), "");
    assert_eq!(this.messages("ResizeCompleted").len(), 1);
}

// The agent applies a resize only after its allocation is on disk, where the next agent finds it.
#[actix::test]
async fn resize_is_not_applied_while_its_allocation_cannot_be_written() {
    let this = ResizeNode::start().await;
    this.run("web", &request("1")).await;
    this.allocations.broken(true);
    this.resize("web", &request("2")["containers"]).await;
    this.wait(30).await;
    assert!(this.updates("web").is_empty());
    let condition = this.condition("web", "PodResizeInProgress");
    assert!(condition.starts_with("Error: the file of allocations cannot be written"), "{condition}");
    this.allocations.broken(false);
    this.wait(60).await;
    assert_eq!(this.updates("web").len(), 1);
}

// Pods without CPU and memory, and static pods, need no record.
#[actix::test]
async fn only_pods_that_can_be_resized_are_written() {
    let this = ResizeNode::start().await;
    this.run("plain", &json!({})).await;
    assert_eq!(this.allocations.writes(), 0);
    this.run("web", &request("1")).await;
    let records = this.allocations.records();
    assert_eq!(records.len(), 1, "{records:?}");
    assert!(records[0].contains("test/web"), "{records:?}");
    let writes = this.allocations.writes();
    this.wait(60).await;
    assert_eq!(this.allocations.writes(), writes, "nothing has changed");
}
