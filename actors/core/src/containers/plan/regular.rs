//! Decides which regular containers to stop and start in an initialized pod.

use k8s_openapi::api::core::v1::Container;

use crate::containers::definition::is_hash_of;
use crate::containers::restart::{OnExit, RestartPolicy, on_exit};
use crate::pod::PodObject;
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus};
use crate::probes::{ProbeResult, ProbeSnapshot};

use super::{Kill, KillReason};

/// The changes to the regular containers.
#[derive(Debug, Default)]
pub(super) struct RegularDecision {
    pub(super) kill: Vec<Kill>,
    /// Indexes into the spec's list, ascending.
    pub(super) start: Vec<usize>,
    /// Whether a container runs and keeps running.
    pub(super) keeps_any: bool,
}

pub(super) fn decide(pod: &PodObject, status: &PodRuntimeStatus, probes: &ProbeSnapshot) -> RegularDecision {
    let mut decision = RegularDecision::default();
    for (index, container) in pod.containers().iter().enumerate() {
        match status.newest(&container.name) {
            Some(run) if run.state == ContainerState::Running => {
                let Some(reason) = kill_reason(container, run, probes) else {
                    decision.keeps_any = true;
                    continue;
                };
                decision.kill.push(Kill::of(run, reason));
                // A container with a changed definition is replaced whatever its restart policy.
                if reason == KillReason::HashChanged
                    || RestartPolicy::effective(pod.spec(), container) != RestartPolicy::Never
                {
                    decision.start.push(index);
                }
            }
            run if starts(pod, container, run) => {
                decision.start.push(index);
                if let Some(run) = run.filter(|run| run.state == ContainerState::Unknown) {
                    decision.kill.push(Kill::of(run, KillReason::StateUnknown));
                }
            }
            _ => {}
        }
    }
    decision
}

fn kill_reason(container: &Container, run: &ContainerStatus, probes: &ProbeSnapshot) -> Option<KillReason> {
    let probe = probes.get(&run.id).copied().unwrap_or_default();
    if !is_hash_of(run.spec_hash, container) {
        Some(KillReason::HashChanged)
    } else if probe.liveness == Some(ProbeResult::Failure) {
        Some(KillReason::LivenessFailed)
    } else if probe.startup == Some(ProbeResult::Failure) {
        Some(KillReason::StartupFailed)
    } else {
        None
    }
}

/// Whether a container that does not run is to be started (the kubelet's `ShouldContainerBeRestarted`, 1.36).
fn starts(pod: &PodObject, container: &Container, run: Option<&ContainerStatus>) -> bool {
    if pod.is_deleting() {
        return false;
    }
    let Some(run) = run else { return true };
    match run.state {
        ContainerState::Running => false,
        ContainerState::Created | ContainerState::Unknown => true,
        ContainerState::Exited => on_exit(pod.spec(), container, run, false) != OnExit::Stay,
    }
}
