use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Value, json};

use crate::status::fixtures::*;
use crate::status::{merge_for_api, terminate_pod};

fn status(json: Value) -> PodStatus {
    serde_json::from_value(json).unwrap()
}

// POD-S78
#[test]
fn a_terminal_phase_is_held_back_until_no_container_can_run() {
    let pod = pod(json!({}));
    let api = status(json!({"phase": "Running", "reason": "old", "conditions": [{"type": "Ready", "status": "True"}]}));
    let new = || {
        status(json!({"phase": "Failed", "reason": "Evicted", "message": "m", "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "ContainersReady", "status": "True"},
            {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]}))
    };
    let held = merge_for_api(&pod, &api, new(), true, at(9));
    assert_eq!((phase_of(&held), held.reason.as_deref(), held.message.as_deref()), ("Running", Some("old"), None));
    assert_eq!(condition(&held, "DisruptionTarget"), "-");
    assert_eq!(condition(&held, "Ready"), "True");

    let sent = merge_for_api(&pod, &api, new(), false, at(9));
    assert_eq!((phase_of(&sent), sent.reason.as_deref()), ("Failed", Some("Evicted")));
    assert_eq!(condition(&sent, "Ready"), "False PodFailed");
    assert_eq!(condition(&sent, "ContainersReady"), "False PodFailed");
    assert_eq!(condition(&sent, "DisruptionTarget"), "True TerminationByKubelet");
}

#[test]
fn a_terminal_phase_that_somebody_else_wrote_is_never_left() {
    let pod = pod(json!({}));
    let api = status(json!({"phase": "Failed", "reason": "Lost", "message": "by another", "conditions": []}));
    for phase in ["Pending", "Running", "Succeeded"] {
        let new = status(json!({"phase": phase, "reason": "own", "conditions": [{"type": "Ready", "status": "True"}]}));
        for held_back in [true, false] {
            let merged = merge_for_api(&pod, &api, new.clone(), held_back, at(9));
            let texts = (merged.reason.as_deref(), merged.message.as_deref());
            assert_eq!((phase_of(&merged), texts), ("Failed", (Some("Lost"), Some("by another"))), "{phase}");
            assert_eq!(condition(&merged, "Ready"), "False PodFailed");
        }
    }
    let own = status(json!({"phase": "Failed", "reason": "Evicted", "conditions": []}));
    assert_eq!(merge_for_api(&pod, &api, own, false, at(9)).reason.as_deref(), Some("Evicted"));
}

#[test]
fn mirror_pod_of_a_static_pod_that_runs_again_is_no_longer_failed() {
    let pod = pod(json!({"metadata": {"annotations": {"kubernetes.io/config.source": "file"}}}));
    assert!(pod.is_static());
    let ready = |status: &str| json!([{"type": "Ready", "status": status}]);
    let mirror = status(json!({"phase": "Failed", "reason": "Terminated", "conditions": ready("False")}));
    let merged =
        merge_for_api(&pod, &mirror, status(json!({"phase": "Running", "conditions": ready("True")})), true, at(9));
    assert_eq!((phase_of(&merged), merged.reason.as_deref(), &*condition(&merged, "Ready")), ("Running", None, "True"));
}

// POD-S79
#[test]
fn merging_replaces_only_the_nodes_conditions() {
    let pod = pod(json!({}));
    let api = status(json!({
        "phase": "Running",
        "nominatedNodeName": "n",
        "resourceClaimStatuses": [{"name": "c", "resourceClaimName": "p-c"}],
        "conditions": [
            {"type": "example.com/gate", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "Old"},
            {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
    }));
    let new = status(json!({"phase": "Running", "conditions": [
        {"type": "Ready", "status": "True"},
        {"type": "example.com/gate", "status": "False"}]}));
    let merged = merge_for_api(&pod, &api, new, false, at(9));
    assert_eq!(condition(&merged, "example.com/gate"), "True");
    assert_eq!(condition(&merged, "Ready"), "True");
    assert_eq!(condition(&merged, "DisruptionTarget"), "True EvictionByEvictionAPI");
    assert_eq!(merged.conditions.as_ref().unwrap().len(), 3);
    assert_eq!(merged.resource_claim_statuses, api.resource_claim_statuses);
    assert_eq!(merged.nominated_node_name, api.nominated_node_name);
}

#[test]
fn condition_has_the_time_of_its_change_and_not_of_the_write() {
    let pod = pod(json!({}));
    let ready = |value: &str, since: u64| {
        let time = at(since).to_timestamp().to_string();
        status(
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": value, "lastTransitionTime": time}]}),
        )
    };
    let merged =
        |api: &PodStatus, new: PodStatus| merge_for_api(&pod, api, new, false, at(90)).conditions.unwrap()[0].clone();
    let time = |seconds: u64| Some(at(seconds).to_api());
    assert_eq!(merged(&ready("False", 1), ready("True", 7)).last_transition_time, time(7));
    assert_eq!(merged(&ready("True", 1), ready("True", 7)).last_transition_time, time(1), "the status is the same");
    let without_time = status(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}));
    assert_eq!(merged(&ready("False", 1), without_time).last_transition_time, time(90));
}

#[test]
fn a_terminal_pod_that_was_not_ready_keeps_its_reasons() {
    let pod = pod(json!({}));
    let new = status(json!({"phase": "Failed", "conditions": [
        {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
        {"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady"}]}));
    let merged = merge_for_api(&pod, &status(json!({"phase": "Pending"})), new, false, at(9));
    assert_eq!(condition(&merged, "Ready"), "False ContainersNotReady");
}

const WAITS: &str = r#"{"waiting": {"reason": "PodInitializing"}}"#;
const RUNS: &str = r#"{"running": {}}"#;
const DONE: &str = r#"{"terminated": {"exitCode": 0, "reason": "Completed"}}"#;

/// Ends a pod with the given states; `1` means an unseen kill, `w` for waiting, `0` for an end with code 0.
fn ended(policy: &str, inits: &[&str], regulars: &[&str]) -> (String, String) {
    let list = |prefix: &str, states: &[&str]| -> (Value, Value) {
        let name = |n| format!("{prefix}{n}");
        let specs = (0..states.len()).map(|n| json!({"name": name(n), "restartPolicy": policy})).collect();
        let statuses = states.iter().enumerate().map(|(n, state)| {
            let state: Value = serde_json::from_str(state).unwrap();
            json!({"name": name(n), "image": "", "imageID": "", "restartCount": 0,
                "ready": state.get("running").is_some(), "started": state.get("running").is_some(), "state": state})
        });
        (specs, statuses.collect())
    };
    let (init_specs, init_statuses) = list("i", inits);
    let (specs, statuses) = list("c", regulars);
    let pod = pod_with("Always", init_specs, specs);
    let mut status =
        status(json!({"phase": "Pending", "initContainerStatuses": init_statuses, "containerStatuses": statuses}));
    terminate_pod(&pod, &mut status);
    assert_eq!(phase_of(&status), "Failed");
    let letters = |prefix: &str, count: usize| -> String {
        (0..count)
            .map(|n| {
                let name = format!("{prefix}{n}");
                let have = container(&status, &name);
                match have.state.as_ref().unwrap().terminated.as_ref() {
                    None => 'w',
                    Some(end) if end.exit_code == 137 => {
                        assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
                        assert_eq!((have.ready, have.started), (false, Some(false)));
                        '1'
                    }
                    Some(_) => '0',
                }
            })
            .collect()
    };
    (letters("i", inits.len()), letters("c", regulars.len()))
}

// POD-S84, POD-S85
#[test]
fn containers_that_may_have_run_count_as_killed() {
    for (inits, regulars, init_ends, regular_ends) in [
        (&[WAITS][..], &[WAITS][..], "1", "w"),
        (&[WAITS, WAITS], &[WAITS], "1w", "w"),
        (&[DONE, RUNS, WAITS], &[WAITS], "01w", "w"),
        (&[DONE], &[WAITS, WAITS], "0", "11"),
        (&[WAITS], &[RUNS], "1", "1"),
        (&[], &[WAITS, DONE], "", "10"),
    ] {
        assert_eq!(ended("", inits, regulars), (init_ends.into(), regular_ends.into()), "{inits:?} {regulars:?}");
    }
    assert_eq!(ended("Always", &[RUNS], &[WAITS]), ("1".into(), "1".into()), "a sidecar that started ends the start");
    assert_eq!(ended("", &[RUNS], &[WAITS]), ("1".into(), "w".into()));
}

// POD-S85
#[test]
fn only_static_pods_may_end_without_a_terminal_phase() {
    for (phase, of_pod, of_static) in [
        ("Pending", "Failed", "Pending"),
        ("Running", "Failed", "Running"),
        ("Unknown", "Failed", "Unknown"),
        ("Succeeded", "Succeeded", "Succeeded"),
        ("Failed", "Failed", "Failed"),
    ] {
        let file = json!({"metadata": {"annotations": {"kubernetes.io/config.source": "file"}}});
        for (pod, expected) in [(pod(json!({})), of_pod), (pod(file), of_static)] {
            let mut status = status(json!({"phase": phase}));
            terminate_pod(&pod, &mut status);
            assert_eq!(phase_of(&status), expected);
        }
    }
}

// POD-S87: a pod that is deleted while its image cannot be had.
#[test]
fn a_pod_that_never_started_fails() {
    let deleting = World::new(pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})))
        .error("a", "ErrImagePull")
        .terminal();
    let mut status = deleting.status();
    assert_eq!(line(&status, "a"), "a w:ContainerCreating - ready=no started=no 0");
    assert_eq!(phase_of(&status), "Pending");
    terminate_pod(&deleting.pod, &mut status);
    assert_eq!(line(&status, "a"), "a t:ContainerStatusUnknown:137 - ready=no started=no 0");
    assert_eq!(phase_of(&status), "Failed");
}
