//! Checks of what the kept statuses show of containers, once per second.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as ApiTime;
use podwright_model::pod::Phase;
use podwright_model::time::Time;
use podwright_ports::ContainerState;

use super::CheckResult;
use crate::container_runs::ContainerRun;
use crate::machine::{Agent, Machine};

/// The statuses of all pods show their containers as they are.
pub(crate) fn containers_are_shown(machine: &Machine, agent: &Agent) -> CheckResult {
    let mut snapshots = agent.engine.snapshots();
    snapshots.sort_by(|a, b| a.uid.cmp(&b.uid));
    for uid in snapshots.into_iter().map(|snapshot| snapshot.uid) {
        let Some(status) = agent.statuses.get(&uid) else { continue };
        readiness_follows_containers(&status).map_err(|what| format!("{uid}: {what}"))?;
        // The runs are those that the runtime has now, and those that it had.
        machine.runtime_status(&uid);
        let checked = machine.with_runs(|runs| runs_are_shown_as_they_were(&status, runs.of(&uid)));
        checked.map_err(|what| format!("{uid}: {what}"))?;
    }
    Ok(())
}

/// A pod is ready only if its regular containers are, and only a container that runs is ready. The caller of a kill may set a terminal
/// phase while containers still run. The conditions stay then.
fn readiness_follows_containers(status: &PodStatus) -> CheckResult {
    let is_true = |name: &str| {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|condition| condition.type_ == name && condition.status == "True")
    };
    let runs = |container: &ContainerStatus| container.state.as_ref().is_some_and(|state| state.running.is_some());
    let mut regular = status.container_statuses.iter().flatten();
    if let Some(container) = regular.clone().find(|container| container.ready && !runs(container)) {
        return Err(format!("a container is ready and does not run: {container:?}"));
    }
    if Phase::parse(status.phase.as_deref()).is_terminal() {
        return Ok(());
    }
    if is_true("Ready") && !is_true("ContainersReady") {
        return Err(format!("it is ready, and its containers are not: {:?}", status.conditions));
    }
    match regular.find(|container| !container.ready) {
        Some(container) if is_true("ContainersReady") => {
            Err(format!("it is ready, and a container is not: {container:?}"))
        }
        _ => Ok(()),
    }
}

/// Each run in a status has the start, the end and the exit code that it really had.
fn runs_are_shown_as_they_were(status: &PodStatus, runs: &[ContainerRun]) -> CheckResult {
    let run = |id: Option<&String>| {
        let (_, id) = id?.split_once("://")?;
        runs.iter().find(|run| run.id.as_str() == id)
    };
    let is_at = |shown: Option<&ApiTime>, at: Option<Time>| {
        shown.map(|shown| shown.0.as_second()) == at.map(|at| at.to_timestamp().as_second())
    };
    let lists = [&status.init_container_statuses, &status.container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        let running = container.state.as_ref().and_then(|state| state.running.as_ref());
        // The start of a run that was removed before it was read is not known.
        let run_that_started = run(container.container_id.as_ref()).filter(|run| run.started.is_some());
        if let (Some(shown), Some(run)) = (running, run_that_started)
            && !is_at(shown.started_at.as_ref(), run.started)
        {
            return Err(format!("{} is shown as {shown:?}, and its run is {run:?}", container.name));
        }
        let states = [&container.state, &container.last_state].into_iter().flatten();
        for shown in states.filter_map(|state| state.terminated.as_ref()) {
            // Nor is its end.
            let Some(run) = run(shown.container_id.as_ref()).filter(|run| run.state == ContainerState::Exited) else {
                continue;
            };
            let is_true = shown.exit_code == run.exit_code
                && is_at(shown.started_at.as_ref(), run.started)
                && is_at(shown.finished_at.as_ref(), run.ended);
            if !is_true {
                return Err(format!("{} is shown as {shown:?}, and its run is {run:?}", container.name));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use podwright_model::ids::PodUid;
    use podwright_ports::{ContainerStatus as RuntimeStatus, PodRuntimeStatus};
    use serde_json::{Value, json};

    use super::*;
    use crate::container_runs::ContainerRuns;

    fn container(name: &str, ready: bool, state: Value) -> Value {
        json!({"name": name, "image": "i", "imageID": "", "ready": ready, "restartCount": 0, "state": state})
    }

    fn status(phase: &str, ready: [&str; 2], containers: &[Value]) -> PodStatus {
        let conditions = ["Ready", "ContainersReady"].into_iter().zip(ready);
        let conditions: Vec<Value> = conditions.map(|(name, status)| json!({"type": name, "status": status})).collect();
        serde_json::from_value(json!({"phase": phase, "conditions": conditions, "containerStatuses": containers}))
            .unwrap()
    }

    #[test]
    fn readiness_that_no_container_has_is_reported() {
        let (runs, ended) = (json!({"running": {}}), json!({"terminated": {"exitCode": 0}}));
        let ready = [container("a", true, runs.clone()), container("b", true, runs.clone())];
        let half = [container("a", true, runs.clone()), container("b", false, runs)];
        let dead = [container("a", true, ended)];
        let check = |phase: &str, conditions: [&str; 2], containers: &[Value]| {
            readiness_follows_containers(&status(phase, conditions, containers))
        };
        assert_eq!(check("Running", ["True", "True"], &ready), Ok(()));
        assert_eq!(check("Running", ["False", "True"], &ready), Ok(()), "a readiness gate");
        assert_eq!(check("Running", ["False", "False"], &half), Ok(()));
        assert_eq!(check("Failed", ["True", "True"], &half), Ok(()), "its containers are being stopped");
        assert!(check("Running", ["True", "True"], &half).unwrap_err().contains("a container is not"));
        assert!(check("Running", ["True", "False"], &half).unwrap_err().contains("its containers are not"));
        assert!(check("Running", ["False", "False"], &dead).unwrap_err().contains("does not run"));
    }

    /// A run that started in second 2. It has ended in second 5 with the code 3, or it still runs.
    fn runs(has_ended: bool) -> ContainerRuns {
        let run = RuntimeStatus {
            id: "1".into(),
            sandbox: "s".into(),
            name: "a".into(),
            restart_count: 0,
            state: if has_ended { ContainerState::Exited } else { ContainerState::Running },
            created_at: Time::from_secs(1),
            started_at: Some(Time::from_secs(2)),
            finished_at: has_ended.then(|| Time::from_secs(5)),
            exit_code: if has_ended { 3 } else { 0 },
            signal: None,
            reason: String::new(),
            message: String::new(),
            spec_hash: 0,
            image: "i".to_owned(),
            image_id: "i".to_owned(),
            applied: None,
        };
        let mut runs = ContainerRuns::default();
        let status = PodRuntimeStatus { sandboxes: Vec::new(), containers: vec![run] };
        runs.learn(&PodUid::new("p0-0"), &status, 1, None);
        runs
    }

    #[test]
    fn a_run_that_was_different_is_reported() {
        let at = |second: u64| Time::from_secs(second).to_timestamp().to_string();
        let check = |field: &str, state: &Value, has_ended: bool| {
            let mut container = container("a", false, Value::Null);
            container["containerID"] = json!("simulated://1");
            container[field] = state.clone();
            let status = serde_json::from_value(json!({"containerStatuses": [container]})).unwrap();
            runs_are_shown_as_they_were(&status, runs(has_ended).of(&PodUid::new("p0-0")))
        };
        let running = |second: u64| json!({"running": {"startedAt": at(second)}});
        assert_eq!(check("state", &running(2), false), Ok(()));
        assert_eq!(check("state", &running(2), true), Ok(()), "its end is not noticed yet");
        assert!(check("state", &running(3), false).is_err());

        let ended = |code: i32, from: u64, to: u64| {
            json!({"terminated": {"containerID": "simulated://1", "exitCode": code, "startedAt": at(from),
                "finishedAt": at(to)}})
        };
        for field in ["state", "lastState"] {
            assert_eq!(check(field, &ended(3, 2, 5), true), Ok(()));
            for broken in [ended(0, 2, 5), ended(3, 1, 5), ended(3, 2, 6)] {
                assert!(check(field, &broken, true).is_err(), "{field} {broken}");
                assert_eq!(check(field, &broken, false), Ok(()), "nobody knows how it ended");
            }
        }
        let unknown = json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}});
        assert_eq!(check("state", &unknown, true), Ok(()), "it names no run");
    }
}
