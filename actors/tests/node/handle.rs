//! The handle of a running node: shutdown, drop, and two nodes in one process.

use std::sync::Arc;
use std::time::Duration;

use podwright_actors::housekeeping::PassError;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_ports::{NodeStopped, SOURCE_CHANNEL_DEPTH, SourceKind, SourceSet};
use tokio::time::timeout;

use crate::support::test_node::{Setup, TestNode};

#[actix::test]
async fn two_nodes_run_in_one_process_and_do_not_share_pods() {
    let first = TestNode::start().await;
    let second = Setup::again(true).start();
    second.deliver(&[pod("b")]).await;
    first.deliver(&[pod("a")]).await;
    assert_eq!((first.phase("a"), second.phase("b")), ("Running".into(), "Running".into()));
    assert_eq!((first.lifecycle("b"), second.lifecycle("a")), (None, None));
    drop(first);
    second.deliver(&[pod("b"), pod("c")]).await;
    second.wait(5.0).await;
    assert_eq!(second.phase("c"), "Running");
}

#[actix::test]
async fn dropping_the_handle_ends_actors_workers_hooks_and_probes() {
    let node = TestNode::start().await;
    let probe = serde_json::json!([{
        "name": "main", "image": "img", "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
    }]);
    node.deliver(&[pod("a").spec("containers", probe)]).await;
    // A hook is in progress.
    node.runtime.slow(Op::Pull, 600.0);
    node.deliver(&[pod("b")]).await;
    let (runtime, storage) = (node.runtime.clone(), node.storage.clone());
    let sources = node.node.sources();
    drop(node);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!((Arc::strong_count(&runtime), Arc::strong_count(&storage)), (1, 1), "something still holds the ports");
    assert_eq!(sources.send(no_pods().into()).await, Err(NodeStopped));
}

#[actix::test]
async fn a_source_waits_while_the_runtime_does_not_answer() {
    let setup = Setup::new(false);
    setup.runtime.fail(Op::List);
    let node = setup.start();
    let sources = node.node.sources();
    for _ in 0..SOURCE_CHANNEL_DEPTH {
        assert_eq!(sources.send(no_pods().into()).await, Ok(()));
    }
    let mut next = sources.send(no_pods().into());
    assert!(timeout(Duration::from_secs(60), &mut next).await.is_err(), "the node holds too many updates");
    node.runtime.heal();
    assert_eq!(timeout(Duration::from_secs(60), next).await, Ok(Ok(())));
}

fn no_pods() -> SourceSet {
    SourceSet { source: SourceKind::File, pods: Vec::new(), problems: Vec::new() }
}

#[actix::test]
async fn shutdown_stops_the_pods_and_then_the_node() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[pod("a").grace(5)]).await;
    let begin = node.now();
    let report = node.node.shutdown(Duration::from_secs(30)).await;
    assert_eq!((report.stopped, report.late.len(), report.left_running), (1, 0, 0));
    assert!((5.0..6.0).contains(&(node.now() - begin)), "the pod has its grace period");
    assert_eq!((node.phase("a"), node.reason("a")), ("Failed".into(), "Terminated".into()));
    node.settled().await;
    assert_eq!(node.node.run_housekeeping().await, Err(PassError::Stopped));
}

#[actix::test]
async fn shutdown_without_time_leaves_the_pods_running() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a")]).await;
    let report = node.node.shutdown(Duration::ZERO).await;
    assert_eq!((report.stopped, report.left_running), (0, 1));
    node.wait(60.0).await;
    assert_eq!(node.runtime.running("a"), ["main"]);
}

#[actix::test]
async fn shutdown_without_time_does_not_wait_for_the_cleanup_of_a_pod() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::ends(1.0, 0));
    node.storage.hang("a");
    node.deliver(&[pod("a").policy("Never")]).await;
    node.storage.stuck(true);
    node.wait(5.0).await;
    let begin = node.now();
    let report = node.node.shutdown(Duration::ZERO).await;
    assert!(node.now() - begin < 0.1, "{report:?}");
    let again = node.node.shutdown(Duration::from_secs(30)).await;
    assert!(node.now() - begin < 0.1, "a node that has stopped stops no pods: {again:?}");
}

#[actix::test]
async fn shutdown_ends_the_probes_of_pods_that_keep_running() {
    let node = TestNode::start().await;
    let container = serde_json::json!([{
        "name": "main", "image": "img", "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
    }]);
    node.deliver(&[pod("a").spec("containers", container)]).await;
    node.wait(5.0).await;
    let execs = || node.metric("kubelet_runtime_operations_total{operation_type=\"exec_sync\"}");
    assert!(execs() >= 4.0, "the probe runs each second: {}", execs());
    node.node.shutdown(Duration::ZERO).await;
    node.settled().await;
    let before = execs();
    node.wait(30.0).await;
    assert_eq!(execs(), before);
}
