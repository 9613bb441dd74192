//! Agents that are killed while they do something with containers, and the next agents.

use podwright_actors::ports::{Clock, ContainerState};

use crate::support::fake_runtime::{Op, Script};
use crate::support::pods::{PodBuilder, pod};
use crate::support::test_node::{Setup, TestNode};

/// The start of a container is cancelled, because the agent that requested it died. containerd reports it like a failed one.
fn cancel_start(setup: &Setup, uid: &str) {
    let now = setup.clock.now();
    setup.runtime.edit(uid, "main", |run| {
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
    uids.iter().for_each(|uid| cancel_start(&next, uid));
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

// The runtime cannot remove the run for a while. Until then the pod waits, and does not fail.
#[actix::test]
async fn pod_does_not_fail_while_a_cancelled_start_cannot_be_undone() {
    let pods = [pod("once").policy("Never")];
    let next = killed_in_start(&pods, &["once"]).await;
    next.runtime.fail(Op::Remove);
    let node = next.start();
    node.deliver(&pods).await;
    node.wait(30.0).await;
    assert_eq!(node.phase("once"), "");
    node.runtime.heal();
    node.wait(20.0).await;
    assert_eq!(node.phase("once"), "Running");
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
