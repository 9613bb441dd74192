//! Checks of what the kept statuses show of containers, once per second.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use podwright_actors::pod::Phase;

use super::CheckResult;
use crate::machine::Agent;

/// The statuses of all pods show their containers as they are.
pub(crate) fn containers_are_shown(agent: &Agent) -> CheckResult {
    let mut snapshots = agent.engine.snapshots();
    snapshots.sort_by(|a, b| a.uid.cmp(&b.uid));
    for uid in snapshots.into_iter().map(|snapshot| snapshot.uid) {
        let Some(status) = agent.statuses.get(&uid) else { continue };
        readiness_follows_containers(&status).map_err(|what| format!("{uid}: {what}"))?;
    }
    Ok(())
}

/// A pod is ready only if its regular containers are, and only a container that runs is ready. The caller of a kill sets a terminal phase
/// while containers run and conditions stay.
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

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
}
