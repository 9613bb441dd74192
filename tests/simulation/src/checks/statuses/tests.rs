//! Each law reports a write that is broken in one field.

use serde_json::json;

use super::*;

fn status() -> Value {
    json!({
        "phase": "Running", "reason": "R", "message": "m", "observedGeneration": 2,
        "startTime": "2027-01-01T00:00:00Z", "qosClass": "Burstable",
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}, "allocatedResources": {"cpu": "1"},
        "hostIP": "192.0.2.1", "hostIPs": [{"ip": "192.0.2.1"}], "podIP": "10.0.0.2",
        "podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}],
        "initContainerStatuses": [{
            "name": "i", "image": "img", "imageID": "img", "ready": true, "restartCount": 0, "started": false,
            "state": {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2027-01-01T00:00:01Z"}},
        }],
        "containerStatuses": [
            {
                "name": "a", "image": "img", "imageID": "img", "ready": true, "restartCount": 2, "started": true,
                "containerID": "simulated://3", "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}},
                "state": {"running": {"startedAt": "2027-01-01T00:00:09Z"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "containerID": "simulated://2"}},
            },
            {
                "name": "b", "image": "img", "imageID": "", "ready": false, "restartCount": 0, "started": false,
                "state": {"waiting": {"reason": "PodInitializing"}},
            },
        ],
        "conditions": [
            {"type": "example.com/gate", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "m", "observedGeneration": 2,
                "lastTransitionTime": "2027-01-01T00:00:05Z"},
            {"type": "PodScheduled", "status": "True", "observedGeneration": 2},
        ],
    })
}

fn typed(status: Value) -> PodStatus {
    serde_json::from_value(status).unwrap()
}

/// The verdict about a write that is broken.
fn after(edit: impl FnOnce(&mut Value)) -> CheckResult {
    let mut written = status();
    edit(&mut written);
    is_written(&typed(status()), Some(&typed(written)))
}

/// The verdict about a write with another value at a place.
fn broken(place: &str, value: Value) -> CheckResult {
    after(|status| *status.pointer_mut(place).expect(place) = value)
}

/// Each broken write is reported with the field that it breaks.
fn are_reported(field: &str, writes: &[(&str, Value)]) {
    for (place, value) in writes {
        let what = broken(place, value.clone()).expect_err(place);
        assert!(what.starts_with(&format!("its {field} is ")), "{place}: {what}");
    }
}

#[test]
fn a_status_that_is_written_agrees() {
    assert_eq!(after(|_| {}), Ok(()));
    let empty = json!({"lastState": {}, "state": {"waiting": {"reason": "PodInitializing", "message": null}}});
    let other_form = after(|status| {
        let containers = status["containerStatuses"].as_array_mut().unwrap();
        containers[1].as_object_mut().unwrap().extend(empty.as_object().unwrap().clone());
        containers.reverse();
        status["ephemeralContainerStatuses"] = json!([]);
    });
    assert_eq!(other_form, Ok(()));
    assert!(is_written(&typed(status()), None).is_err(), "the pod has no status");
}

#[test]
fn another_phase_is_reported() {
    are_reported("phase", &[("/phase", json!("Pending")), ("/phase", Value::Null)]);
}

#[test]
fn another_reason_is_reported() {
    are_reported("reason", &[("/reason", json!("Evicted")), ("/reason", Value::Null)]);
    are_reported("message", &[("/message", json!("other"))]);
}

#[test]
fn another_condition_is_reported() {
    are_reported(
        "Ready",
        &[
            ("/conditions/1/status", json!("True")),
            ("/conditions/1/reason", json!("PodFailed")),
            ("/conditions/1/message", Value::Null),
            ("/conditions/1/observedGeneration", json!(1)),
            ("/conditions/1/type", json!("other")),
        ],
    );
    are_reported("PodScheduled", &[("/conditions/2/status", json!("False"))]);
    are_reported("PodResizePending", &[("/conditions/0/type", json!("PodResizePending"))]);
    let others = after(|status| {
        status["conditions"][0]["status"] = json!("False");
        status["conditions"][1]["lastTransitionTime"] = json!("2027-01-01T00:00:04Z");
        status["conditions"].as_array_mut().unwrap().reverse();
    });
    assert_eq!(others, Ok(()), "conditions of other programs, times and the order do not count");
}

#[test]
fn a_pod_that_has_ended_is_not_ready_in_the_api_server() {
    let ready = |phase: &str, ready: &str| {
        let condition = json!({"type": "Ready", "status": ready, "reason": "other"});
        typed(json!({"phase": phase, "conditions": [condition]}))
    };
    // The status function of a kill has set the phase.
    assert!(is_written(&ready("Failed", "True"), Some(&ready("Failed", "True"))).is_err());
    assert_eq!(is_written(&ready("Running", "True"), Some(&ready("Running", "True"))), Ok(()));
    let corrected = json!({"phase": "Failed", "conditions": [
        {"type": "Ready", "status": "False", "reason": "PodFailed"},
        {"type": "ContainersReady", "status": "False", "reason": "PodFailed"}]});
    assert_eq!(is_written(&ready("Failed", "True"), Some(&typed(corrected))), Ok(()));
}

#[test]
fn another_generation_is_reported() {
    are_reported("observedGeneration", &[("/observedGeneration", json!(1)), ("/observedGeneration", Value::Null)]);
}

#[test]
fn other_addresses_are_reported() {
    are_reported("hostIP", &[("/hostIP", json!("192.0.2.2"))]);
    are_reported("hostIPs", &[("/hostIPs/0/ip", json!("192.0.2.2")), ("/hostIPs", Value::Null)]);
    are_reported("podIP", &[("/podIP", json!("10.0.0.3")), ("/podIP", Value::Null)]);
    let added = json!([{"ip": "10.0.0.2"}, {"ip": "fd00::2"}, {"ip": "10.0.0.3"}]);
    are_reported("podIPs", &[("/podIPs/1/ip", json!("10.0.0.3")), ("/podIPs", added)]);
}

#[test]
fn another_start_is_reported() {
    are_reported("startTime", &[("/startTime", json!("2027-01-01T00:00:01Z")), ("/startTime", Value::Null)]);
    are_reported("qosClass", &[("/qosClass", json!("BestEffort"))]);
}

#[test]
fn other_resources_are_reported() {
    are_reported("resources", &[("/resources/limits/cpu", json!("3")), ("/resources", Value::Null)]);
    are_reported("allocatedResources", &[("/allocatedResources/cpu", json!("2"))]);
}

#[test]
fn another_container_status_is_reported() {
    are_reported(
        "containerStatuses",
        &[
            ("/containerStatuses/0/state", json!({"waiting": {"reason": "CrashLoopBackOff"}})),
            ("/containerStatuses/0/state/running/startedAt", json!("2027-01-01T00:00:10Z")),
            ("/containerStatuses/0/lastState/terminated/exitCode", json!(2)),
            ("/containerStatuses/0/lastState/terminated/reason", json!("OOMKilled")),
            ("/containerStatuses/0/lastState", Value::Null),
            ("/containerStatuses/0/ready", json!(false)),
            ("/containerStatuses/0/started", json!(false)),
            ("/containerStatuses/0/restartCount", json!(1)),
            ("/containerStatuses/0/containerID", json!("simulated://2")),
            ("/containerStatuses/0/allocatedResources/cpu", json!("2")),
            ("/containerStatuses/0/resources/requests/cpu", json!("2")),
            ("/containerStatuses/1/state/waiting/reason", json!("ContainerCreating")),
            ("/containerStatuses/1/name", json!("c")),
        ],
    );
    are_reported("initContainerStatuses", &[("/initContainerStatuses/0/state/terminated/exitCode", json!(3))]);
    let lost = after(|status| drop(status["containerStatuses"].as_array_mut().unwrap().pop()));
    assert!(lost.is_err(), "a container has no status");
}
