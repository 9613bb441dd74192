//! Resizes that are replaced, or whose agent is killed, while a call is under way.

use podwright_fixtures::scripted_runtime::Op;
use serde_json::json;

use super::{ResizeNode, STRATEGIC, container};

#[actix::test]
async fn sync_stops_when_a_newer_allocation_replaces_the_one_that_it_applies() {
    let this = ResizeNode::start().await;
    this.run("web", &json!({"containers": [container("main", "1", "64Mi")]})).await;
    let uid = this.api.pod("web").unwrap().uid().to_string();
    this.node.runtime.uses_memory(&uid, 8);
    this.node.runtime.slow(Op::Update, 5.0);
    this.resize("web", &json!([container("main", "2", "128Mi")])).await;
    // The call that changes the memory is under way.
    this.resize("web", &json!([container("main", "1", "64Mi")])).await;
    this.wait(30).await;
    assert_eq!(this.updates("web"), ["update main cpu=1 memory=128Mi", "update main cpu=1 memory=64Mi"]);
    assert_eq!(this.changes("web").last().unwrap(), "cgroup memory 64");
    assert_eq!(this.condition("web", "PodResizeInProgress"), "");
    assert!(this.messages("ResizeError").is_empty());
    let tries = ["true", "false"].map(|success| {
        this.node.metric(&format!("kubelet_pod_resize_duration_milliseconds_count{{success=\"{success}\"}}"))
    });
    assert_eq!(tries, [1.0, 0.0], "the replaced resize is neither a success nor a failure");
}

// The call of a resize that was replaced fails. The newer resize did not fail, and is applied.
#[actix::test]
async fn newer_resize_is_not_blamed_for_the_failed_call_of_the_one_that_it_replaced() {
    let this = ResizeNode::start().await;
    this.run("web", &json!({"containers": [container("main", "1", "64Mi")]})).await;
    this.node.runtime.slow(Op::Update, 5.0);
    this.node.runtime.fail(Op::Update);
    this.resize("web", &json!([container("main", "2", "64Mi")])).await;
    this.resize("web", &json!([container("main", "3", "64Mi")])).await;
    this.wait(2).await;
    assert_eq!(this.updates("web"), ["update main cpu=2 memory=64Mi", "update main cpu=3 memory=64Mi"]);
    assert_eq!(this.condition("web", "PodResizeInProgress"), ":  @3");
    this.node.runtime.heal();
    this.wait(30).await;
    assert_eq!(this.messages("ResizeError"), [""; 0]);
    assert_eq!(this.condition("web", "PodResizeInProgress"), "");
    assert_eq!(this.resources("web").0["limits"]["cpu"], "3");
}

// The container may have the resources of a call during which the agent was killed. The resize is then taken back.
#[actix::test]
async fn call_during_which_the_agent_was_killed_is_undone_by_the_next_agent() {
    let this = ResizeNode::start().await;
    this.run("web", &json!({"containers": [container("main", "1", "64Mi")]})).await;
    this.node.runtime.slow(Op::Update, 60.0);
    this.resize("web", &json!([container("main", "2", "64Mi")])).await;
    assert_eq!(this.updates("web"), ["update main cpu=2 memory=64Mi"]);
    this.node.runtime.heal();
    let path = "/api/v1/namespaces/test/pods/web/resize";
    let small = json!({"spec": {"containers": [container("main", "1", "64Mi")]}});
    this.api.request("PATCH", path, STRATEGIC, &small).unwrap();

    let this = this.restart().await;
    this.wait(3).await;
    let last = ["update main cpu=1 memory=64Mi", "cgroup cpu 1000", "cgroup request 1000"];
    assert!(this.changes("web").ends_with(&last.map(str::to_owned)), "{:?}", this.changes("web"));
    assert_eq!(this.condition("web", "PodResizeInProgress"), "");
    assert_eq!(this.resources("web").2, 0);
}

#[actix::test]
async fn record_of_a_removed_pod_leaves_the_file() {
    let this = ResizeNode::start().await;
    this.run("web", &json!({"containers": [container("main", "1", "64Mi")]})).await;
    assert_eq!(this.allocations.records().len(), 1);
    this.api.delete_pod("web");
    this.watch().await;
    this.wait(40).await;
    assert_eq!(this.allocations.records(), [""; 0]);
}
