//! Detects a pod that lost its sandbox before it was complete.

use super::StatusInput;
use crate::containers::plan::{Plan, SandboxNeed, plan, sandbox_need};
use crate::containers::restart::RestartPolicy;
use crate::pod::Phase;
use crate::ports::ContainerState;

/// The failure message of a pod that lost its sandbox and may not get another one. No container of it starts again, and
/// its phase cannot follow from the containers that never ran. The kubelet leaves such a pod unchanged for ever
/// (`computePodActions` and `getPhase`, 1.36); this message is podwright's own.
pub(super) fn sandbox_lost(input: &StatusInput<'_>, phase: Phase) -> Option<String> {
    let StatusInput { pod, runtime, probes, termination_requested, .. } = input;
    let policy = RestartPolicy::parse(pod.spec().restart_policy.as_deref());
    if phase.is_terminal() || *termination_requested || policy != RestartPolicy::Never {
        return None;
    }
    // Also with two sandboxes the running containers are stopped first. The pod has failed only after that.
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
