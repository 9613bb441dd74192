//! What is seen of the runtime, and what is told of it.

use std::net::IpAddr;

use podwright_actors::ids::FullName;
use podwright_actors::pod_worker::Lifecycle;
use podwright_actors::ports::{ContainerState, SourceKind};
use serde_json::json;

use crate::support::fake_runtime::{Op, Script};
use crate::support::pods::pod;
use crate::support::test_node::Setup;

// S91, W17
#[actix::test]
async fn gauges_show_what_runs_and_zeros_where_nothing_does() {
    let setup = Setup::new(false);
    for (uid, names) in [("u1", ["a", "b"]), ("u2", ["c", "d"])] {
        for name in names {
            setup.runtime.plant(uid, FullName::new("test", uid), name);
        }
    }
    setup.runtime.edit("u1", "b", |container| container.state = ContainerState::Exited);
    setup.runtime.edit("u2", "c", |container| container.state = ContainerState::Unknown);
    setup.runtime.edit("u2", "d", |container| container.state = ContainerState::Unknown);
    let node = setup.start();
    node.settled().await;
    let gauges = |node: &crate::support::test_node::TestNode| {
        let of = |state: &str| node.metric(&format!("kubelet_running_containers{{container_state=\"{state}\"}}"));
        [node.metric("kubelet_running_pods"), of("running"), of("exited"), of("unknown"), of("created")]
    };
    assert_eq!(gauges(&node), [2.0, 1.0, 1.0, 2.0, 0.0]);
    // Nobody wants them: they are stopped and removed.
    node.deliver(&[]).await;
    node.runtime.edit("u2", "c", |container| container.state = ContainerState::Running);
    node.runtime.edit("u2", "d", |container| container.state = ContainerState::Running);
    node.wait(12.0).await;
    assert_eq!(gauges(&node), [0.0; 5]);
}

// A pod's hook reads its status first; that is the one failure that nothing else tells of.
#[actix::test]
async fn only_a_status_that_cannot_be_read_is_told_as_a_failed_sync() {
    let node = Setup::new(true).start();
    node.deliver(&[]).await;
    node.runtime.fail(Op::Start);
    node.deliver(&[pod("a")]).await;
    assert!(node.node.engine.snapshot(&"a".into()).unwrap().failure.is_some());
    assert!(!node.events.has("a", "FailedSync"));
    node.runtime.heal();
    node.runtime.fail(Op::Status);
    node.deliver(&[pod("a").label("2")]).await;
    assert!(node.events.has("a", "FailedSync"));
}

// What was seen stands until something happens, be it seen by a relist or done by the node itself.
#[actix::test]
async fn a_pod_that_is_well_costs_no_reads_and_still_starts_again_at_once() {
    let node = Setup::new(false).start();
    node.runtime.script("main", Script::ends(600.5, 1));
    node.deliver(&[]).await;
    node.deliver(&[pod("a")]).await;
    node.wait(5.0).await;
    let reads = || node.runtime.times_of("status").len();
    let before = reads();
    node.until(590.0).await;
    assert_eq!(reads(), before, "about eight resyncs");
    node.until(602.0).await;
    assert_eq!(node.runtime.running("a"), ["main"]);
    assert_eq!(node.status("a").container_statuses.unwrap()[0].restart_count, 1);
    // One for the relist that saw the exit, and one after the start.
    assert_eq!(reads(), before + 2);

    // A start that failed may have left anything behind.
    node.runtime.fail(Op::Start);
    node.runtime.edit("a", "main", |container| container.state = ContainerState::Exited);
    node.wait(2.0).await;
    let before = reads();
    node.wait(30.0).await;
    assert!(reads() > before);
}

// What was seen of the life before has been removed since, and nobody is told of that before the next relist.
#[actix::test]
async fn a_pod_that_comes_back_is_seen_as_it_is() {
    let node = Setup::new(false).start();
    node.deliver(&[]).await;
    node.deliver(&[pod("a")]).await;
    node.until(2.0).await;
    node.deliver(&[pod("a").label("settled")]).await;
    node.deliver(&[]).await;
    node.until(4.4).await;
    assert_eq!(node.runtime.look(&"a".into()).containers, []);
    node.deliver(&[pod("a")]).await;
    node.until(6.0).await;
    let status = node.status("a");
    let container = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!((status.phase.as_deref(), container.restart_count), (Some("Running"), 0));
}

// Asked again after 1, 2, 4, 8 and then every 10 seconds; the relist that goes with each finds what was missed.
#[actix::test]
async fn a_panic_in_the_events_is_not_the_end_of_the_observer() {
    let node = Setup::new(true).start();
    node.runtime.script("main", Script::ends(20.5, 0));
    node.deliver(&[]).await;
    node.runtime.panic_in(Op::Events);
    node.deliver(&[pod("a").policy("Never")]).await;
    node.until(30.0).await;
    assert_eq!((node.phase("a"), node.metric("podwright_hook_panics_total")), ("Succeeded".into(), 6.0));
    node.runtime.heal();
    node.until(40.0).await;
    node.runtime.script("main", Script::ends(3.0, 0));
    node.deliver(&[pod("b").policy("Never")]).await;
    node.wait(3.5).await;
    assert_eq!(node.phase("b"), "Succeeded");
}

async fn an_unreadable_status(with_events: bool) {
    let node = Setup::new(with_events).start();
    node.runtime.script("main", Script::ends(10.5, 0));
    node.deliver(&[]).await;
    node.deliver(&[pod("a").policy("Never")]).await;
    node.until(9.0).await;
    node.runtime.fail(Op::Status);
    node.until(14.0).await;
    assert_eq!(node.phase("a"), "Running");
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Sync));
    node.runtime.heal();
    node.until(16.0).await;
    assert_eq!(node.phase("a"), "Succeeded");
}

// S88, S89
#[actix::test]
async fn a_status_that_cannot_be_read_is_read_again_and_its_change_told_then() {
    an_unreadable_status(true).await;
}

// S88, S89
#[actix::test]
async fn without_events_a_status_that_cannot_be_read_is_read_again_too() {
    an_unreadable_status(false).await;
}

// Whoever starts a sidecar is told nothing of it afterwards, and has to go on by itself.
#[actix::test]
async fn what_follows_a_sidecar_starts_at_once_whatever_the_runtime_tells() {
    let node = Setup::new(false).start();
    node.deliver(&[]).await;
    let sidecar = |name: &str| json!({"name": name, "image": "img", "restartPolicy": "Always"});
    node.deliver(&[pod("a").spec("initContainers", json!([sidecar("x"), sidecar("y")]))]).await;
    assert_eq!(node.phase("a"), "Running");
}

// S90
#[actix::test]
async fn a_pod_keeps_its_address_when_its_sandbox_ends() {
    let node = Setup::new(true).start();
    node.deliver(&[]).await;
    node.deliver(&[pod("a").policy("Never")]).await;
    node.runtime.end_sandbox("a");
    node.wait(1.0).await;
    assert_eq!(node.phase("a"), "Failed");
    assert_eq!(node.status("a").pod_ip.as_deref(), Some("10.0.0.7"));
    let seen = node.node.observer.last(&"a".into()).unwrap();
    assert_eq!(seen.sandboxes[0].ips, ["10.0.0.7".parse::<IpAddr>().unwrap()]);
}

// S59
#[actix::test]
async fn a_pod_that_loses_its_sandbox_half_started_ends_where_it_may_have_no_other() {
    let node = Setup::new(true).start();
    node.runtime.script("two", Script { fails_to_start: true, ..Script::default() });
    node.deliver(&[]).await;
    node.deliver(&[pod("a").policy("Never").containers(&["one", "two"])]).await;
    assert_eq!((node.phase("a"), node.runtime.running("a")), ("Pending".into(), vec!["one".to_owned()]));
    node.runtime.end_sandbox("a");
    node.wait(5.0).await;
    let status = node.status("a");
    assert_eq!((node.phase("a"), node.reason("a")), ("Failed".into(), "SandboxLost".into()));
    assert!(status.message.unwrap().contains("before container two was started"));
    let ended =
        status.container_statuses.unwrap().into_iter().map(|it| it.state.unwrap().terminated.unwrap().exit_code);
    assert_eq!(ended.collect::<Vec<_>>(), [137, 137]);
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
}

#[actix::test]
async fn nothing_is_dispatched_before_the_runtime_was_seen() {
    let setup = Setup::new(true);
    setup.runtime.unreachable();
    let node = setup.start();
    node.deliver(&[pod("a")]).await;
    node.wait(60.0).await;
    assert_eq!((node.lifecycle("a"), *node.node.healthy.borrow()), (None, false));
    node.runtime.heal();
    node.wait(2.0).await;
    assert!(*node.node.healthy.borrow());
    assert_eq!(node.runtime.running("a"), ["main"]);
}

#[actix::test]
async fn a_runtime_that_hangs_for_long_is_unhealthy_and_runs_on() {
    let node = Setup::new(true).start();
    node.deliver(&[]).await;
    node.deliver(&[pod("a")]).await;
    node.runtime.slow(Op::List, 400.0);
    node.until(170.0).await;
    assert!(*node.node.healthy.borrow());
    node.until(195.0).await;
    assert!(!*node.node.healthy.borrow());
    node.deliver_set(SourceKind::Api, vec![pod("a").build(), pod("late").build()], Vec::new()).await;
    node.settled().await;
    assert_eq!(node.lifecycle("late"), None, "nothing is dispatched meanwhile");
    // Its events still count.
    node.runtime.edit("a", "main", |container| container.state = ContainerState::Exited);
    node.settled().await;
    assert_eq!(node.runtime.times_of("start main").len(), 2);
    node.runtime.heal();
    node.until(420.0).await;
    assert!(*node.node.healthy.borrow());
    assert_eq!(node.lifecycle("late"), Some(Lifecycle::Sync));
}

#[actix::test]
async fn one_pod_whose_reads_are_slow_delays_no_other() {
    let node = Setup::new(false).start();
    node.deliver(&[]).await;
    node.runtime.script("main", Script::ends(5.0, 0));
    node.deliver(&[pod("a").policy("Never"), pod("slow").policy("Never")]).await;
    node.runtime.slow_pod("slow", 30.0);
    node.until(7.5).await;
    assert_eq!(node.phase("a"), "Succeeded");
    assert_eq!(node.phase("slow"), "Running");
    node.until(80.0).await;
    assert_eq!(node.phase("slow"), "Succeeded");
}
