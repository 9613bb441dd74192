//! Gives every container of a finished pod a terminated state.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::containers::killed;
use super::reasons;
use crate::containers::restart::Exit;
use crate::pod::{Phase, PodObject, is_sidecar};
use crate::texts::containers::NOT_LOCATED;

/// Ends the status of a finished pod (the kubelet's `TerminatePod`, 1.36).
///
/// A container without a known exit counts as killed. A container that cannot have run stays waiting: the regular
/// containers of a pod that was not initialized, and the init containers after the last one that ran. A phase that is
/// not terminal becomes Failed, except for a static pod, which may run again.
pub(crate) fn terminate_pod(pod: &PodObject, status: &mut PodStatus) {
    if is_initialized(pod, status) {
        status.container_statuses.iter_mut().flatten().for_each(end);
    }
    let inits = status.init_container_statuses.as_deref_mut().unwrap_or_default();
    let tried = inits.iter().rposition(has_left_waiting).unwrap_or(0);
    inits.iter_mut().take(tried + 1).for_each(end);

    if !pod.is_static() && !Phase::parse(status.phase.as_deref()).is_terminal() {
        status.phase = Some(Phase::Failed.as_str().to_owned());
    }
}

fn end(container: &mut ContainerStatus) {
    if container.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        return;
    }
    container.state = Some(killed(reasons::STATUS_UNKNOWN, NOT_LOCATED));
    container.ready = false;
    if container.started.is_some() {
        container.started = Some(false);
    }
}

fn is_initialized(pod: &PodObject, status: &PodStatus) -> bool {
    let Some(last) = pod.init_containers().last() else { return true };
    if status.container_statuses.iter().flatten().any(has_left_waiting) {
        return true;
    }
    let known = status.init_container_statuses.as_deref().unwrap_or_default();
    let Some(known) = known.iter().find(|have| have.name == last.name) else { return false };
    let ended_well = [&known.state, &known.last_state]
        .into_iter()
        .flatten()
        .any(|state| state.terminated.as_ref().is_some_and(|end| Exit::from(end).is_success()));
    let runs = known.state.as_ref().is_some_and(|state| state.running.is_some()) && known.started == Some(true);
    ended_well || (is_sidecar(last) && runs)
}

/// Whether the container ever got past the waiting state.
fn has_left_waiting(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|state| state.waiting.is_none())
        || container.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
}
