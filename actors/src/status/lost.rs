//! A pod that lost its sandbox before all of it was done.

use super::StatusInput;
use crate::containers::plan::{Plan, SandboxNeed, plan, sandbox_need};
use crate::containers::restart::RestartPolicy;
use crate::pod::Phase;
use crate::ports::ContainerState;

/// Why the pod has failed, if it lost its sandbox and is given no other: nothing more of it is started, and what never
/// ran or was to run again has no end that its phase could follow from. The node's own: upstream leaves such a pod as it
/// is for ever (`computePodActions` and `getPhase`, kubelet 1.36).
pub(super) fn sandbox_lost(input: &StatusInput<'_>, phase: Phase) -> Option<String> {
    let StatusInput { pod, runtime, probes, termination_requested, .. } = input;
    let policy = RestartPolicy::parse(pod.spec().restart_policy.as_deref());
    if phase.is_terminal() || *termination_requested || policy != RestartPolicy::Never {
        return None;
    }
    // Two sandboxes are of no use either, and what runs in one of them is stopped first: only then the pod is over.
    if runtime.containers.iter().any(|run| matches!(run.state, ContainerState::Running | ContainerState::Unknown)) {
        return None;
    }
    let lost = matches!(sandbox_need(pod, runtime), SandboxNeed::New { attempt } if attempt > 0);
    if !lost || !matches!(plan(pod, runtime, probes), Plan::StopPod { .. }) {
        return None;
    }
    let ran = |name: &str| runtime.runs(name).any(|run| run.state != ContainerState::Created);
    let never = pod.init_containers().iter().chain(pod.containers()).find(|container| !ran(&container.name));
    let what = never.map_or_else(|| "it was done".to_owned(), |it| format!("container {} was started", it.name));
    Some(format!("the sandbox ended before {what}, and restartPolicy Never forbids a new one"))
}
