//! Laws of one write of a status to the API server.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as ApiTime;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;

use super::CheckResult;
use super::statuses::{OWN_CONDITIONS, READINESS};
use crate::clock::SimClock;

/// No time in a status is later than the clock of the node was, and no container ends before it starts, unless the clock was set back
/// meanwhile.
pub(crate) fn times_have_passed(pod: &PodObject, clock: &SimClock) -> CheckResult {
    let Some(status) = pod.status() else { return Ok(()) };
    // The simulated runtime creates each object a nanosecond later than the one before, also after the clock was set back.
    let (uid, latest) = (pod.uid(), (clock.latest() + Duration::from_micros(1)).to_timestamp());
    let changes = status.conditions.iter().flatten().filter_map(|condition| condition.last_transition_time.as_ref());
    let starts_and_ends = states(status).flat_map(|state| {
        let running = state.running.as_ref().and_then(|running| running.started_at.as_ref());
        let (started, ended) = run_of(state);
        [running, started, ended].into_iter().flatten()
    });
    if let Some(time) = changes.chain(&status.start_time).chain(starts_and_ends).find(|time| time.0 > latest) {
        return Err(format!(
            "{uid}: its status has the time {time:?}, and the clock has not passed {latest}: {status:?}"
        ));
    }
    let goes_back = |state: &&ContainerState| match run_of(state) {
        (Some(started), Some(ended)) => {
            started > ended && !clock.was_set_back(Time::from_timestamp(started.0), Time::from_timestamp(ended.0))
        }
        _ => false,
    };
    match states(status).find(goes_back) {
        Some(state) => Err(format!("{uid}: a container ends before it starts: {state:?}")),
        None => Ok(()),
    }
}

/// The time of a condition changes only with its status. After a write whose answer was lost, the agent may know an older version of the
/// pod, so this holds only while there are no faults.
pub(crate) fn transition_times_stay(before: &PodObject, after: &PodObject) -> CheckResult {
    for name in OWN_CONDITIONS {
        let (Some(old), Some(new)) = (condition(before, name), condition(after, name)) else { continue };
        if old.status == new.status && old.last_transition_time != new.last_transition_time {
            return Err(format!(
                "{}: the time of a condition changes, and its status does not: {old:?} {new:?}",
                after.uid()
            ));
        }
    }
    Ok(())
}

/// A condition of readiness gives a reason if and only if it is not true, as an agent sets it. So its fields belong to one state of the pod.
pub(crate) fn readiness_is_of_one_state(pod: &PodObject) -> CheckResult {
    for condition in READINESS.iter().filter_map(|name| condition(pod, name)) {
        if (condition.status == "True") == condition.reason.is_some() {
            return Err(format!("{}: its status has parts of two states: {condition:?}", pod.uid()));
        }
    }
    Ok(())
}

/// A pod that has ended is not ready. While the agent may know an older version of the pod, it may write the phase and leave a readiness
/// that it does not know.
pub(crate) fn ended_pod_is_not_ready(pod: &PodObject) -> CheckResult {
    if !pod.phase().is_terminal() {
        return Ok(());
    }
    let mut conditions = READINESS.iter().filter_map(|name| condition(pod, name));
    match conditions.find(|condition| condition.status == "True") {
        Some(condition) => Err(format!("{}: is {:?}, and has {condition:?}", pod.uid(), pod.phase())),
        None => Ok(()),
    }
}

fn condition<'a>(pod: &'a PodObject, name: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == name)
}

/// The states and the last states of all containers.
fn states(status: &PodStatus) -> impl Iterator<Item = &ContainerState> {
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let containers = lists.into_iter().flatten().flatten();
    containers.flat_map(|container| [container.state.as_ref(), container.last_state.as_ref()]).flatten()
}

/// The start and the end of a run that has ended.
fn run_of(state: &ContainerState) -> (Option<&ApiTime>, Option<&ApiTime>) {
    let ended = state.terminated.as_ref();
    (ended.and_then(|ended| ended.started_at.as_ref()), ended.and_then(|ended| ended.finished_at.as_ref()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Arc<PodObject> {
        let pod = json!({
            "metadata": {"name": "p0", "namespace": "sim", "uid": "p0-0"},
            "spec": {"containers": [{"name": "c"}]},
            "status": status,
        });
        PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn clock(second: u64) -> SimClock {
        SimClock::stopped_at(Time::from_secs(second))
    }

    fn at(second: u64) -> String {
        Time::from_secs(second).to_timestamp().to_string()
    }

    fn with_condition(name: &str, is_true: bool, since: u64) -> Arc<PodObject> {
        let status = if is_true { "True" } else { "False" };
        pod(json!({"conditions": [{"type": name, "status": status, "lastTransitionTime": at(since)}]}))
    }

    #[test]
    fn a_time_of_a_condition_that_does_not_change_must_stay() {
        let ready = |is_true, since| with_condition("Ready", is_true, since);
        assert_eq!(transition_times_stay(&ready(true, 1), &ready(true, 1)), Ok(()));
        assert_eq!(transition_times_stay(&ready(true, 1), &ready(false, 2)), Ok(()));
        assert_eq!(transition_times_stay(&pod(Value::Null), &ready(true, 1)), Ok(()));
        for since in [0, 2] {
            let what = transition_times_stay(&ready(true, 1), &ready(true, since)).unwrap_err();
            assert!(what.starts_with("p0-0: the time of a condition changes"), "{what}");
        }
        let others = ["example.com/gate", "DisruptionTarget"];
        let of = |since| others.map(|name| with_condition(name, true, since));
        for (before, after) in of(1).iter().zip(of(2)) {
            assert_eq!(transition_times_stay(before, &after), Ok(()), "it may be of another program");
        }
    }

    #[test]
    fn readiness_with_the_reason_of_another_state_is_reported() {
        let of = |name: &str, status: &str, reason: Value| {
            readiness_is_of_one_state(&pod(json!({"conditions": [{"type": name, "status": status, "reason": reason}]})))
        };
        for name in READINESS {
            assert_eq!(of(name, "True", Value::Null), Ok(()));
            assert_eq!(of(name, "False", json!("PodCompleted")), Ok(()));
            assert!(of(name, "True", json!("PodCompleted")).unwrap_err().contains("two states"));
            assert!(of(name, "False", Value::Null).unwrap_err().contains("two states"));
        }
        assert_eq!(of("Initialized", "True", json!("PodCompleted")), Ok(()), "such a reason is usual");
    }

    #[test]
    fn an_ended_pod_that_is_ready_is_reported() {
        let of = |phase: &str, ready: &str| {
            ended_pod_is_not_ready(&pod(json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]})))
        };
        for phase in ["Succeeded", "Failed"] {
            assert_eq!(of(phase, "False"), Ok(()));
            assert!(of(phase, "True").unwrap_err().starts_with("p0-0: is "));
        }
        assert_eq!(of("Running", "True"), Ok(()));
    }

    #[test]
    fn a_time_that_has_not_passed_is_reported() {
        let container = |state: Value, last: Value| {
            json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": state, "lastState": last}]})
        };
        for status in [
            json!({"startTime": at(101)}),
            json!({"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at(101)}]}),
            container(json!({"running": {"startedAt": at(101)}}), Value::Null),
            container(json!({"terminated": {"exitCode": 0, "finishedAt": at(101)}}), Value::Null),
            container(Value::Null, json!({"terminated": {"exitCode": 0, "startedAt": at(101), "finishedAt": at(101)}})),
        ] {
            let pod = pod(status);
            assert_eq!(times_have_passed(&pod, &clock(101)), Ok(()));
            let what = times_have_passed(&pod, &clock(100)).unwrap_err();
            assert!(what.contains("its status has the time"), "{what}");
        }
        let back = json!({"terminated": {"exitCode": 0, "startedAt": at(3), "finishedAt": at(2)}});
        let back = pod(container(back, Value::Null));
        let what = times_have_passed(&back, &clock(100)).unwrap_err();
        assert!(what.contains("ends before it starts"), "{what}");
        let set_back = clock(3);
        set_back.set_back(Duration::from_secs(2));
        assert_eq!(times_have_passed(&back, &set_back), Ok(()), "the clock was set back while the container ran");
    }
}
