//! An agent that starts where another one was before.

use podwright_actors::ids::FullName;
use podwright_actors::pod_worker::Lifecycle;

use crate::support::fake_runtime::Op;
use crate::support::pods::{PodBuilder, pod};
use crate::support::test_node::{Setup, TestNode};

/// A node that finds a pod's container running, as an earlier agent made it of this definition.
async fn restarted(running: &str, definition: &PodBuilder) -> TestNode {
    let before = TestNode::start().await;
    before.deliver(std::slice::from_ref(definition)).await;
    let made = before.runtime.look(&running.into()).containers[0].clone();
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
async fn a_running_container_is_adopted_and_not_started_again() {
    let a = pod("a");
    let node = restarted("a", &a).await;
    deliver(&node, &a.phase("Running")).await;
    assert_eq!(node.runtime.calls_of("a"), [""; 0]);
    assert_eq!(node.phase("a"), "Running");
    assert_eq!(node.status("a").container_statuses.unwrap()[0].restart_count, 4);
    assert_eq!(node.pod_counts(), ["active_pods{} 1", "desired_pods{} 1", "working_pods{desired,sync,} 1"]);
}

#[actix::test]
async fn a_pod_that_runs_is_not_judged_again_and_counts_before_any_new_one() {
    let old = pod("old").cpu("3");
    let node = restarted("old", &old).await;
    node.deliver(&[pod("new").cpu("3"), old.clone()]).await;
    assert_eq!((node.phase("old"), node.runtime.calls_of("old")), ("Running".into(), vec![]));
    assert_eq!((node.phase("new"), node.reason("new")), ("Failed".into(), "OutOfcpu".into()));
}

#[actix::test]
async fn a_pod_that_runs_keeps_its_place_although_a_new_one_took_it_meanwhile() {
    let old = pod("old").cpu("3");
    let node = restarted("old", &old).await;
    node.deliver(&[pod("other").cpu("2")]).await;
    node.deliver(&[pod("other").cpu("2"), old]).await;
    assert_eq!(node.phase("old"), "Running");
}

#[actix::test]
async fn a_pod_that_runs_and_cannot_be_read_is_not_judged_again_either() {
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
async fn a_running_container_of_another_definition_is_replaced() {
    let node = restarted("a", &pod("a").containers(&["main", "other"]).cpu("1")).await;
    deliver(&node, &pod("a").spec("containers", serde_json::json!([{"name": "main", "image": "newer"}]))).await;
    assert_eq!(node.runtime.calls_of("a")[..1], ["stop main 30"]);
    assert_eq!(node.runtime.running("a"), ["main"]);
    assert_eq!(node.status("a").container_statuses.unwrap()[0].restart_count, 5);
}

// S6, W14
#[actix::test]
async fn a_pod_that_has_ended_for_the_api_and_still_runs_is_stopped() {
    let a = pod("a");
    let node = restarted("a", &a).await;
    deliver(&node, &a.phase("Succeeded")).await;
    assert_eq!(node.runtime.calls_of("a")[..2], ["stop main 30", "stop-sandbox"]);
    assert_eq!((node.lifecycle("a"), node.phase("a")), (Some(Lifecycle::Finished), "Succeeded".into()));
}

// S7
#[actix::test]
async fn a_pod_that_has_ended_and_does_not_run_is_cleaned_up_only() {
    let node = TestNode::start().await;
    deliver(&node, &pod("a").phase("Failed")).await;
    assert_eq!(node.runtime.calls_of("a"), [""; 0]);
    let snapshot = node.node.engine.snapshot(&"a".into()).unwrap();
    let moves: Vec<_> = snapshot.transitions.iter().map(|transition| transition.to).collect();
    assert_eq!(moves, [Lifecycle::Terminated, Lifecycle::Finished]);
    assert_eq!(node.pod_counts(), ["desired_pods{} 1", "working_pods{desired,terminated,} 1"]);
}

// S96: the API object is deleted by the status writer.
#[actix::test]
async fn a_pod_that_is_first_seen_while_it_is_deleted_is_stopped_and_cleaned_up() {
    let a = pod("a");
    let node = restarted("a", &a).await;
    deliver(&node, &a.phase("Running").deleting(7)).await;
    assert_eq!(node.runtime.calls_of("a")[..2], ["stop main 7", "stop-sandbox"]);
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    assert!(node.node.statuses.is_finished(&"a".into()));
}
