//! What runs although nobody wants it.

use std::time::Duration;

use podwright_actors::ids::FullName;
use podwright_actors::pod_worker::Lifecycle;
use podwright_actors::ports::ContainerState;

use crate::support::fake_runtime::Script;
use crate::support::pods::pod;
use crate::support::test_node::{Setup, TestNode};

async fn with_stranger(prepare: impl FnOnce(&Setup)) -> TestNode {
    let setup = Setup::new(true);
    prepare(&setup);
    setup.runtime.plant("u", FullName::new("test", "left"), "main");
    let node = setup.start();
    node.deliver(&[]).await;
    node
}

// S37
#[actix::test]
async fn a_pod_that_only_the_runtime_knows_is_stopped_and_counted_once() {
    let node = with_stranger(|_| ()).await;
    node.until(2.01).await;
    assert_eq!(
        node.pod_counts(),
        ["orphaned_runtime_pods_total{} 1", "working_pods{runtime_only,terminating,unknown} 1"]
    );
    assert_eq!(node.lifecycle("u"), None);
    assert_eq!(node.runtime.calls_of("u")[..2], ["stop main 2", "stop-sandbox"]);
    node.until(10.0).await;
    assert_eq!(node.pod_counts(), ["orphaned_runtime_pods_total{} 1"]);
}

// Who has the grace of its pod is the runtime; nobody else has its spec.
#[actix::test]
async fn a_run_that_nothing_is_known_of_is_the_runtimes_to_stop() {
    let setup = Setup::new(true);
    setup.runtime.plant("u", FullName::new("test", "left"), "main");
    setup.runtime.edit("u", "main", |container| container.state = ContainerState::Unknown);
    setup.runtime.end_sandbox("u");
    let node = setup.start();
    node.deliver(&[]).await;
    node.wait(10.0).await;
    // As a pod that nobody wants it is stopped once, and after that the sweep adds nothing.
    assert_eq!(node.runtime.calls_of("u"), ["stop main 2", "stop-sandbox", "remove main", "remove-sandbox"]);
}

#[actix::test]
async fn a_list_that_is_older_than_the_end_of_a_pod_brings_nothing_back() {
    let node = with_stranger(|setup| {
        setup.runtime.script("main", Script { stops: Some((Duration::from_secs_f64(1.5), 0)), ..Script::default() });
    })
    .await;
    node.until(2.1).await;
    assert_eq!(node.lifecycle("u"), Some(Lifecycle::Terminating));
    // The list of this pass shows the stranger; when it arrives, the stranger and its record are gone.
    node.runtime.old_lists(1.8);
    node.pass().await;
    assert_eq!(node.lifecycle("u"), None);
    assert_eq!(node.metric("kubelet_orphaned_runtime_pods_total"), 1.0);
    node.runtime.old_lists(0.0);
    // Nor is what a pod had before it was terminated taken for strays of it.
    node.deliver(&[pod("a").containers(&["quick"])]).await;
    node.runtime.old_lists(0.5);
    let deleted = [pod("a").containers(&["quick"]).deleting(5)];
    tokio::join!(node.pass(), node.deliver(&deleted));
    assert_eq!(node.metric("podwright_zombie_containers_total"), 0.0);
    let stops = node.runtime.calls_of("a").into_iter().filter(|call| call.starts_with("stop")).collect::<Vec<_>>();
    assert_eq!(stops, ["stop quick 5", "stop-sandbox"]);
}

// S39
#[actix::test]
async fn a_stranger_whose_stop_fails_is_tried_again_after_its_backoff() {
    let node = with_stranger(|setup| setup.runtime.fail_stops()).await;
    node.until(9.0).await;
    assert_eq!(node.runtime.times_of("stop main").len(), 1);
    assert_eq!(
        node.pod_counts(),
        ["orphaned_runtime_pods_total{} 1", "working_pods{runtime_only,terminating,unknown} 1"]
    );
    node.runtime.heal();
    node.until(20.0).await;
    assert_eq!(node.runtime.times_of("stop main").len(), 2);
    assert_eq!((node.lifecycle("u"), node.pod_counts()), (None, vec!["orphaned_runtime_pods_total{} 1".to_owned()]));
}

// S56
#[actix::test]
async fn what_a_pod_left_that_was_deleted_while_the_agent_was_down_goes() {
    let node = with_stranger(|setup| setup.storage.plant("u")).await;
    node.until(8.0).await;
    assert!(!node.storage.has("u"));
    assert_eq!(node.runtime.look(&"u".into()), Default::default());
    assert_eq!(node.pod_counts(), ["orphaned_runtime_pods_total{} 1"]);
}

// W13
#[actix::test]
async fn a_rejected_pod_that_turns_out_to_run_is_stopped_by_its_spec() {
    let node = TestNode::start().await;
    node.deliver(&[pod("r").cpu("64").grace(7)]).await;
    node.runtime.script("main", Script::stubborn());
    // What an agent before this one asked for took effect late.
    node.runtime.plant("r", FullName::new("test", "r"), "main");
    node.until(12.0).await;
    assert_eq!(node.runtime.calls_of("r")[0], "stop main 7");
    assert_eq!(node.runtime.running("r"), [""; 0]);
    assert_eq!((node.phase("r"), node.reason("r")), ("Failed".into(), "OutOfcpu".into()));
    assert_eq!(node.pod_counts(), ["desired_pods{} 1", "working_pods{desired,terminated,} 1"]);
}

#[actix::test]
async fn what_happens_in_the_runtime_to_a_rejected_pod_gives_it_no_record() {
    let node = TestNode::start().await;
    node.deliver(&[pod("r").cpu("64")]).await;
    node.runtime.plant("r", FullName::new("test", "r"), "main");
    node.runtime.edit("r", "main", |container| container.state = ContainerState::Exited);
    node.settled().await;
    assert_eq!(node.lifecycle("r"), None);
}

// W9
#[actix::test]
async fn a_container_that_appears_after_its_pod_was_terminated_is_stopped() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a")]).await;
    node.storage.stuck(true);
    node.deliver(&[pod("a").deleting(5)]).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Terminated));
    node.runtime.plant("a", FullName::new("test", "a"), "late");
    node.wait(3.0).await;
    assert_eq!(node.runtime.running("a"), [""; 0]);
    assert_eq!(node.metric("podwright_zombie_containers_total"), 1.0);
    assert_eq!(node.metric("kubelet_orphaned_runtime_pods_total"), 0.0);
    node.storage.stuck(false);
    node.wait(20.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    assert_eq!(node.metric("podwright_zombie_containers_total"), 1.0);
}

// S38, W33
#[actix::test]
async fn a_removed_pod_whose_stop_fails_is_retried_at_its_own_backoff() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a").grace(2)]).await;
    node.runtime.fail_stops();
    let removed = node.now();
    node.deliver(&[]).await;
    node.wait(9.0).await;
    assert_eq!(node.runtime.times_of("stop main 2").len(), 1);
    assert_eq!(node.pod_counts(), ["working_pods{orphan,terminating,} 1"]);
    node.runtime.heal();
    node.eventually(10.0, "record gone", || node.lifecycle("a").is_none()).await;
    let stops = node.runtime.times_of("stop main 2");
    let delay = stops[1] - removed;
    assert!((10.0..15.1).contains(&delay), "retried after {delay} s");
    node.wait(2.0).await;
    assert_eq!(node.pod_counts(), [""; 0]);
}

// S55: the mirror stays Running meanwhile, which is the status writer's business.
#[actix::test]
async fn an_outage_of_the_runtime_during_a_stop_is_overcome() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[pod("web").of_file().grace(20)]).await;
    node.wait(1.0).await;
    let removed = node.now();
    node.deliver(&[]).await;
    node.until(removed + 2.5).await;
    node.runtime.unreachable();
    node.until(removed + 19.0).await;
    assert_eq!(node.pod_counts(), ["working_pods{orphan,terminating,true} 1"]);
    node.until(removed + 22.0).await;
    node.runtime.heal();
    node.until(removed + 19.0 + 33.0).await;
    assert_eq!((node.lifecycle("web"), node.pod_counts()), (None, vec![]));
}

// W10
#[actix::test]
async fn a_directory_that_does_not_answer_holds_up_no_other() {
    let setup = Setup::new(true);
    for uid in ["a", "b", "c", "d", "e", "gone"] {
        setup.storage.plant(uid);
    }
    for uid in ["a", "b", "c", "d", "e"] {
        setup.storage.hang(uid);
    }
    let node = setup.start();
    node.deliver(&[]).await;
    node.wait(15.0).await;
    assert!(node.storage.has("a") && !node.storage.has("gone"));
    node.storage.plant("later");
    node.wait(45.0).await;
    assert!(!node.storage.has("later"));
}
