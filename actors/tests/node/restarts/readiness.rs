//! The probes and the post-start hooks of containers that the next agent finds.

use std::time::Duration;

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_model::time::Time;
use podwright_ports::{Clock, ExecOutput, TokioClock};

use super::graces;
use crate::support::test_node::{Setup, TestNode};

/// A container with a readiness probe every 5 seconds.
fn probed() -> serde_json::Value {
    let probe = serde_json::json!({"exec": {"command": ["ready"]}, "periodSeconds": 5, "failureThreshold": 1});
    serde_json::json!([{"name": "main", "image": "img", "readinessProbe": probe, "startupProbe": probe}])
}

/// The condition Ready, and whether the container is ready and has started, in each status of the pods for 8 seconds. An agent that
/// adopts a container probes it within 5 seconds.
async fn readiness<const N: usize>(node: &TestNode, uids: [&str; N]) -> [Vec<(String, bool, Option<bool>)>; N] {
    let mut seen = [(); N].map(|()| Vec::new());
    for _ in 0..400 {
        node.wait(0.02).await;
        for (uid, seen) in uids.iter().zip(&mut seen) {
            let status = node.status(uid);
            let container = status.container_statuses.iter().flatten().next().expect("the status has a container");
            let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
            let ready = ready.map_or_else(String::new, |ready| ready.status.clone());
            seen.push((ready, container.ready, container.started));
        }
    }
    seen.iter_mut().for_each(Vec::dedup);
    seen
}

/// The clock is set back by `back` between two agents.
async fn readiness_survives_the_agent(is_ready: bool, back: Duration) {
    let node = TestNode::start().await;
    let pods = [pod("static").of_file().spec("containers", probed()), pod("api").spec("containers", probed())];
    node.deliver(&pods).await;
    node.wait(20.0).await;
    let not_ready = || Ok(ExecOutput { exit_code: 1, ..ExecOutput::default() });
    if !is_ready {
        node.runtime.exec_result(not_ready());
        node.wait(10.0).await;
    }
    let now = Duration::from_nanos(node.clock.now().as_nanos());
    let clock = TokioClock::starting_at(Time::ZERO + (now - back));
    let node = Setup { clock, ..node.killed() }.start();
    node.deliver(&pods).await;
    let condition = if is_ready { "True" } else { "False" }.to_owned();
    let expected = vec![(condition, is_ready, Some(true))];
    assert_eq!(readiness(&node, ["static", "api"]).await, [expected.clone(), expected]);
    // The next result of the probe counts.
    node.runtime.exec_result(not_ready());
    node.wait(10.0).await;
    assert_eq!(readiness(&node, ["static"]).await, [vec![("False".to_owned(), false, Some(true))]]);
}

#[actix::test]
async fn ready_pod_stays_ready_under_the_next_agent() {
    readiness_survives_the_agent(true, Duration::ZERO).await;
}

#[actix::test]
async fn ready_pod_stays_ready_if_the_clock_is_set_back() {
    readiness_survives_the_agent(true, Duration::from_secs(3600)).await;
}

#[actix::test]
async fn pod_that_is_not_ready_stays_so_under_the_next_agent() {
    readiness_survives_the_agent(false, Duration::ZERO).await;
}

// The runtime answers slowly, so the next agent does not know its pods at once.
#[actix::test]
async fn static_pods_of_an_earlier_agent_are_listed_with_their_statuses() {
    let node = TestNode::start().await;
    // The readers of manifests give every pod this phase.
    let pods = [pod("static").of_file().phase("Pending").spec("containers", probed())];
    node.deliver(&pods).await;
    node.wait(20.0).await;
    let next = node.killed();
    next.runtime.slow(Op::Status, 0.5);
    let node = next.start();
    node.deliver(&pods).await;
    node.node.explainer().adopted().await;
    assert!(node.now() < 4.0, "{}", node.now());
    let listed = node.node.explainer().pods();
    let phases: Vec<_> = listed.iter().map(|pod| (pod.full_name.name(), pod.phase().as_str())).collect();
    assert_eq!(phases, [("static", "Running")]);
    assert!(node.status("static").container_statuses.unwrap()[0].ready);

    // A runtime that does not answer delays the list for a while only.
    let next = node.killed();
    next.runtime.heal();
    next.runtime.unreachable();
    let node = next.start();
    node.deliver(&pods).await;
    for _ in 0..2 {
        node.node.explainer().adopted().await;
        assert!((4.9..5.1).contains(&node.now()), "{}", node.now());
    }
    assert_eq!(node.node.explainer().pods().len(), 1);
}

// The next agent gets the pod only when it stops, and probes it all the same.
#[actix::test]
async fn pod_that_stops_under_the_next_agent_reports_its_readiness() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    let a = pod("a").grace(60).spec("containers", probed());
    node.deliver(std::slice::from_ref(&a)).await;
    node.wait(20.0).await;
    let pods = [a.deleting(60)];
    node.deliver(&pods).await;
    node.wait(5.0).await;
    let node = node.killed().start();
    node.deliver(&pods).await;
    assert_eq!(readiness(&node, ["a"]).await, [vec![("True".to_owned(), true, Some(true))]]);
    node.runtime.exec_result(Ok(ExecOutput { exit_code: 1, ..ExecOutput::default() }));
    node.wait(10.0).await;
    assert_eq!(readiness(&node, ["a"]).await, [vec![("False".to_owned(), false, Some(true))]]);
    assert_eq!((node.lifecycle("a"), node.runtime.running("a").len()), (Some(Lifecycle::Terminating), 1));
}

/// A container with a post-start hook.
fn hooked() -> serde_json::Value {
    let hook = serde_json::json!({"exec": {"command": ["hook"]}});
    serde_json::json!([{"name": "main", "image": "img", "lifecycle": {"postStart": hook}}])
}

#[actix::test]
async fn post_start_hook_that_the_last_agent_did_not_finish_runs_before_the_pod_is_ready() {
    let node = TestNode::start().await;
    let pods = [pod("static").of_file().spec("containers", hooked()), pod("api").spec("containers", hooked())];
    node.runtime.slow(Op::Exec, 60.0);
    node.deliver(&pods).await;
    node.wait(5.0).await;
    assert_eq!(node.runtime.commands().len(), 2);
    let next = node.killed();
    next.runtime.slow(Op::Exec, 10.0);
    let node = next.start();
    node.deliver(&pods).await;
    let before = readiness(&node, ["static", "api"]).await;
    assert_eq!(before, [(); 2].map(|()| vec![("False".to_owned(), false, Some(false))]));
    assert_eq!(["static", "api"].map(|uid| node.phase(uid)), ["Pending", "Pending"]);
    assert_eq!(node.runtime.commands().len(), 4, "each hook runs again");
    node.wait(5.0).await;
    for uid in ["static", "api"] {
        assert_eq!((node.phase(uid), node.runtime.running(uid)), ("Running".into(), vec!["main".to_owned()]), "{uid}");
        let status = node.status(uid).container_statuses.unwrap()[0].clone();
        assert_eq!((status.ready, status.restart_count), (true, 0), "{uid}");
    }

    // The hooks have ended, so the next agent runs none of them.
    let node = node.killed().start();
    node.deliver(&pods).await;
    let ready = readiness(&node, ["static", "api"]).await;
    assert_eq!(ready, [(); 2].map(|()| vec![("True".to_owned(), true, Some(true))]));
    assert_eq!(node.runtime.commands().len(), 4);
}

// The deletion cancels the hook.
#[actix::test]
async fn container_that_stops_during_its_post_start_hook_is_shown_as_running() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    node.runtime.slow(Op::Exec, 600.0);
    let a = pod("a").grace(60).spec("containers", hooked());
    node.deliver(std::slice::from_ref(&a)).await;
    node.wait(5.0).await;
    let state = |node: &TestNode| node.status("a").container_statuses.unwrap()[0].state.clone().unwrap();
    assert!(state(&node).waiting.is_some(), "{:?}", state(&node));
    node.deliver(&[a.deleting(60)]).await;
    node.wait(10.0).await;
    assert_eq!((node.lifecycle("a"), node.runtime.running("a").len()), (Some(Lifecycle::Terminating), 1));
    assert!(state(&node).running.is_some(), "{:?}", state(&node));
}

// The last agent could not stop the container after its hook had failed.
#[actix::test]
async fn container_whose_post_start_hook_failed_is_stopped_without_a_second_hook() {
    let node = TestNode::start().await;
    let pods = [pod("a").of_file().spec("containers", hooked())];
    node.runtime.exec_result(Ok(ExecOutput { exit_code: 1, ..ExecOutput::default() }));
    node.runtime.fail(Op::Stop);
    node.deliver(&pods).await;
    node.wait(5.0).await;
    let tries = graces(&node, "a").len();
    assert!(tries > 0 && node.runtime.commands().len() == 1, "{:?}", node.runtime.calls_of("a"));
    let next = node.killed();
    next.runtime.heal();
    next.runtime.exec_result(Ok(ExecOutput::default()));
    let node = next.start();
    node.deliver(&pods).await;
    node.wait(60.0).await;
    assert_eq!(graces(&node, "a")[tries..], [30.0]);
    let status = node.status("a").container_statuses.unwrap()[0].clone();
    assert_eq!((node.phase("a").as_str(), status.ready, status.restart_count), ("Running", true, 1));
    assert_eq!(node.runtime.commands().len(), 2, "the hook of the second run");
}

#[actix::test]
async fn container_whose_repeated_post_start_hook_fails_is_restarted() {
    let node = TestNode::start().await;
    let pods = [pod("a").of_file().spec("containers", hooked())];
    node.runtime.slow(Op::Exec, 60.0);
    node.deliver(&pods).await;
    node.wait(5.0).await;
    let next = node.killed();
    next.runtime.heal();
    next.runtime.exec_result(Ok(ExecOutput { exit_code: 1, ..ExecOutput::default() }));
    let node = next.start();
    node.deliver(&pods).await;
    node.wait(1.0).await;
    assert!(node.events.has("a", "FailedPostStartHook"));
    assert_eq!(graces(&node, "a")[..1], [30.0]);
    node.runtime.exec_result(Ok(ExecOutput::default()));
    node.wait(60.0).await;
    assert_eq!(node.phase("a"), "Running");
    assert!(node.status("a").container_statuses.unwrap()[0].restart_count >= 1);
}
