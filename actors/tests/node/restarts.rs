//! Agents that are killed while they do something with containers, and the next agents.

mod readiness;

use std::time::Duration;

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_ports::{Clock, ContainerState, ExecOutput, SourceKind, TokioClock, Unready};

use super::explain::reading::waits;
use crate::support::test_node::{Setup, TestNode};

/// The start of a container is cancelled, because the agent that requested it died. containerd reports it like a failed one.
fn cancel_start(setup: &Setup, uid: &str, container: &str) {
    let now = setup.clock.now();
    setup.runtime.edit(uid, container, |run| {
        run.state = ContainerState::Exited;
        (run.exit_code, run.reason, run.finished_at) = (128, "StartError".into(), Some(now));
        run.message = "context canceled".into();
    });
}

/// An agent that is killed during the start of each pod's container. The runtime cancels the starts.
async fn killed_in_start(pods: &[PodBuilder], uids: &[&str]) -> Setup {
    let node = TestNode::start().await;
    node.runtime.slow(Op::Start, 60.0);
    node.deliver(pods).await;
    node.wait(1.0).await;
    assert_eq!(node.runtime.times_of("start main").len(), pods.len());
    let next = node.killed();
    next.runtime.heal();
    uids.iter().for_each(|uid| cancel_start(&next, uid, "main"));
    next
}

#[actix::test]
async fn start_that_ended_with_its_agent_is_no_failed_run() {
    let pods = [pod("once").policy("Never"), pod("static").of_file(), pod("job").policy("OnFailure")];
    let uids = ["once", "static", "job"];
    let node = killed_in_start(&pods, &uids).await.start();
    node.deliver(&pods).await;
    node.wait(5.0).await;
    for uid in uids {
        assert_eq!((node.phase(uid), node.runtime.running(uid)), ("Running".into(), vec!["main".to_owned()]), "{uid}");
        let status = node.status(uid).container_statuses.unwrap()[0].clone();
        assert_eq!((status.restart_count, status.last_state), (0, None), "{uid}");
        let runs = node.runtime.inspect(&uid.into()).containers;
        assert_eq!(runs.iter().map(|run| run.restart_count).collect::<Vec<_>>(), [0], "{uid}");
        assert!(!node.events.has(uid, "BackOff"), "{uid}");
    }
}

/// Why a container of a pod waits.
fn waiting(node: &TestNode, uid: &str, container: &str) -> Option<String> {
    let statuses = node.status(uid).container_statuses.unwrap_or_default();
    let status = statuses.into_iter().find(|status| status.name == container)?;
    status.state?.waiting?.reason
}

// The runtime cannot remove the run for a while. Until then the pod waits, and does not fail.
#[actix::test]
async fn pod_does_not_fail_while_a_cancelled_start_cannot_be_undone() {
    let pods = [pod("once").policy("Never")];
    let next = killed_in_start(&pods, &["once"]).await;
    next.runtime.fail(Op::Remove);
    let node = next.start();
    node.deliver(&pods).await;
    node.wait(30.0).await;
    assert_eq!(node.phase("once"), "Pending");
    assert_eq!(waiting(&node, "once", "main").as_deref(), Some("CreateContainerError"));
    assert!(node.events.has("once", "Failed"));
    node.runtime.heal();
    node.wait(20.0).await;
    assert_eq!(node.phase("once"), "Running");
    let status = node.status("once").container_statuses.unwrap()[0].clone();
    assert_eq!((status.restart_count, status.last_state), (0, None));
}

// The start of `job` was cancelled, and the runtime cannot remove it.
#[actix::test]
async fn cancelled_start_that_cannot_be_undone_holds_back_only_its_container() {
    let exec = |word: &str| serde_json::json!({"exec": {"command": [word]}});
    let probe = serde_json::json!({"exec": {"command": ["ready"]}, "periodSeconds": 5, "failureThreshold": 1});
    let web = serde_json::json!({
        "name": "web", "image": "img", "lifecycle": {"postStart": exec("hook")}, "readinessProbe": probe,
    });
    let job = serde_json::json!({"name": "job", "image": "img"});
    let pods = [pod("a").of_file().spec("containers", serde_json::json!([web, job]))];
    let node = TestNode::start().await;
    node.runtime.slow(Op::Exec, 5.0);
    node.deliver(&pods).await;
    node.wait(1.0).await;
    // The hook of `web` runs, so `job` starts later.
    node.runtime.heal();
    node.runtime.slow(Op::Start, 600.0);
    node.wait(30.0).await;
    let next = node.killed();
    next.runtime.heal();
    cancel_start(&next, "a", "job");
    next.runtime.fail(Op::Remove);
    let node = next.start();
    node.deliver(&pods).await;
    node.wait(15.0).await;
    let ready = |node: &TestNode| {
        let statuses = node.status("a").container_statuses.unwrap_or_default();
        statuses.into_iter().find(|status| status.name == "web").map(|status| status.ready)
    };
    assert_eq!(ready(&node), Some(true));
    assert_eq!(waiting(&node, "a", "job").as_deref(), Some("CreateContainerError"));
    // The probes and the restarts of `web` do not wait either.
    node.runtime.exec_result(Ok(ExecOutput { exit_code: 1, ..ExecOutput::default() }));
    node.wait(10.0).await;
    assert_eq!(ready(&node), Some(false));
    node.runtime.exec_result(Ok(ExecOutput::default()));
    let now = node.clock.now();
    node.runtime.edit("a", "web", |run| (run.state, run.finished_at) = (ContainerState::Exited, Some(now)));
    node.wait(30.0).await;
    assert_eq!(node.runtime.running("a"), ["web"]);

    node.runtime.heal();
    node.wait(30.0).await;
    let restarts = node.status("a").container_statuses.unwrap();
    let restarts: Vec<_> = restarts.iter().map(|status| (status.name.as_str(), status.restart_count)).collect();
    assert_eq!(restarts, [("job", 0), ("web", 1)]);
    assert_eq!(node.runtime.running("a").len(), 2);
}

#[actix::test]
async fn start_that_failed_under_an_earlier_agent_stays_a_failed_run() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script { start_error: Some("no such command"), ..Script::default() });
    let pods = [pod("a").policy("Never").containers(&["main", "other"])];
    node.deliver(&pods).await;
    node.wait(5.0).await;
    let node = node.killed().start();
    node.deliver(&pods).await;
    node.wait(5.0).await;
    assert_eq!((node.runtime.times_of("create main").len(), node.runtime.running("a")), (1, vec!["other".to_owned()]));
}

/// The grace periods that the runtime got in stops of a pod's container, in seconds.
fn graces(node: &TestNode, uid: &str) -> Vec<f64> {
    let calls = node.runtime.calls_of(uid);
    calls.iter().filter_map(|call| call.strip_prefix("stop main ")?.parse().ok()).collect()
}

/// A container that ends this long after it is asked to stop.
fn stops_in(seconds: u64) -> Script {
    Script { stops: Some((Duration::from_secs(seconds), 0)), ..Script::default() }
}

// The manifest is gone, so only the runtime knows the pod (POD-K12).
#[actix::test]
async fn next_agent_gives_a_stopping_static_pod_the_rest_of_its_grace_period() {
    let node = TestNode::start().await;
    node.runtime.script("main", stops_in(40));
    node.deliver(&[pod("a").of_file().grace(60)]).await;
    node.wait(5.0).await;
    node.deliver(&[]).await;
    node.wait(10.0).await;
    let next = node.killed();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let node = next.start();
    node.deliver(&[]).await;
    node.wait(5.0).await;
    let [first, second] = graces(&node, "a")[..] else { panic!("{:?}", node.runtime.calls_of("a")) };
    assert_eq!(first, 60.0);
    assert!((40.0..=45.0).contains(&second), "{second} s of 60 s are left 15 to 20 s after the stop began");
    assert_eq!(node.runtime.running("a"), ["main"]);
    let grace = node.node.engine().snapshot(&"a".into()).unwrap().grace.unwrap().seconds();
    assert!((40..=45).contains(&grace), "{grace}");
    node.wait(25.0).await;
    let runs = node.runtime.inspect(&"a".into()).containers;
    assert!(runs.iter().all(|run| run.exit_code == 0), "the container was not killed: {runs:?}");
    assert_eq!(node.lifecycle("a"), None);
}

// The clock is set back while the first agent runs, whose own clock never goes back.
#[actix::test]
async fn grace_period_does_not_grow_if_the_clock_is_set_back() {
    let setup = Setup::new(true);
    let clock = setup.clock;
    let ahead = TokioClock::starting_at(clock.now() + Duration::from_secs(365 * 24 * 3600));
    let node = Setup { clock: ahead, ..setup }.start();
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[pod("removed").of_file().grace(60), pod("deleted").grace(60)]).await;
    node.wait(5.0).await;
    node.deliver(&[pod("deleted").grace(60).deleting(60)]).await;
    node.wait(10.0).await;
    let node = Setup { clock, ..node.killed() }.start();
    node.deliver(&[pod("deleted").grace(60).deleting(60)]).await;
    node.wait(5.0).await;
    assert_eq!(["removed", "deleted"].map(|uid| graces(&node, uid)), [[60.0, 60.0], [60.0, 60.0]]);
    node.wait(60.0).await;
    assert_eq!(["removed", "deleted"].map(|uid| node.runtime.running(uid).len()), [0, 0]);
}

#[actix::test]
async fn pod_whose_manifest_was_removed_without_an_agent_gets_its_own_grace_period() {
    let node = TestNode::start().await;
    node.runtime.script("main", stops_in(40));
    node.deliver(&[pod("a").of_file().grace(60), pod("b").grace(50)]).await;
    node.wait(5.0).await;
    let node = node.killed().start();
    node.deliver(&[]).await;
    node.wait(5.0).await;
    assert_eq!((graces(&node, "a"), graces(&node, "b")), (vec![60.0], vec![50.0]));
}

// Also a pod with a spec gets no second grace period.
#[actix::test]
async fn deletion_and_deadline_go_on_with_the_rest_of_the_grace_period() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    let late = pod("late").of_file().spec("activeDeadlineSeconds", 5);
    node.deliver(&[pod("deleted"), late.clone()]).await;
    node.wait(6.0).await;
    let pods = [pod("deleted").deleting(30), late];
    node.deliver(&pods).await;
    node.wait(10.0).await;
    let node = node.killed().start();
    node.deliver(&pods).await;
    node.wait(3.0).await;
    for uid in ["deleted", "late"] {
        let [first, second] = graces(&node, uid)[..] else { panic!("{uid}: {:?}", node.runtime.calls_of(uid)) };
        assert_eq!(first, 30.0, "{uid}");
        assert!((15.0..=20.5).contains(&second), "{uid}: {second}");
    }
    node.wait(22.0).await;
    assert_eq!(["deleted", "late"].map(|uid| node.runtime.running(uid).len()), [0, 0]);
}

#[actix::test]
async fn grace_period_that_ended_without_an_agent_leaves_the_shortest_stop() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[pod("a").grace(10)]).await;
    node.wait(2.0).await;
    // The stop hangs in the runtime, which loses it.
    node.runtime.slow(Op::Stop, 600.0);
    node.deliver(&[pod("a").grace(10).deleting(10)]).await;
    node.wait(1.0).await;
    let next = node.killed();
    next.runtime.heal();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let node = next.start();
    node.deliver(&[pod("a").grace(10).deleting(10)]).await;
    node.wait(3.0).await;
    assert_eq!(graces(&node, "a"), [10.0, 2.0]);
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
}

// The manifest is put back while no agent runs. A later stop is another one.
#[actix::test]
async fn pod_that_is_expected_to_run_again_gets_its_whole_grace_period_later() {
    let node = TestNode::start().await;
    node.runtime.script("main", stops_in(5));
    let a = [pod("a").of_file()];
    node.deliver(&a).await;
    node.wait(2.0).await;
    node.runtime.slow(Op::Stop, 600.0);
    node.deliver(&[]).await;
    node.wait(5.0).await;
    let next = node.killed();
    next.runtime.heal();
    let node = next.start();
    node.deliver(&a).await;
    node.wait(60.0).await;
    assert_eq!((node.phase("a"), node.runtime.times_of("start main").len()), ("Running".into(), 1));
    node.deliver(&[]).await;
    node.wait(10.0).await;
    assert_eq!(graces(&node, "a"), [30.0, 30.0]);
}

// The stop was lost with the agent. The next agent cannot sync the pod for a while, and then stops it.
#[actix::test]
async fn pod_that_cannot_be_synced_gets_its_whole_grace_period_later() {
    let node = TestNode::start().await;
    node.runtime.script("main", stops_in(5));
    let a = [pod("a").of_file()];
    node.deliver(&a).await;
    node.wait(2.0).await;
    node.runtime.slow(Op::Stop, 600.0);
    node.deliver(&[]).await;
    node.wait(5.0).await;
    let next = node.killed();
    next.runtime.heal();
    next.runtime.unready(Unready { network: Some("no CNI".into()), ..Unready::default() });
    let node = next.start();
    node.deliver(&a).await;
    node.wait(60.0).await;
    assert!(node.events.has("a", "NetworkNotReady"));
    node.deliver(&[]).await;
    node.wait(10.0).await;
    assert_eq!(graces(&node, "a"), [30.0, 30.0]);
}

// POD-I8: the engine has no record of the earlier version.
#[actix::test]
async fn edited_static_pod_starts_after_its_earlier_version_has_stopped() {
    let node = TestNode::start().await;
    node.runtime.script("main", stops_in(20));
    node.deliver(&[pod("a").uid("a1").of_file()]).await;
    node.wait(5.0).await;
    let node = node.killed().start();
    node.deliver(&[pod("a").uid("a2").of_file().label("2")]).await;
    node.wait(10.0).await;
    assert_eq!((graces(&node, "a1"), node.runtime.calls_of("a2")), (vec![30.0], vec![]));
    assert_eq!(node.phase("a2"), "Pending");
    let explained = waits(&node, "a");
    assert!(explained.contains("its earlier version, the pod with UID a1, has not stopped yet"), "{explained}");
    node.wait(20.0).await;
    assert_eq!((node.runtime.running("a1").len(), node.runtime.running("a2").len()), (0, 1));
}

// The missing source may desire the earlier version.
#[actix::test]
async fn edited_static_pod_names_a_missing_source_that_its_earlier_version_waits_for() {
    let node = TestNode::start().await;
    node.runtime.script("main", stops_in(20));
    node.deliver(&[pod("a").uid("a1").of_file()]).await;
    node.wait(5.0).await;
    let node = Setup { sources: vec![SourceKind::File, SourceKind::Http], ..node.killed() }.start();
    node.deliver_set(SourceKind::File, vec![pod("a").uid("a2").of_file().label("2").build()], Vec::new()).await;
    node.wait(60.0).await;
    let explained = waits(&node, "a");
    let why = "its earlier version, the pod with UID a1, runs until every source of static pods has delivered";
    assert!(explained.contains(why), "{explained}");
    node.deliver_set(SourceKind::Http, Vec::new(), Vec::new()).await;
    node.wait(10.0).await;
    let explained = waits(&node, "a");
    assert!(explained.contains("its earlier version, the pod with UID a1, has not stopped yet"), "{explained}");
    node.wait(20.0).await;
    assert_eq!((node.runtime.running("a1").len(), node.runtime.running("a2").len()), (0, 1));
}

// The static pod may be the one that makes the API server reachable.
#[actix::test]
async fn removed_static_pod_stops_before_the_api_server_delivers() {
    let node = TestNode::start().await;
    node.deliver(&[pod("file").of_file(), pod("api")]).await;
    node.wait(5.0).await;
    let node = node.killed().start();
    node.deliver_set(SourceKind::File, Vec::new(), Vec::new()).await;
    node.wait(10.0).await;
    assert_eq!((node.runtime.running("file").len(), node.runtime.running("api").len()), (0, 1));
}
