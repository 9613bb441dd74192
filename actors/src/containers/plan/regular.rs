//! What the regular containers need once the pod is initialized.

use k8s_openapi::api::core::v1::Container;

use crate::containers::definition::spec_hash;
use crate::containers::restart::{OnExit, RestartPolicy, on_exit};
use crate::pod::PodObject;
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus};
use crate::probes::{ProbeResult, ProbeSnapshot};

use super::{Kill, KillReason};

/// What the regular containers need.
#[derive(Debug, Default)]
pub(super) struct Decision {
    pub(super) kill: Vec<Kill>,
    /// Places in the spec, ascending.
    pub(super) start: Vec<usize>,
    /// Whether one runs and is left alone.
    pub(super) keeps_any: bool,
}

pub(super) fn decide(pod: &PodObject, status: &PodRuntimeStatus, probes: &ProbeSnapshot) -> Decision {
    let mut decision = Decision::default();
    for (place, container) in pod.containers().iter().enumerate() {
        match status.newest(&container.name) {
            Some(run) if run.state == ContainerState::Running => {
                let Some(reason) = kill_reason(container, run, probes) else {
                    decision.keeps_any = true;
                    continue;
                };
                decision.kill.push(Kill::of(run, reason));
                // A new definition must run whatever the policy says of exits.
                if reason == KillReason::HashChanged
                    || RestartPolicy::effective(pod.spec(), container) != RestartPolicy::Never
                {
                    decision.start.push(place);
                }
            }
            run if starts(pod, container, run) => {
                decision.start.push(place);
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
    if run.spec_hash != spec_hash(container) {
        Some(KillReason::HashChanged)
    } else if probe.liveness == Some(ProbeResult::Failure) {
        Some(KillReason::LivenessFailed)
    } else if probe.startup == Some(ProbeResult::Failure) {
        Some(KillReason::StartupFailed)
    } else {
        None
    }
}

/// Whether a container that does not run is to be started (upstream `ShouldContainerBeRestarted`, kubelet 1.36).
fn starts(pod: &PodObject, container: &Container, run: Option<&ContainerStatus>) -> bool {
    if pod.is_deleting() {
        return false;
    }
    let Some(run) = run else { return true };
    match run.state {
        ContainerState::Running => false,
        ContainerState::Created | ContainerState::Unknown => true,
        ContainerState::Exited => on_exit(pod.spec(), container, run.exit_code, false) != OnExit::Stay,
    }
}
