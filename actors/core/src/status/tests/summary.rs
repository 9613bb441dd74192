use std::time::Duration;

use serde_json::json;

use crate::status::fixtures::*;
use crate::status::{PodSummary, short_age};

fn columns(world: &World) -> (String, String) {
    let summary = PodSummary::new(&world.pod, &world.status(), at(63));
    (summary.state.clone(), summary.ready_column())
}

#[test]
fn the_state_column_shows_why_a_pod_waits() {
    let plain = || World::new(pod(json!({})));
    let never = || World::new(pod(json!({"spec": {"restartPolicy": "Never"}})));
    let init = || World::new(pod_with("Always", json!([{"name": "i"}, {"name": "j"}]), json!([{"name": "a"}])));
    let sidecar =
        || World::new(pod_with("Never", json!([{"name": "s", "restartPolicy": "Always"}]), json!([{"name": "a"}])));
    let two = || World::new(pod_with("Never", json!([]), json!([{"name": "a"}, {"name": "b"}])));
    let deleting = || World::new(pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})));
    for (world, state, ready) in [
        (plain(), "ContainerCreating", "0/1"),
        (plain().runs([running("a", 0)]), "Running", "1/1"),
        (plain().runs([exited("a", 0, 1)]), "Error", "0/1"),
        (plain().runs([exited("a", 0, 1)]).error("a", "CrashLoopBackOff"), "CrashLoopBackOff", "0/1"),
        (plain().error("a", "ErrImagePull"), "ErrImagePull", "0/1"),
        (never().runs([exited("a", 0, 0)]), "Completed", "0/1"),
        (init(), "Init:0/2", "0/1"),
        (init().runs([exited("i", 0, 0)]), "Init:1/2", "0/1"),
        (init().runs([exited("i", 0, 1)]), "Init:Error", "0/1"),
        (init().runs([stopped_for_resize("i", 0)]), "Init:StoppedForResize", "0/1"),
        (init().runs([exited("i", 0, 1)]).error("i", "CrashLoopBackOff"), "Init:CrashLoopBackOff", "0/1"),
        (init().runs([exited("i", 0, 0), exited("j", 0, 0)]), "PodInitializing", "0/1"),
        (init().runs([exited("i", 0, 0), exited("j", 0, 0), running("a", 0)]), "Running", "1/1"),
        (sidecar(), "Init:0/1", "0/2"),
        (sidecar().runs([running("s", 0), running("a", 0)]), "Running", "2/2"),
        (two().runs([running("a", 0), exited("b", 0, 0)]), "NotReady", "1/2"),
        (deleting().runs([running("a", 0)]), "Terminating", "1/1"),
        (deleting().runs([exited("a", 0, 0)]).terminal(), "Completed", "0/1"),
    ] {
        assert_eq!(columns(&world), (state.to_owned(), ready.to_owned()));
    }
}

#[test]
fn the_state_column_shows_the_pods_reason_without_a_container_reason() {
    let pod = pod(json!({"status": {"phase": "Failed", "reason": "OutOfcpu"}}));
    let summary = PodSummary::new(&pod, pod.status().unwrap(), at(0));
    assert_eq!(
        (summary.state.as_str(), summary.restarts_column(), summary.age_column()),
        ("OutOfcpu", "0".into(), "<unknown>".into())
    );
}

#[test]
fn the_restarts_column_shows_the_age_of_the_last_restart() {
    let world = World::new(pod(json!({"metadata": {"creationTimestamp": at(0).to_api()}})));
    let world = world.runs([running("a", 3), exited("a", 2, 1)]);
    let summary = PodSummary::new(&world.pod, &world.status(), at(63));
    assert_eq!(summary.restarts_column(), "3 (40s ago)");
    assert_eq!(summary.age_column(), "63s");
}

#[test]
fn a_static_pod_that_an_earlier_agent_started_keeps_its_age() {
    let seen = at(60).to_timestamp().to_string();
    let world = World::new(pod(json!({"metadata": {"annotations": {"kubernetes.io/config.seen": seen}}})));
    let world = world.runs([running("a", 0)]);
    assert_eq!(PodSummary::new(&world.pod, &world.status(), at(63)).age_column(), "63s");
}

#[test]
fn ages_are_short() {
    for (seconds, text) in [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (320, "5m20s"),
        (11 * 60 + 5, "11m"),
        (3 * 3600, "3h"),
        (4 * 3600 + 180, "4h3m"),
        (9 * 3600 + 180, "9h"),
        (50 * 3600, "2d2h"),
        (9 * 86_400, "9d"),
        (800 * 86_400, "2y70d"),
        (4000 * 86_400, "10y"),
    ] {
        assert_eq!(short_age(Duration::from_secs(seconds)), text);
    }
}
