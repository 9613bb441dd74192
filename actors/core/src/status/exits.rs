//! The exits of containers between two statuses of a pod.

use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, PodStatus};

use super::{conditions, reasons};
use crate::containers::restart::{Exit, OnExit, RestartPolicy, on_exit};
use crate::pod::{ContainerKind, PodObject, is_sidecar};

/// An exit of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminatedContainer {
    /// The container's list in the spec.
    pub kind: ContainerKind,
    /// The container's name.
    pub name: String,
    /// The exit code.
    pub exit_code: i32,
    /// The runtime's reason (`Completed`, `Error`, `OOMKilled`).
    pub reason: String,
}

/// A status would restart a container that ended for good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("container {container:?} had ended for good, and the new status shows it as waiting or running")]
pub struct IllegalRestart {
    /// The container's name.
    pub container: String,
}

/// Refuses a status in which a container runs again that ended and may not restart.
pub(super) fn check_restarts(pod: &PodObject, old: &PodStatus, new: &PodStatus) -> Result<(), IllegalRestart> {
    if conditions::is_true(old, reasons::ALL_RESTARTING) || conditions::is_true(new, reasons::ALL_RESTARTING) {
        return Ok(());
    }
    let regular = |c: &Container, exit: Exit<'_>| on_exit(pod.spec(), c, exit, false) != OnExit::Stay;
    // Init containers run again in each new sandbox, whatever their exit was. A pod gets a new sandbox unless neither
    // it nor any of its containers may start again.
    let anew = RestartPolicy::parse(pod.spec().restart_policy.as_deref()) != RestartPolicy::Never
        || pod
            .containers()
            .iter()
            .chain(pod.init_containers())
            .any(|c| !is_sidecar(c) && (c.restart_policy.is_some() || c.restart_policy_rules.is_some()));
    let init =
        |c: &Container, exit: Exit<'_>| anew || is_sidecar(c) || on_exit(pod.spec(), c, exit, true) != OnExit::Stay;
    check_list(&old.container_statuses, &new.container_statuses, pod.containers(), regular)?;
    check_list(&old.init_container_statuses, &new.init_container_statuses, pod.init_containers(), init)
}

fn check_list(
    old: &Option<Vec<ContainerStatus>>,
    new: &Option<Vec<ContainerStatus>>,
    specs: &[Container],
    may_restart: impl Fn(&Container, Exit<'_>) -> bool,
) -> Result<(), IllegalRestart> {
    for before in old.iter().flatten() {
        let Some(end) = end_of(before) else { continue };
        let Some(after) = new.iter().flatten().find(|after| after.name == before.name) else { continue };
        let Some(spec) = specs.iter().find(|spec| spec.name == before.name) else { continue };
        if end_of(after).is_none() && !may_restart(spec, end.into()) {
            return Err(IllegalRestart { container: before.name.clone() });
        }
    }
    Ok(())
}

fn end_of(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

/// The exits in `new`, including last states, that `old` does not have. A container that exits and restarts between two
/// observations shows its exit in its last state.
pub(super) fn newly_terminated(old: &PodStatus, new: &PodStatus) -> Vec<TerminatedContainer> {
    let lists = [
        (ContainerKind::Init, &old.init_container_statuses, &new.init_container_statuses),
        (ContainerKind::Regular, &old.container_statuses, &new.container_statuses),
        (ContainerKind::Ephemeral, &old.ephemeral_container_statuses, &new.ephemeral_container_statuses),
    ];
    let mut found = Vec::new();
    for (kind, old, new) in lists {
        for status in new.iter().flatten() {
            let before = old.iter().flatten().find(|before| before.name == status.name);
            let known: Vec<_> = before.into_iter().flat_map(ends).collect();
            let fresh = ends(status).filter(|end| !known.iter().any(|known| is_same_end(known, end)));
            found.extend(fresh.map(|end| TerminatedContainer {
                kind,
                name: status.name.clone(),
                exit_code: end.exit_code,
                reason: end.reason.clone().unwrap_or_default(),
            }));
        }
    }
    found
}

fn ends(status: &ContainerStatus) -> impl Iterator<Item = &ContainerStateTerminated> {
    [&status.last_state, &status.state].into_iter().flatten().filter_map(|state| state.terminated.as_ref())
}

fn is_same_end(a: &ContainerStateTerminated, b: &ContainerStateTerminated) -> bool {
    match (&a.container_id, &b.container_id) {
        (Some(a), Some(b)) => a == b,
        (None, None) => a == b,
        _ => false,
    }
}
