//! Final statuses of pods, across restarts of the agent (POD-W13).

use std::sync::Arc;

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::fake_ports::FakeFinalStatuses;
use podwright_fixtures::scripted_runtime::Script;
use podwright_model::ids::FullName;
use podwright_ports::SourceKind;

use crate::support::test_node::{Setup, TestNode};

/// The next agent, in whose runtime all containers are gone.
fn next(final_statuses: &Arc<FakeFinalStatuses>) -> TestNode {
    Setup { final_statuses: final_statuses.clone(), ..Setup::again(true) }.start()
}

async fn deliver(node: &TestNode, pods: &[PodBuilder]) {
    node.deliver(pods).await;
    node.wait(5.0).await;
}

#[actix::test]
async fn rejection_is_published_after_it_is_stored_and_survives_the_agent() {
    let node = TestNode::start().await;
    node.final_statuses.slow(3000);
    let pods = [pod("a").cpu("3"), pod("b").cpu("3")];
    let (set, none) = (pods.iter().map(PodBuilder::build).collect(), Vec::new());
    node.deliver_set(SourceKind::Api, set, none).await;
    // Before the rejection is stored, it is not published and the pod is not started.
    let mut early = 0;
    while !node.final_statuses.has("b") {
        assert_eq!(node.phase("b"), "");
        node.node.run_housekeeping().await.unwrap();
        assert_eq!(node.lifecycle("b"), None);
        early += 1;
        node.wait(0.5).await;
    }
    assert!(early > 3);
    node.settled().await;
    let rejected = node.status("b");
    assert_eq!((rejected.phase.as_deref(), rejected.reason.as_deref()), (Some("Failed"), Some("OutOfcpu")));

    // The node has free capacity now.
    let later = next(&node.final_statuses);
    deliver(&later, &pods[1..]).await;
    assert_eq!(later.status("b"), rejected);
    assert_eq!((later.runtime.calls_of("b"), later.lifecycle("b")), (vec![], None));
    assert_eq!(later.events.count("b", "OutOfcpu"), 0, "the rejection has its event already");
    later.wait(120.0).await;
    assert_eq!(later.runtime.calls_of("b"), [""; 0]);
    assert_eq!(later.pod_counts(), ["desired_pods{} 1"]);
}

#[actix::test]
async fn finished_pod_is_not_run_again_without_its_containers() {
    let node = TestNode::start().await;
    node.runtime.script("done", Script::ends(1.0, 0));
    node.runtime.script("failed", Script::ends(1.0, 3));
    let pods = [
        pod("a").policy("Never").containers(&["done"]).of_file(),
        pod("b").policy("OnFailure").containers(&["done"]).of_file(),
        pod("c").policy("Never").containers(&["failed"]),
        pod("d").of_file(),
    ];
    deliver(&node, &pods).await;
    let ended = ["a", "b", "c"].map(|uid| node.status(uid));
    assert_eq!(["a", "b", "c"].map(|uid| node.final_statuses.has(uid)), [true; 3]);
    assert!(!node.final_statuses.has("d"), "it runs");
    let writes = node.final_statuses.writes();
    node.wait(300.0).await;
    assert_eq!(node.final_statuses.writes(), writes, "the store is not written for active or finished pods");

    let later = next(&node.final_statuses);
    deliver(&later, &pods).await;
    for (uid, status) in ["a", "b", "c"].iter().zip(&ended) {
        let starts = later.runtime.calls_of(uid).into_iter().filter(|call| call.contains("start")).count();
        assert_eq!(starts, 0, "{uid} {:?}", later.runtime.calls_of(uid));
        assert_eq!(later.lifecycle(uid), Some(Lifecycle::Finished), "its volumes are unmounted");
        let now = later.status(uid);
        assert_eq!((&now.phase, &now.container_statuses), (&status.phase, &status.container_statuses), "{uid}");
    }
    assert_eq!(later.runtime.running("d"), ["main"]);
    // An update of the pod does not change that.
    deliver(&later, &[pods[0].clone().label("2"), pods[1].clone()]).await;
    later.wait(120.0).await;
    assert_eq!(later.phase("a"), "Succeeded");
    assert_eq!(later.runtime.running("a"), [""; 0]);
}

#[actix::test]
async fn stored_final_status_stops_containers_that_still_run() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    let a = pod("a").of_file().spec("activeDeadlineSeconds", 2);
    deliver(&node, std::slice::from_ref(&a)).await;
    assert_eq!((node.phase("a"), node.reason("a")), ("Failed".into(), "DeadlineExceeded".into()));
    assert!(node.final_statuses.has("a"));
    assert_eq!(node.runtime.running("a"), ["main"], "the container still runs within its grace period");

    let setup = Setup { final_statuses: node.final_statuses.clone(), ..Setup::again(true) };
    setup.runtime.plant("a", FullName::new("test", "a"), "main");
    let later = setup.start();
    deliver(&later, &[pod("a").of_file()]).await;
    later.wait(40.0).await;
    assert_eq!(later.runtime.running("a"), [""; 0]);
    assert_eq!(later.reason("a"), "DeadlineExceeded");
}

#[actix::test]
async fn final_status_of_a_pod_no_longer_desired_is_removed() {
    let node = TestNode::start().await;
    node.runtime.script("done", Script::ends(1.0, 0));
    let done = pod("a").policy("Never").containers(&["done"]).of_file();
    let pods = [done.clone(), pod("b").cpu("9"), pod("c").of_file()];
    deliver(&node, &pods).await;
    assert_eq!(["a", "b", "c"].map(|uid| node.final_statuses.has(uid)), [true, true, false]);

    // Final statuses are kept until every source has delivered.
    let later = Setup { final_statuses: node.final_statuses.clone(), ..Setup::again(true) }.start();
    later.deliver_set(SourceKind::File, vec![done.build()], Vec::new()).await;
    later.wait(10.0).await;
    assert!(later.final_statuses.has("b"));
    later.deliver_set(SourceKind::Api, Vec::new(), Vec::new()).await;
    later.wait(10.0).await;
    assert_eq!(["a", "b"].map(|uid| later.final_statuses.has(uid)), [true, false]);
    deliver(&later, &[]).await;
    assert!(!later.final_statuses.has("a"));
    // After that the pod can run again.
    later.runtime.script("done", Script::ends(1.0, 0));
    deliver(&later, std::slice::from_ref(&done)).await;
    assert_eq!(later.phase("a"), "Succeeded");
    assert!(later.runtime.calls_of("a").iter().any(|call| call.contains("start")));
}

#[actix::test]
async fn unwritable_final_status_store_delays_no_pod() {
    let node = TestNode::start().await;
    node.final_statuses.broken(true);
    node.runtime.script("done", Script::ends(1.0, 0));
    let pods = [pod("a").policy("Never").containers(&["done"]).of_file(), pod("b").cpu("9")];
    deliver(&node, &pods).await;
    assert_eq!((node.phase("a"), node.phase("b")), ("Succeeded".into(), "Failed".into()));
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    node.final_statuses.broken(false);
    node.wait(10.0).await;
    assert_eq!(node.final_statuses.records().len(), 2);
}

#[actix::test]
async fn static_pod_stopped_by_shutdown_runs_again_unless_restart_never() {
    use podwright_actors::shutdown::ShutdownConfig;
    let node = TestNode::start().await;
    let pods = [pod("a").of_file(), pod("b").policy("Never").of_file()];
    deliver(&node, &pods).await;
    let config = ShutdownConfig::new(std::time::Duration::from_secs(60), std::time::Duration::ZERO);
    node.node.stop_pods(config).await;
    assert_eq!((node.reason("a"), node.reason("b")), ("Terminated".into(), "Terminated".into()));

    let later = next(&node.final_statuses);
    deliver(&later, &pods).await;
    assert_eq!((later.phase("a"), later.phase("b")), ("Running".into(), "Failed".into()));
}

#[actix::test]
async fn invalid_final_status_record_is_ignored() {
    let setup = Setup::new(true);
    setup.final_statuses.plant("what?");
    let node = setup.start();
    deliver(&node, &[pod("a")]).await;
    assert_eq!(node.phase("a"), "Running");
}

#[actix::test]
async fn node_whose_file_another_node_opened_publishes_no_final_status() {
    let old = TestNode::start().await;
    old.runtime.script("done", Script::ends(1.0, 0));
    let new = next(&old.final_statuses);
    let pods = [pod("a").policy("Never").containers(&["done"]).of_file(), pod("b").cpu("9")];
    deliver(&old, &pods).await;
    old.wait(60.0).await;
    assert_eq!((old.phase("a"), old.phase("b")), ("Running".into(), String::new()));
    assert_eq!(old.runtime.running("a"), [""; 0]);
    assert_eq!(old.events.count("b", "OutOfcpu"), 0);
    assert_eq!(old.final_statuses.records(), [""; 0]);

    deliver(&new, &[pod("d").cpu("9")]).await;
    assert_eq!(new.phase("d"), "Failed");
    assert!(new.final_statuses.has("d"));
    // The old node still serves its other pods.
    deliver(&old, &[pod("e").of_file()]).await;
    assert_eq!(old.phase("e"), "Running");
}
