//! Explanations of pods that wait for two causes, one after the other or both at once.

use std::time::Duration;

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::Script;

use super::reading::{Retry, assert_text, retry, waits};
use crate::support::test_node::TestNode;

// The hook waits and runs in turn, so consecutive checks see different waits.
#[actix::test]
async fn slow_failing_hook_publishes_one_long_wait_event() {
    let node = TestNode::start().await;
    node.storage.missing(true);
    node.storage.slow(Duration::from_secs(35));
    node.deliver(&[pod("a")]).await;
    node.until(320.0).await;
    assert_eq!(node.events.of("LongWait"), []);
    node.until(3000.0).await;
    let events = node.events.of("LongWait");
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].message.contains("no such directory"), "{}", events[0].message);
}

// KF12, KF21
#[actix::test]
async fn failing_cleanup_of_an_orphan_publishes_one_long_wait_event() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a").grace(2)]).await;
    node.until(5.0).await;
    node.storage.stuck(true);
    node.deliver(&[]).await;
    node.until(10.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Terminated));
    let failed = node.events.of("FailedCleanup");
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].message, r#"error cleaning up: volume "data": it is busy"#);
    node.until(600.0).await;
    let events = node.events.of("LongWait");
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].message.ends_with(r#" (volume "data" cannot be taken down: it is busy)"#), "{events:?}");

    // When the runtime is unreachable too, the runtime is the cause and not the volume.
    node.runtime.unreachable();
    node.until(700.0).await;
    let Retry { failing, left, next } = retry(&node, "a");
    let tries = failing.rsplit(", ").next().unwrap();
    let explanation = waits(&node, "a");
    assert!(explanation.contains(&format!("waits for its cleanup to succeed, next try in {left}")), "{explanation}");
    assert!(
        explanation.contains("cleaning up after it failed, because the container runtime does not answer"),
        "{explanation}"
    );
    assert!(
        explanation.contains(&format!("{tries}, {next}")) && explanation.contains("does not answer"),
        "{explanation}"
    );
    assert!(!explanation.contains("data"), "{explanation}");
}

#[actix::test]
async fn explain_shows_runtime_outage_before_crash_backoff() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::ends(1.0, 3));
    node.deliver(&[pod("a")]).await;
    node.until(30.0).await;
    assert!(waits(&node, "a").contains("waits for the crash backoff"), "{}", waits(&node, "a"));
    node.runtime.unreachable();
    node.until(100.0).await;
    let Retry { failing, left, next } = retry(&node, "a");
    let explanation = waits(&node, "a");
    let (own, later) = explanation.split_once("  container \"main\"").unwrap();
    assert_text(
        own,
        &[
            &format!("test/a: CrashLoopBackOff, waits for its setup to succeed, next try in {left}"),
            "  setting it up failed, because the container runtime does not answer",
            &format!("    {failing}, {next}"),
            "    released by: the next try succeeds, or an update arrives",
            "    cause: the container runtime does not answer: runtime unreachable: nobody listens",
            "      for 70s (since 08:00:30Z), 70 tries",
            "      released by: the runtime answers again; it is called every second",
        ],
    );
    assert!(later.starts_with(" waits out its crash backoff"), "{later}");
}

#[actix::test]
async fn explain_does_not_blame_a_volume_that_exists_again() {
    let node = TestNode::start().await;
    node.storage.missing(true);
    node.deliver(&[pod("a")]).await;
    node.until(5.0).await;
    assert!(waits(&node, "a").contains("waits for volume data"), "{}", waits(&node, "a"));
    node.storage.missing(false);
    node.runtime.unreachable();
    node.until(30.0).await;
    let explanation = waits(&node, "a");
    let failed = "setting it up failed, because the container runtime does not answer";
    assert!(explanation.contains(failed), "{explanation}");
    assert!(
        explanation.contains("the container runtime does not answer") && !explanation.contains("data"),
        "{explanation}"
    );
}
