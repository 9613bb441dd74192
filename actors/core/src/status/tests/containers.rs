use serde_json::json;

use crate::ports::{ContainerState, ContainerStatus};
use crate::probes::{ContainerProbes, ProbeResult};
use crate::status::fixtures::*;

fn one() -> World {
    World::new(pod(json!({})))
}

// POD-S77
#[test]
fn a_container_that_vanished_counts_as_killed() {
    let before = one().runs([running("a", 0)]).status();
    let after = one().after(before.clone()).status();
    assert_eq!(line(&after, "a"), "a w:ContainerCreating t:ContainerStatusUnknown:137 ready=no started=no 1");

    let mut deleting = World::new(pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})));
    deleting.previous = Some(before);
    let after = deleting.status();
    assert_eq!(line(&after, "a"), "a w:ContainerCreating t:ContainerStatusUnknown:137 ready=no started=no 0");
}

#[test]
fn a_container_in_an_unknown_state_is_killed_if_it_ran() {
    let unknown = run("a", 0, ContainerState::Unknown);
    assert_eq!(
        line(&one().runs([unknown.clone()]).status(), "a"),
        "a w:ContainerCreating - ready=no started=no 0",
        "it may not have run"
    );
    let before = one().runs([running("a", 0)]).status();
    let after = one().runs([unknown]).after(before).status();
    assert_eq!(line(&after, "a"), "a t:ContainerStatusUnknown:137 - ready=no started=no 1");
}

#[test]
fn the_exit_of_a_removed_container_stays_in_the_status() {
    let never = || World::new(pod(json!({"spec": {"restartPolicy": "Never"}})));
    let before = never().runs([exited("a", 0, 3)]).status();
    assert_eq!(container(&never().after(before.clone()).status(), "a"), container(&before, "a"));
    // The run before the current one was removed, and its exit is still reported.
    let again = one().runs([running("a", 1)]).after(before).status();
    assert_eq!(line(&again, "a"), "a r t:Error:3 ready=yes started=yes 1");
}

#[test]
fn start_errors_are_shown_only_while_a_container_should_start() {
    let crashed = || one().runs([exited("a", 1, 1), exited("a", 0, 2)]).error("a", "CrashLoopBackOff");
    assert_eq!(line(&crashed().status(), "a"), "a w:CrashLoopBackOff t:Error:1 ready=no started=no 1");
    let mut stopping = crashed();
    stopping.termination_requested = true;
    assert_eq!(line(&stopping.status(), "a"), "a t:Error:1 t:Error:2 ready=no started=no 1");
    let never = World::new(pod(json!({"spec": {"restartPolicy": "Never"}})));
    let never = never.runs([exited("a", 0, 128)]).error("a", "StartError");
    assert_eq!(line(&never.status(), "a"), "a t:Error:128 - ready=no started=no 0");
    assert_eq!(
        line(&one().error("a", "ErrImagePull").status(), "a"),
        "a w:ErrImagePull - ready=no started=no 0",
        "a first start waits too"
    );
}

#[test]
fn removed_init_containers_count_as_completed() {
    let world = World::new(pod_with(
        "Always",
        json!([{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]),
        json!([{"name": "a"}]),
    ));
    let status = world.runs([running("a", 0)]).status();
    assert_eq!(line(&status, "i"), "i t:Completed:0 - ready=yes started=no 0");
    assert_eq!(line(&status, "s"), "s w:PodInitializing - ready=no started=no 0");
}

#[test]
fn probe_results_set_started_and_ready() {
    use ProbeResult::{Failure, Success, Unknown};
    let probe = json!({"exec": {"command": ["x"]}});
    let pod = pod(json!({"spec": {"containers": [
        {"name": "a", "startupProbe": probe, "readinessProbe": probe, "livenessProbe": probe}]}}));
    for (startup, readiness, started, ready) in [
        (None, None, false, false),
        (Some(Unknown), Some(Success), false, false),
        (Some(Failure), Some(Success), false, false),
        (Some(Success), None, true, false),
        (Some(Success), Some(Failure), true, false),
        (Some(Success), Some(Success), true, true),
    ] {
        let mut world = World::new(pod.clone()).runs([running("a", 0)]);
        world.probes.insert("a-0".into(), ContainerProbes { startup, readiness, liveness: Some(Success) });
        let status = world.status();
        let a = container(&status, "a");
        assert_eq!((a.started, a.ready), (Some(started), ready), "{startup:?} {readiness:?}");
    }
}

#[test]
fn an_agent_that_restarts_keeps_a_container_ready_until_a_probe_answers() {
    let probe = json!({"exec": {"command": ["x"]}});
    let world = || World::new(pod(json!({"spec": {"containers": [{"name": "a", "readinessProbe": probe}]}})));
    let ready = world().runs([running("a", 0)]).readiness("a-0", ProbeResult::Success).status();
    assert!(container(&ready, "a").ready);
    assert!(container(&world().runs([running("a", 0)]).after(ready.clone()).status(), "a").ready);
    let answered = world().runs([running("a", 0)]).readiness("a-0", ProbeResult::Failure).after(ready.clone());
    assert!(!container(&answered.status(), "a").ready);
    let other_run = world().runs([running("a", 1), exited("a", 0, 1)]).after(ready);
    assert!(!container(&other_run.status(), "a").ready, "kept values do not apply to another run");
}

#[test]
fn the_container_status_has_id_image_and_resources_of_its_run() {
    let pod = pod(json!({"spec": {"containers": [
        {"name": "a", "image": "img", "resources": {"requests": {"cpu": "100m"}}}]}}));
    let waiting = World::new(pod.clone()).status();
    assert_eq!(container(&waiting, "a").image, "img");
    assert_eq!((container(&waiting, "a").container_id.as_ref(), &*container(&waiting, "a").image_id), (None, ""));

    let status = World::new(pod).runs([running("a", 0)]).status();
    let a = container(&status, "a");
    assert_eq!(a.container_id.as_deref(), Some("rt://a-0"));
    assert_eq!((&*a.image, &*a.image_id), ("img:resolved", "sha256:1"));
    assert_eq!(a.allocated_resources.as_ref().unwrap()["cpu"].0, "100m");
    assert_eq!(status.allocated_resources.as_ref().unwrap()["cpu"].0, "100m");
}

#[test]
fn the_terminated_state_has_signal_message_and_times() {
    let killed =
        ContainerStatus { signal: Some(9), message: "oom".into(), reason: "OOMKilled".into(), ..exited("a", 0, 137) };
    let status = one().runs([killed]).status();
    let end = container(&status, "a").state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((end.signal, end.message.as_deref(), end.reason.as_deref()), (Some(9), Some("oom"), Some("OOMKilled")));
    assert_eq!(end.container_id.as_deref(), Some("rt://a-0"));
    assert_eq!(end.finished_at, Some(at(3).to_api()));
}

#[test]
fn ephemeral_containers_have_no_readiness_and_never_start_again() {
    let pod = pod(json!({"spec": {"ephemeralContainers": [{"name": "e"}]}}));
    let status = World::new(pod).runs([running("a", 0), exited("e", 0, 1)]).error("e", "CrashLoopBackOff").status();
    let e = container(&status, "e");
    assert_eq!((e.started, e.ready), (None, false));
    assert_eq!(line(&status, "e"), "e t:Error:1 - ready=no started=no 0");
    assert_eq!(phase_of(&status), "Running");
}

#[test]
fn all_containers_restart_together() {
    let pod = pod_with(
        "Never",
        json!([{"name": "i"}]),
        json!([{"name": "a"}, {"name": "b", "restartPolicyRules": [
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]}]),
    );
    let world = || World::new(pod.clone());
    let steps = [
        (vec![running("a", 0), running("b", 0), exited("i", 0, 0)], "False", "Running"),
        (vec![running("a", 0), exited("b", 0, 42), exited("i", 0, 0)], "True RestartAllContainersStarted", "Running"),
        (
            vec![exited("a", 0, 137), exited("b", 0, 42), exited("i", 0, 0)],
            "True RestartAllContainersStarted",
            "Running",
        ),
        (vec![exited("b", 0, 42)], "True RestartAllContainersStarted", "Pending"),
        (vec![], "False", "Pending"),
        (vec![running("i", 0)], "False", "Pending"),
        (vec![running("a", 0), running("b", 0), exited("i", 0, 0)], "False", "Running"),
    ];
    let mut cache = crate::status::StatusCache::default();
    let mut last = None;
    for (index, (runs, restarting, phase)) in steps.into_iter().enumerate() {
        let mut world = world().runs(runs);
        world.previous = last;
        let status = world.status();
        assert_eq!(condition(&status, "AllContainersRestarting"), restarting, "step {index}");
        assert_eq!(phase_of(&status), phase, "step {index}");
        let outcome = cache.set(&pod, None, status, false, at(index as u64));
        assert!(!matches!(outcome, crate::status::SetOutcome::Refused(_)), "step {index}: {outcome:?}");
        last = cache.get(pod.uid()).map(|status| (*status).clone());
    }
    let last = last.unwrap();
    assert_eq!(line(&last, "a"), "a r t:RestartingAllContainers:137 ready=yes started=yes 1");
    assert_eq!(line(&last, "b"), "b r t:RestartingAllContainers:137 ready=yes started=yes 1");
}
