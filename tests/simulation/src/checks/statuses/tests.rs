//! Each law reports a write that is broken in one field.

use serde_json::json;

use super::*;

fn status() -> Value {
    json!({
        "phase": "Running", "reason": "R", "message": "m",
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
