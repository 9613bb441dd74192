//! The node observes its runtime and publishes the statuses of the pods.

use std::net::IpAddr;

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_model::ids::FullName;
use podwright_ports::{ContainerState, SourceKind};
use serde_json::json;

use crate::support::test_node::Setup;

// Scenario POD-S91 and rule POD-W17.
#[actix::test]
async fn running_pod_and_container_gauges_return_to_zero() {
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
    // These runtime-only pods are stopped and removed.
    node.deliver(&[]).await;
    node.runtime.edit("u2", "c", |container| container.state = ContainerState::Running);
    node.runtime.edit("u2", "d", |container| container.state = ContainerState::Running);
    node.wait(12.0).await;
    assert_eq!(gauges(&node), [0.0; 5]);
}

// A sync reads the pod's status first. No other event reports a failure of this read.
#[actix::test]
async fn failed_sync_event_is_published_only_for_an_unreadable_status() {
    let node = Setup::new(true).start();
    node.deliver(&[]).await;
    node.runtime.fail(Op::Start);
    node.deliver(&[pod("a")]).await;
    assert!(node.node.engine().snapshot(&"a".into()).unwrap().failure.is_some());
    assert!(!node.events.has("a", "FailedSync"));
    node.runtime.heal();
    node.runtime.fail(Op::Status);
    node.deliver(&[pod("a").label("2")]).await;
    assert!(node.events.has("a", "FailedSync"));
}

// An observation is valid until a relist finds a change or the node itself makes one.
#[actix::test]
async fn healthy_pod_causes_no_status_reads_and_restarts_at_once() {
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
    // One read for the relist that found the exit, and one after the start.
    assert_eq!(reads(), before + 2);

    // After a failed start the node reads the status again, because the state of the container is unknown.
    node.runtime.fail(Op::Start);
    node.runtime.edit("a", "main", |container| container.state = ContainerState::Exited);
    node.wait(2.0).await;
    let before = reads();
    node.wait(30.0).await;
    assert!(reads() > before);
}

// The containers of the first pod with this UID are removed, but no relist has found that yet.
#[actix::test]
async fn pod_added_again_is_not_observed_from_its_earlier_life() {
    let node = Setup::new(false).start();
    node.deliver(&[]).await;
    node.deliver(&[pod("a")]).await;
    node.until(2.0).await;
    node.deliver(&[pod("a").label("settled")]).await;
    node.deliver(&[]).await;
    node.until(4.4).await;
    assert_eq!(node.runtime.inspect(&"a".into()).containers, []);
    node.deliver(&[pod("a")]).await;
    node.until(6.0).await;
    let status = node.status("a");
    let container = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!((status.phase.as_deref(), container.restart_count), (Some("Running"), 0));
}

// The observer retries after 1, 2, 4, 8 and then every 10 seconds. The relist of each retry finds missed changes.
#[actix::test]
async fn observer_continues_after_a_panic_in_runtime_events() {
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

// Scenarios POD-S88, POD-S89.
#[actix::test]
async fn unreadable_pod_status_is_read_again_with_runtime_events() {
    an_unreadable_status(true).await;
}

// KF33. Scenarios POD-S88, POD-S89.
#[actix::test]
async fn unreadable_pod_status_is_read_again_without_runtime_events() {
    an_unreadable_status(false).await;
}

// No event reports the start of a sidecar, so the sync continues by itself after the start.
#[actix::test]
async fn containers_after_a_sidecar_start_without_a_runtime_event() {
    let node = Setup::new(false).start();
    node.deliver(&[]).await;
    let sidecar = |name: &str| json!({"name": name, "image": "img", "restartPolicy": "Always"});
    node.deliver(&[pod("a").spec("initContainers", json!([sidecar("x"), sidecar("y")]))]).await;
    assert_eq!(node.phase("a"), "Running");
}

// Scenario POD-S90.
#[actix::test]
async fn pod_keeps_its_ip_address_after_its_sandbox_ended() {
    let node = Setup::new(true).start();
    node.deliver(&[]).await;
    node.deliver(&[pod("a").policy("Never")]).await;
    node.runtime.end_sandbox("a");
    node.wait(1.0).await;
    assert_eq!(node.phase("a"), "Failed");
    assert_eq!(node.status("a").pod_ip.as_deref(), Some("10.0.0.7"));
    let status = node.node.observer().last(&"a".into()).unwrap();
    assert_eq!(status.sandboxes[0].ips, ["10.0.0.7".parse::<IpAddr>().unwrap()]);
}

// Scenario POD-S59.
#[actix::test]
async fn pod_with_restart_never_fails_when_it_loses_its_sandbox() {
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

// KF18
#[actix::test]
async fn no_pod_is_dispatched_before_the_first_runtime_list() {
    let setup = Setup::new(true);
    setup.runtime.unreachable();
    let node = setup.start();
    node.deliver(&[pod("a")]).await;
    node.wait(60.0).await;
    assert_eq!((node.lifecycle("a"), *node.node.healthy().borrow()), (None, false));
    node.runtime.heal();
    node.wait(2.0).await;
    assert!(*node.node.healthy().borrow());
    assert_eq!(node.runtime.running("a"), ["main"]);
}

#[actix::test]
async fn hanging_runtime_is_unhealthy_and_its_events_still_count() {
    let node = Setup::new(true).start();
    node.deliver(&[]).await;
    node.deliver(&[pod("a")]).await;
    node.runtime.slow(Op::List, 400.0);
    node.until(170.0).await;
    assert!(*node.node.healthy().borrow());
    node.until(195.0).await;
    assert!(!*node.node.healthy().borrow());
    node.deliver_set(SourceKind::Api, vec![pod("a").build(), pod("late").build()], Vec::new()).await;
    node.settled().await;
    assert_eq!(node.lifecycle("late"), None, "no update is dispatched while housekeeping hangs");
    // Events still cause syncs.
    node.runtime.edit("a", "main", |container| container.state = ContainerState::Exited);
    node.settled().await;
    assert_eq!(node.runtime.times_of("start main").len(), 2);
    node.runtime.heal();
    node.until(420.0).await;
    assert!(*node.node.healthy().borrow());
    assert_eq!(node.lifecycle("late"), Some(Lifecycle::Sync));
}

// KF32
#[actix::test]
async fn slow_status_reads_of_one_pod_delay_no_other_pod() {
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
