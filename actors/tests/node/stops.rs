//! Deletions, kills and stop notifiers.

use podwright_core::pod_worker::{Completed, KillOptions, Lifecycle, Notifier, Update};
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_model::ids::FullName;
use podwright_ports::RunningPod;

use crate::support::test_node::TestNode;

fn kill(node: &TestNode, pod: &PodBuilder) -> Completed {
    let (notifier, completed) = Notifier::new();
    let options = KillOptions::default().completed(notifier);
    node.node.engine().update_pod(Update::kill(pod.build()).with_options(options));
    completed
}

/// How many seconds pass until the notifier completes.
async fn waits(node: &TestNode, completed: Completed) -> f64 {
    let start = node.now();
    assert!(completed.await);
    node.now() - start
}

fn exit_code(node: &TestNode, uid: &str) -> i32 {
    let statuses = node.status(uid).container_statuses.unwrap();
    statuses[0].state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code
}

// Scenario POD-S87.
#[actix::test]
async fn pod_deleted_during_image_backoff_fails_and_is_cleaned_up() {
    let node = TestNode::start().await;
    node.runtime.fail(Op::Pull);
    node.deliver(&[pod("a")]).await;
    node.wait(30.0).await;
    let waiting = node.status("a").container_statuses.unwrap()[0].state.clone().unwrap().waiting.unwrap();
    assert_eq!((node.phase("a").as_str(), waiting.reason.as_deref()), ("Pending", Some("ImagePullBackOff")));
    node.deliver(&[pod("a").deleting(30)]).await;
    node.wait(1.0).await;
    assert_eq!(node.phase("a"), "Failed");
    assert!(node.node.statuses().is_finished(&"a".into()));
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    assert_eq!(node.runtime.times_of("start"), [0.0; 0]);
}

// Scenario POD-S87.
#[actix::test]
async fn container_ignoring_its_stop_is_killed_after_the_grace_period() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[pod("a")]).await;
    let start = node.now();
    node.deliver(&[pod("a").deleting(5)]).await;
    node.eventually(10.0, "finished", || node.lifecycle("a") == Some(Lifecycle::Finished)).await;
    assert!((5.0..5.2).contains(&(node.now() - start)));
    assert_eq!((node.phase("a").as_str(), exit_code(&node, "a")), ("Failed", 137));
}

// Scenario POD-S87.
#[actix::test]
async fn deleted_pod_with_exit_code_zero_succeeds() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a")]).await;
    node.deliver(&[pod("a").deleting(5)]).await;
    assert_eq!((node.phase("a").as_str(), exit_code(&node, "a")), ("Succeeded", 0));
    assert_eq!(
        node.metric(
            r#"kubelet_terminated_containers_total{container_type="container",exit_code="0",reason="Completed"}"#
        ),
        1.0
    );
}

// Scenario POD-S98.
#[actix::test]
async fn deletion_interrupts_an_image_pull() {
    let node = TestNode::start().await;
    node.runtime.slow(Op::Pull, 600.0);
    node.deliver(&[pod("a")]).await;
    node.wait(20.0).await;
    node.deliver(&[pod("a").deleting(5)]).await;
    node.wait(1.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    assert_eq!(node.runtime.calls_of("a"), ["sandbox 0", "pull img", "stop-sandbox"]);
}

// Scenario POD-S99.
#[actix::test]
async fn shorter_grace_period_applies_to_a_running_stop() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[pod("a").grace(600)]).await;
    node.deliver(&[pod("a").grace(600).deleting(600)]).await;
    node.wait(10.0).await;
    node.deliver(&[pod("a").grace(600).deleting(5)]).await;
    node.wait(5.1).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    assert_eq!(node.runtime.times_of("stop main").len(), 2);
}

// Rule POD-W30.
#[actix::test]
async fn slow_stop_or_list_delays_no_other_pod() {
    let node = TestNode::start().await;
    node.deliver(&[pod("slow")]).await;
    node.runtime.slow(Op::Stop, 20.0);
    node.runtime.slow(Op::List, 20.0);
    node.until(2.5).await;
    node.deliver(&[pod("slow").deleting(5), pod("other")]).await;
    assert_eq!(node.runtime.running("other"), ["main"]);
    assert_eq!(node.lifecycle("slow"), Some(Lifecycle::Terminating));
}

// Scenario POD-S97.
#[actix::test]
async fn stop_notifier_completes_when_no_container_can_run() {
    let node = TestNode::start().await;
    // The notifier of a running pod completes after the stop.
    node.runtime.script("main", Script { stops: Some((std::time::Duration::from_secs(3), 0)), ..Script::default() });
    let web = pod("web").of_file();
    node.deliver(std::slice::from_ref(&web)).await;
    assert!((3.0..3.1).contains(&waits(&node, kill(&node, &web)).await));
    // The notifier of a finished record completes at once.
    node.settled().await;
    assert_eq!(node.lifecycle("web"), Some(Lifecycle::Finished));
    assert_eq!(waits(&node, kill(&node, &web)).await, 0.0);
}

// Scenario POD-S97.
#[actix::test]
async fn stop_notifier_completes_for_a_pod_that_never_starts() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    let (old, new) = (pod("web").of_file().uid("1"), pod("web").of_file().uid("2"));
    node.deliver(std::slice::from_ref(&old)).await;
    node.deliver(std::slice::from_ref(&new)).await;
    assert_eq!(node.lifecycle("2"), Some(Lifecycle::Waiting));
    assert!(waits(&node, kill(&node, &new)).await < 0.1);
    // The source drops the third pod while it waits for its name.
    let third = pod("web").of_file().uid("3");
    node.deliver(std::slice::from_ref(&third)).await;
    let hold = node.node.engine().hold(&"3".into()).unwrap();
    let completed = kill(&node, &third);
    node.deliver(&[]).await;
    assert!(waits(&node, completed).await < 2.1);
    drop(hold);
    assert_eq!(node.lifecycle("3"), None);
}

// Scenario POD-S97.
#[actix::test]
async fn stop_notifier_completes_for_a_runtime_only_pod() {
    let node = TestNode::start().await;
    let full_name = FullName::new("test", "left");
    node.runtime.plant("u", full_name.clone(), "main");
    let (notifier, completed) = Notifier::new();
    let options = KillOptions::default().completed(notifier);
    let running = RunningPod { uid: "u".into(), full_name };
    node.node.engine().update_pod(Update::kill_runtime(running).with_options(options));
    assert!(waits(&node, completed).await < 0.1);
    assert_eq!(node.runtime.running("u"), [""; 0]);
}

// KF24
#[actix::test]
async fn container_running_after_the_stop_keeps_its_pod_terminating() {
    let node = TestNode::start().await;
    node.runtime.script("late", Script::stubborn());
    // The container appears after the pod was inspected and before its stop ends.
    node.runtime.script("main", Script { stops: Some((std::time::Duration::from_secs(2), 0)), ..Script::default() });
    node.deliver(&[pod("b").containers(&["main"])]).await;
    node.deliver(&[pod("b").containers(&["main"]).deleting(10)]).await;
    node.runtime.plant_apart("b", "late");
    node.wait(3.0).await;
    assert_eq!(node.lifecycle("b"), Some(Lifecycle::Terminating));
    node.wait(20.0).await;
    assert_eq!(node.lifecycle("b"), Some(Lifecycle::Finished));
    assert_eq!(node.runtime.running("b"), [""; 0]);
}

// Scenarios POD-S69, POD-S102.
#[actix::test]
async fn panicking_pre_stop_hook_does_not_prevent_the_stop() {
    let node = TestNode::start().await;
    let hook =
        serde_json::json!([{"name": "main", "image": "img", "lifecycle": {"preStop": {"exec": {"command": ["bye"]}}}}]);
    let a = pod("a").spec("containers", hook);
    node.deliver(std::slice::from_ref(&a)).await;
    node.runtime.panic_in(Op::Exec);
    node.deliver(&[a.deleting(30)]).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    assert!(node.events.has("a", "FailedPreStopHook"));
}
