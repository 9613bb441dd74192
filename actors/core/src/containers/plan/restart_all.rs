//! Restarts every container of a pod after an exit whose rule says so (KEP-5532).

use std::collections::BTreeSet;

use crate::containers::restart::{OnExit, on_exit};
use crate::ids::ContainerName;
use crate::pod::{ContainerKind, PodObject};
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus};

use super::{Kill, KillReason, Plan};

/// A plan that restarts all containers, if the newest run of some container ended with such an exit.
///
/// This decision comes before the sandbox is inspected. When all runs are removed, the next plan starts the pod from
/// the beginning, in the existing sandbox or in a new one.
pub(super) fn decide(pod: &PodObject, status: &PodRuntimeStatus) -> Option<Plan> {
    let triggers = triggers(pod, status);
    if triggers.is_empty() || pod.is_deleting() {
        return None;
    }
    // Ephemeral containers start once and are not restarted.
    let mut runs: Vec<(bool, ContainerKind, &ContainerStatus)> = status
        .containers
        .iter()
        .filter_map(|run| {
            let name = run.name.as_str();
            let kind = if pod.containers().iter().any(|c| c.name == name) {
                ContainerKind::Regular
            } else if pod.init_containers().iter().any(|c| c.name == name) {
                ContainerKind::Init
            } else {
                return None;
            };
            Some((triggers.contains(name), kind, run))
        })
        .collect();
    runs.sort_by_key(|(trigger, kind, _)| (*trigger, *kind != ContainerKind::Regular));
    let kills = runs
        .iter()
        .filter(|(_, _, run)| matches!(run.state, ContainerState::Running | ContainerState::Unknown))
        .map(|(_, _, run)| Kill::of(run, KillReason::RestartAll))
        .collect();
    // The newest run of a trigger is removed last, because it alone shows that the restart is due.
    let (newest, older): (Vec<_>, Vec<_>) = runs
        .iter()
        .partition(|(trigger, _, run)| *trigger && status.newest(run.name.as_str()).is_some_and(|n| n.id == run.id));
    let remove = older.into_iter().chain(newest).map(|(_, _, run)| run.id.clone()).collect();
    Some(Plan::RestartAll { kills, remove, triggers: triggers.into_iter().map(ContainerName::from).collect() })
}

fn triggers<'a>(pod: &'a PodObject, status: &PodRuntimeStatus) -> BTreeSet<&'a str> {
    let regular = pod.containers().iter().map(|c| (c, false));
    let init = pod.init_containers().iter().map(|c| (c, true));
    regular
        .chain(init)
        .filter(|(container, init)| {
            status.newest(&container.name).is_some_and(|run| {
                run.state == ContainerState::Exited
                    && on_exit(pod.spec(), container, run, *init) == OnExit::RestartAllContainers
            })
        })
        .map(|(container, _)| container.name.as_str())
        .collect()
}
