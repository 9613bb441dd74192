//! Checks of what an agent that restarts makes of the containers that it finds.

use k8s_openapi::api::core::v1::ContainerStateTerminated;

use super::CheckResult;
use crate::machine::{Agent, Machine};

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
