//! Checks of what an agent that restarts makes of the containers that it finds.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus};
use podwright_core::pod_worker::{Cause, Lifecycle};
use podwright_engine::PodSnapshot;
use podwright_model::pod::Phase;

use super::CheckResult;
use crate::machine::{Agent, Machine};
use crate::scenario::{HookPlan, Kind};

/// No status shows a run that never started, because the agent that requested the start was killed.
pub(crate) fn cancelled_starts_are_no_runs(machine: &Machine, agent: &Agent) -> CheckResult {
    let mut snapshots = agent.engine.snapshots();
    snapshots.sort_by(|a, b| a.uid.cmp(&b.uid));
    for snapshot in snapshots {
        let Some(status) = agent.statuses.get(&snapshot.uid) else { continue };
        let lists = [&status.init_container_statuses, &status.container_statuses];
        let states =
            lists.into_iter().flatten().flatten().flat_map(|container| [&container.state, &container.last_state]);
        let mut ends = states.flatten().filter_map(|state| state.terminated.as_ref());
        let is_cancelled = |end: &&ContainerStateTerminated| {
            let id = end.container_id.as_deref().and_then(|id| id.split_once("://"));
            machine.with_runs(|runs| {
                runs.of(&snapshot.uid)
                    .iter()
                    .any(|run| run.cancelled && id.is_some_and(|(_, id)| id == run.id.as_str()))
            })
        };
        if let Some(end) = ends.find(is_cancelled) {
            return Err(format!("{}: a start that ended with its agent counts as a run: {end:?}", snapshot.uid));
        }
    }
    Ok(())
}

/// A pod that ended by itself has succeeded only if no last run of a regular container was stopped for a resize: such a run has not
/// completed its work.
pub(crate) fn succeeded_pods_have_completed_their_work(machine: &Machine, agent: &Agent) -> CheckResult {
    let mut snapshots = agent.engine.snapshots();
    snapshots.sort_by(|a, b| a.uid.cmp(&b.uid));
    let has_completed = |snapshot: &&PodSnapshot| {
        snapshot.transitions.iter().any(|transition| transition.cause == Cause::Completed)
            && agent.statuses.phase(&snapshot.uid) == Some(Phase::Succeeded)
    };
    for snapshot in snapshots.iter().filter(has_completed) {
        let Some(plan) = machine.plan_of(&snapshot.uid) else { continue };
        for container in plan.of(Kind::Regular) {
            let was_stopped = machine.with_runs(|runs| {
                let last = runs.of(&snapshot.uid).iter().rfind(|run| run.name.as_str() == container.name);
                last.is_some_and(|run| run.was_stopped_for_resize(plan.grace_period()))
            });
            if was_stopped {
                return Err(format!(
                    "{}: has succeeded, and {} was stopped for a resize",
                    snapshot.uid, container.name
                ));
            }
        }
    }
    Ok(())
}

/// A container that was ready under an earlier agent is ready until this agent has probed it.
pub(crate) fn ready_containers_stay_ready(machine: &Machine, agent: &Agent) -> CheckResult {
    let mut snapshots = agent.engine.snapshots();
    snapshots.sort_by(|a, b| a.uid.cmp(&b.uid));
    for snapshot in snapshots.iter().filter(|snapshot| snapshot.lifecycle == Lifecycle::Sync) {
        let (Some(status), Some(plan)) = (agent.statuses.get(&snapshot.uid), machine.plan_of(&snapshot.uid)) else {
            continue;
        };
        // The calls of other probes do not name their containers.
        let by_command = |name: &str| {
            let container = plan.containers.iter().find(|container| container.name == name);
            container.is_some_and(|container| container.probes.iter().all(|probe| probe.exec))
        };
        let running =
            |container: &&ContainerStatus| container.state.as_ref().is_some_and(|state| state.running.is_some());
        let lists = [&status.init_container_statuses, &status.container_statuses];
        for container in lists.into_iter().flatten().flatten().filter(running).filter(|it| by_command(&it.name)) {
            let id = container.container_id.as_deref().and_then(|id| id.split_once("://"));
            let is_unprobed = machine.with_runs(|runs| {
                let mut runs = runs.of(&snapshot.uid).iter().filter(|run| run.was_ready && !run.probed);
                runs.any(|run| id.is_some_and(|(_, id)| id == run.id.as_str()))
            });
            if is_unprobed && !container.ready {
                return Err(format!(
                    "{}: {} was ready, and is not ready before its first probe",
                    snapshot.uid, container.name
                ));
            }
        }
    }
    Ok(())
}

/// No status shows a container as running before its post-start hook has succeeded, unless its pod stops: the stop has cancelled the hook,
/// and shows what runs. The hook of a container that an earlier agent started may be lost if that agent could not record it.
pub(crate) fn post_start_hooks_have_run(machine: &Machine, agent: &Agent) -> CheckResult {
    let mut snapshots = agent.engine.snapshots();
    snapshots.sort_by(|a, b| a.uid.cmp(&b.uid));
    // A sync that the stop has cancelled may still publish a status. The law holds until the terminate hook is called.
    let expected = |snapshot: &&PodSnapshot| !agent.engine.should_pod_containers_be_terminating(&snapshot.uid);
    for snapshot in snapshots.iter().filter(expected) {
        let (Some(status), Some(plan)) = (agent.statuses.get(&snapshot.uid), machine.plan_of(&snapshot.uid)) else {
            continue;
        };
        let has_hook = |name: &str| {
            let container = plan.containers.iter().find(|container| container.name == name);
            container.is_some_and(|container| matches!(container.post_start, Some(HookPlan::Exec)))
        };
        let running =
            |container: &&ContainerStatus| container.state.as_ref().is_some_and(|state| state.running.is_some());
        let lists = [&status.init_container_statuses, &status.container_statuses];
        for container in lists.into_iter().flatten().flatten().filter(running).filter(|it| has_hook(&it.name)) {
            let id = container.container_id.as_deref().and_then(|id| id.split_once("://"));
            let life = machine.life();
            let is_due = machine.with_runs(|runs| {
                let mut due =
                    runs.of(&snapshot.uid).iter().filter(|run| !run.hooked && (run.life == life || run.was_starting));
                due.any(|run| id.is_some_and(|(_, id)| id == run.id.as_str()))
            });
            if is_due {
                return Err(format!(
                    "{}: {} is shown as running before its hook has succeeded",
                    snapshot.uid, container.name
                ));
            }
        }
    }
    Ok(())
}
