//! Orphans, runtime-only pods and zombie containers.

use std::time::Duration;

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::Script;
use podwright_model::ids::FullName;
use podwright_ports::ContainerState;

use crate::support::test_node::{Setup, TestNode};

async fn with_runtime_only_pod(prepare: impl FnOnce(&Setup)) -> TestNode {
    let setup = Setup::new(true);
    prepare(&setup);
    setup.runtime.plant("u", FullName::new("test", "left"), "main");
    let node = setup.start();
    node.deliver(&[]).await;
    node
}

// Scenario POD-S37.
#[actix::test]
async fn runtime_only_pod_is_stopped_and_counted_once() {
    let node = with_runtime_only_pod(|_| ()).await;
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

// A runtime-only pod has no spec, so its grace period is 1 second (POD-K12). The runtime gets 2 seconds, the shortest time of a stop.
#[actix::test]
async fn runtime_only_container_in_unknown_state_is_stopped_once() {
    let setup = Setup::new(true);
    setup.runtime.plant("u", FullName::new("test", "left"), "main");
    setup.runtime.edit("u", "main", |container| container.state = ContainerState::Unknown);
    setup.runtime.end_sandbox("u");
    let node = setup.start();
    node.deliver(&[]).await;
    node.wait(10.0).await;
    // The container is stopped once as part of a runtime-only pod, and the sweep of zombies does not stop it again.
    assert_eq!(node.runtime.calls_of("u"), ["stop main 2", "stop-sandbox", "remove main", "remove-sandbox"]);
}

#[actix::test]
async fn outdated_runtime_list_recreates_no_record() {
    let node = with_runtime_only_pod(|setup| {
        setup.runtime.script("main", Script { stops: Some((Duration::from_secs_f64(1.5), 0)), ..Script::default() });
    })
    .await;
    node.until(2.1).await;
    assert_eq!(node.lifecycle("u"), Some(Lifecycle::Terminating));
    // The list of this pass has the runtime-only pod. When the list arrives, the pod and its record are gone.
    node.runtime.old_lists(1.8);
    node.pass().await;
    assert_eq!(node.lifecycle("u"), None);
    assert_eq!(node.metric("kubelet_orphaned_runtime_pods_total"), 1.0);
    node.runtime.old_lists(0.0);
    // Containers that a pod had before it was terminated do not count as zombies either.
    node.deliver(&[pod("a").containers(&["quick"])]).await;
    node.runtime.old_lists(0.5);
    let deleted = [pod("a").containers(&["quick"]).deleting(5)];
    tokio::join!(node.pass(), node.deliver(&deleted));
    assert_eq!(node.metric("podwright_zombie_containers_total"), 0.0);
    let stops = node.runtime.calls_of("a").into_iter().filter(|call| call.starts_with("stop")).collect::<Vec<_>>();
    assert_eq!(stops, ["stop quick 5", "stop-sandbox"]);
}

// Scenario POD-S39.
#[actix::test]
async fn failing_stop_of_a_runtime_only_pod_is_retried_after_its_backoff() {
    let node = with_runtime_only_pod(|setup| setup.runtime.fail_stops()).await;
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

// KF21. Scenario POD-S56.
#[actix::test]
async fn leftovers_of_a_pod_deleted_without_an_agent_are_removed() {
    let node = with_runtime_only_pod(|setup| setup.storage.plant("u")).await;
    node.until(8.0).await;
    assert!(!node.storage.has("u"));
    assert_eq!(node.runtime.inspect(&"u".into()), Default::default());
    assert_eq!(node.pod_counts(), ["orphaned_runtime_pods_total{} 1"]);
}

// KF21
#[actix::test]
async fn leftovers_that_cannot_be_removed_are_one_problem_of_the_node_each() {
    let setup = Setup::new(true);
    ["gone", "left"].iter().for_each(|uid| setup.storage.plant(uid));
    setup.storage.stuck(true);
    let node = setup.start();
    node.deliver(&[]).await;
    node.wait(20.0).await;
    let problems = node.node.explainer().node_problems();
    let details: Vec<_> = problems.iter().map(|problem| problem.detail.clone()).collect();
    let expected = ["gone", "left"].map(|uid| {
        format!("the pod with UID {uid} is gone, and what it has left cannot be removed: volume \"data\": it is busy")
    });
    assert_eq!(details, expected);
    assert!(problems.iter().all(|problem| problem.tries.is_some_and(|tries| tries >= 5)), "{problems:?}");
    node.storage.stuck(false);
    node.wait(4.0).await;
    assert_eq!(node.node.explainer().node_problems(), []);
}

// Rule POD-W13.
#[actix::test]
async fn running_rejected_pod_is_stopped_with_its_own_grace_period() {
    let node = TestNode::start().await;
    node.deliver(&[pod("r").cpu("64").grace(7)]).await;
    node.runtime.script("main", Script::stubborn());
    // A call of an earlier agent took effect late.
    node.runtime.plant("r", FullName::new("test", "r"), "main");
    node.node.run_housekeeping().await.unwrap();
    let counts = |lifecycle: &str| {
        let working = format!("working_pods{{desired,{lifecycle},}} 1");
        ["desired_pods{} 1".to_owned(), "orphaned_runtime_pods_total{} 1".to_owned(), working]
    };
    assert_eq!(node.pod_counts(), counts("terminating"), "the pass that stops the pod counts it");
    node.until(12.0).await;
    assert_eq!(node.runtime.calls_of("r")[0], "stop main 7");
    assert_eq!(node.runtime.running("r"), [""; 0]);
    assert_eq!((node.phase("r"), node.reason("r")), ("Failed".into(), "OutOfcpu".into()));
    assert_eq!(node.pod_counts(), counts("terminated"));
}

#[actix::test]
async fn runtime_change_of_a_rejected_pod_creates_no_record() {
    let node = TestNode::start().await;
    node.deliver(&[pod("r").cpu("64")]).await;
    node.runtime.plant("r", FullName::new("test", "r"), "main");
    node.runtime.edit("r", "main", |container| container.state = ContainerState::Exited);
    node.settled().await;
    assert_eq!(node.lifecycle("r"), None);
}

// Rule POD-W9.
#[actix::test]
async fn zombie_container_of_a_terminated_pod_is_stopped() {
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

// Scenario POD-S38 and rule POD-W33.
#[actix::test]
async fn failing_stop_of_an_orphan_is_retried_after_its_backoff() {
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

// The phase of the mirror pod during the outage is not tested here, because the status writer sets it (POD-S55).
#[actix::test]
async fn orphan_stop_continues_after_a_runtime_outage() {
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

// KF12. Rule POD-W10.
#[actix::test]
async fn unresponsive_pod_directory_delays_no_other_cleanup() {
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
