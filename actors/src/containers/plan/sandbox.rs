//! Whether the pod needs a new sandbox, and what then.

use k8s_openapi::api::core::v1::Container;

use crate::containers::restart::{OnExit, RestartPolicy, may_restart_all, on_exit};
use crate::ids::SandboxId;
use crate::pod::{PodObject, is_sidecar};
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus, SandboxState};

use super::init::has_failed;
use super::{FirstStart, Plan};

/// Exit code of a container that is killed together with its sandbox.
const KILLED: i32 = 137;

/// Whether a pod's sandbox can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxNeed {
    /// It can.
    Keep(SandboxId),
    /// There is none, or none that can.
    New {
        /// How many there were before.
        attempt: u32,
    },
}

/// Judges a pod's sandboxes (upstream `PodSandboxChanged`, kubelet 1.36).
pub fn sandbox_need(pod: &PodObject, status: &PodRuntimeStatus) -> SandboxNeed {
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

/// What to do when a new sandbox is needed: everything stops, and what may run again starts in a new one.
///
/// Unlike upstream, a container's own policy and rules count here as they do in a good sandbox (W23).
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
        .map(|(place, _)| place)
        .collect();
    if start.is_empty() && has_run(pod, status) {
        return stop;
    }
    let start = if pod.init_containers().is_empty() { FirstStart::Regular(start) } else { FirstStart::Init };
    Plan::NewSandbox { attempt, start }
}

/// Whether a pod that as a whole does not restart has a container whose own policy or rules say otherwise: one of the
/// regular containers, or, as long as none of them ran, an init container that had not succeeded. A sidecar cannot keep
/// a pod alive.
///
/// Where a rule restarts all, the runs of a container that shows none may have been removed to that end. Nothing tells
/// it from a container that was never started, which then starts without the others.
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
            (run.state != ContainerState::Exited || has_failed(run)) && may_run_again(pod, c, Some(run), true)
        })
    })
}

/// Whether an init container ended in a way that ends the pod.
fn has_failed_init(pod: &PodObject, status: &PodRuntimeStatus) -> bool {
    pod.init_containers().iter().filter(|c| !is_sidecar(c)).any(|c| {
        ran(c, status).is_some_and(|run| {
            (run.state != ContainerState::Exited || has_failed(run)) && !may_run_again(pod, c, Some(run), true)
        })
    })
}

/// The newest run of a container that was started.
fn ran<'a>(container: &Container, status: &'a PodRuntimeStatus) -> Option<&'a ContainerStatus> {
    status.runs(&container.name).find(|run| run.state != ContainerState::Created)
}

fn may_run_again(pod: &PodObject, container: &Container, run: Option<&ContainerStatus>, init: bool) -> bool {
    // What still runs is about to be killed with its sandbox, and so would be what was not started yet.
    let exit_code = run.filter(|run| run.state == ContainerState::Exited).map_or(KILLED, |run| run.exit_code);
    on_exit(pod.spec(), container, exit_code, init) != OnExit::Stay
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
