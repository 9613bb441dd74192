//! Decides whether the pod needs a new sandbox, and what starts in it.

use k8s_openapi::api::core::v1::Container;

use crate::containers::restart::{Exit, OnExit, RestartPolicy, may_restart_all, on_exit};
use crate::ids::SandboxId;
use crate::pod::{PodObject, is_sidecar};
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus, SandboxState};

use super::init::has_completed;
use super::{FirstStart, Plan};

/// The exit code of a container that is killed together with its sandbox.
const KILLED: i32 = 137;

/// Whether a pod's sandbox is usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SandboxNeed {
    /// The sandbox is usable.
    Keep(SandboxId),
    /// There is no usable sandbox.
    New {
        /// The number of sandboxes that the pod had before.
        attempt: u32,
    },
}

/// Decides whether a pod's sandbox is usable (the kubelet's `PodSandboxChanged`, 1.36).
pub(crate) fn sandbox_need(pod: &PodObject, status: &PodRuntimeStatus) -> SandboxNeed {
    let Some(newest) = status.sandboxes.first() else {
        return SandboxNeed::New { attempt: 0 };
    };
    let ready = status.sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::Ready).count();
    let usable = ready == 1
        && newest.state == SandboxState::Ready
        && newest.host_network == pod.is_host_network()
        && (newest.host_network || !newest.ips.is_empty());
    if usable {
        SandboxNeed::Keep(newest.id.clone())
    } else {
        SandboxNeed::New { attempt: newest.attempt.saturating_add(1) }
    }
}

/// Plans a new sandbox: everything stops, and the containers that may run again start in the new sandbox.
///
/// Unlike the kubelet, this applies a container's own policy and exit rules as in a usable sandbox (POD-W23).
pub(super) fn replace(pod: &PodObject, status: &PodRuntimeStatus, attempt: u32) -> Plan {
    let stop = Plan::StopPod { kills: Vec::new() };
    if pod_policy(pod) == RestartPolicy::Never && attempt > 0 && !status.containers.is_empty() && !outlives(pod, status)
    {
        return stop;
    }
    let start: Vec<usize> = pod
        .containers()
        .iter()
        .enumerate()
        .filter(|(_, container)| {
            ran(container, status).is_none_or(|run| may_run_again(pod, container, Some(run), false))
        })
        .map(|(index, _)| index)
        .collect();
    if start.is_empty() && has_run(pod, status) {
        return stop;
    }
    let start = if pod.init_containers().is_empty() { FirstStart::Regular(start) } else { FirstStart::Init };
    Plan::NewSandbox { attempt, start }
}

/// Whether a container's own policy or rules keep a pod alive that otherwise does not restart. Only the regular
/// containers count, or, if none of them ran, the init containers that did not succeed. A sidecar does not keep a pod
/// alive.
///
/// If a rule can restart all containers, a container without a run may have had its runs removed for such a restart. It
/// looks like a container that never started, so the pod stays alive.
fn outlives(pod: &PodObject, status: &PodRuntimeStatus) -> bool {
    if may_restart_all(pod.spec())
        && !has_failed_init(pod, status)
        && pod.containers().iter().any(|c| ran(c, status).is_none())
    {
        return true;
    }
    if has_run(pod, status) {
        return pod.containers().iter().any(|c| may_run_again(pod, c, ran(c, status), false));
    }
    pod.init_containers().iter().filter(|c| !is_sidecar(c)).any(|c| {
        status.newest(&c.name).is_some_and(|run| {
            (run.state != ContainerState::Exited || !has_completed(run)) && may_run_again(pod, c, Some(run), true)
        })
    })
}

/// Whether an init container failed in a way that ends the pod.
fn has_failed_init(pod: &PodObject, status: &PodRuntimeStatus) -> bool {
    pod.init_containers().iter().filter(|c| !is_sidecar(c)).any(|c| {
        ran(c, status).is_some_and(|run| {
            (run.state != ContainerState::Exited || !has_completed(run)) && !may_run_again(pod, c, Some(run), true)
        })
    })
}

/// The container's newest run that was started.
fn ran<'a>(container: &Container, status: &'a PodRuntimeStatus) -> Option<&'a ContainerStatus> {
    status.runs(&container.name).find(|run| run.state != ContainerState::Created)
}

fn may_run_again(pod: &PodObject, container: &Container, run: Option<&ContainerStatus>, init: bool) -> bool {
    // A running container is killed with its sandbox. A created one would be.
    let exit = run.filter(|run| run.state == ContainerState::Exited).map_or(Exit::from(KILLED), Exit::from);
    on_exit(pod.spec(), container, exit, init) != OnExit::Stay
}

fn has_run(pod: &PodObject, status: &PodRuntimeStatus) -> bool {
    pod.containers().iter().any(|container| {
        status.newest(&container.name).is_some_and(|run| match run.state {
            ContainerState::Created | ContainerState::Running | ContainerState::Exited => true,
            ContainerState::Unknown => false,
        })
    })
}

fn pod_policy(pod: &PodObject) -> RestartPolicy {
    RestartPolicy::parse(pod.spec().restart_policy.as_deref())
}
