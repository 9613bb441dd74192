//! Containers that exit, active deadlines, and runtime calls that fail or panic.

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::{Op, Script};

use crate::support::test_node::{Setup, TestNode};

// A retry waits for the end of the backoff, and at most half of the resync interval or of the backoff longer (POD-S67).
#[actix::test]
async fn crash_backoff_grows_with_each_restart() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::ends(1.0, 1));
    node.deliver(&[pod("a")]).await;
    node.wait(1500.0).await;
    let starts = node.runtime.times_of("start main");
    let waits: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0] - 1.0).collect();
    for (n, (wait, backoff)) in waits.iter().zip([0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]).enumerate() {
        let late = f64::min(backoff, 60.0) / 2.0 + 0.1;
        assert!((backoff..=backoff + late).contains(wait), "restart {n} after {wait} s instead of {backoff} s");
    }
    assert!(waits.len() >= 7, "{waits:?}");
    assert!(node.events.has("a", "BackOff"));
    let status = node.status("a").container_statuses.unwrap()[0].clone();
    assert_eq!(status.state.unwrap().waiting.unwrap().reason.as_deref(), Some("CrashLoopBackOff"));
    assert_eq!(status.last_state.unwrap().terminated.unwrap().exit_code, 1);
    assert_eq!(status.restart_count, i32::try_from(waits.len()).unwrap());
}

async fn ends_as_soon_as_it_starts(with_events: bool) {
    let node = Setup::new(with_events).start();
    node.runtime.script("main", Script::ends(0.0, 3));
    node.deliver(&[]).await;
    node.deliver(&[pod("a").policy("Never"), pod("b")]).await;
    node.wait(1.5).await;
    assert_eq!(node.phase("a"), "Failed");
    // The other container was restarted once at once and is in its backoff now.
    assert_eq!(node.runtime.times_of("start main").len(), 3);
}

#[actix::test]
async fn container_exit_right_after_its_start_is_observed_by_event() {
    ends_as_soon_as_it_starts(true).await;
}

// KF33
#[actix::test]
async fn container_exit_right_after_its_start_is_observed_by_relist() {
    ends_as_soon_as_it_starts(false).await;
}

#[actix::test]
async fn pod_past_its_active_deadline_fails_and_its_containers_stop() {
    let node = TestNode::start().await;
    // The deadline is between two housekeeping passes, so only the worker can notice it.
    node.deliver(&[pod("a").spec("activeDeadlineSeconds", 19)]).await;
    node.until(18.5).await;
    assert_eq!(node.phase("a"), "Running");
    node.until(19.1).await;
    assert_eq!((node.phase("a"), node.reason("a")), ("Failed".into(), "DeadlineExceeded".into()));
    assert_eq!(node.runtime.running("a"), [""; 0]);
    assert_eq!(node.events.count("a", "DeadlineExceeded"), 1);
    node.until(23.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    assert_eq!(node.runtime.times_of("start main").len(), 1);
}

// A backoff that ends after the deadline does not delay it (POD-S54).
#[actix::test]
async fn pod_in_crash_backoff_fails_at_its_active_deadline() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::ends(1.0, 1));
    node.deliver(&[pod("a").spec("activeDeadlineSeconds", 150)]).await;
    node.until(149.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Sync));
    node.until(153.0).await;
    assert_eq!((node.phase("a"), node.reason("a")), ("Failed".into(), "DeadlineExceeded".into()));
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
}

// Scenario POD-S54.
#[actix::test]
async fn healthy_pod_is_synced_again_after_the_resync_interval() {
    let setup = Setup::new(true);
    let storage = setup.storage.clone();
    let node = setup.start();
    node.deliver(&[]).await;
    node.deliver(&[pod("a")]).await;
    node.wait(5.0).await;
    storage.missing(true);
    node.until(55.0).await;
    assert!(!node.events.has("a", "FailedMount"));
    node.until(95.0).await;
    assert!(node.events.has("a", "FailedMount"));
}

// Scenario POD-S102.
#[actix::test]
async fn hook_panic_is_an_error_of_that_pod_only() {
    let node = TestNode::start().await;
    node.runtime.panic_in(Op::Create);
    node.deliver(&[pod("a")]).await;
    node.runtime.heal();
    node.deliver(&[pod("a"), pod("b")]).await;
    assert_eq!(node.runtime.running("b"), ["main"]);
    assert_eq!((node.lifecycle("a"), node.runtime.running("a")), (Some(Lifecycle::Sync), vec![]));
    assert!(node.metric("podwright_hook_panics_total") >= 1.0);
    node.wait(15.1).await;
    assert_eq!(node.runtime.running("a"), ["main"]);
    assert_eq!(node.phase("a"), "Running");
}

#[actix::test]
async fn container_start_failure_is_reported_and_retried() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script { fails_to_start: true, ..Script::default() });
    node.deliver(&[pod("a").containers(&["main", "other"])]).await;
    node.wait(1.0).await;
    assert_eq!(node.runtime.running("a"), ["other"]);
    let state = node.status("a").container_statuses.unwrap()[0].state.clone().unwrap();
    assert_eq!(state.waiting.unwrap().reason.as_deref(), Some("RunContainerError"));
    node.wait(30.0).await;
    let tries = node.runtime.times_of("start main").len();
    assert!((2..10).contains(&tries), "{tries} tries");
}

#[actix::test]
async fn exited_containers_are_removed_except_the_newest() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::ends(1.0, 1));
    node.deliver(&[pod("a")]).await;
    node.wait(200.0).await;
    let runs = node.runtime.inspect(&"a".into()).containers;
    assert!(runs.len() <= 2, "{runs:?}");
    assert_eq!(runs[0].restart_count as usize, node.runtime.times_of("start main").len() - 1);
}
