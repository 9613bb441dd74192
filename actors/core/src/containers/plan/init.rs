//! Decides which init containers to stop and start.

use crate::containers::definition::is_hash_of;
use crate::containers::restart::{Exit, OnExit, RestartPolicy, on_exit};
use crate::ids::SandboxId;
use crate::pod::{PodObject, is_sidecar};
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus};
use crate::probes::{ProbeResult, ProbeSnapshot};

use super::{Kill, KillReason};

/// The exit code that the restart rules get for an out-of-memory kill if the runtime reports exit code 0.
const OOM_KILLED: i32 = 137;

/// The progress of the pod's initialization.
#[derive(Debug)]
pub(super) enum InitDecision {
    /// An init container failed and may not run again.
    Failed,
    /// Initialization is not complete.
    Pending(InitChanges),
    /// Initialization is complete. Sidecars may still need changes.
    Done(InitChanges),
}

/// The changes to the init containers.
#[derive(Debug, Default)]
pub(super) struct InitChanges {
    pub(super) kill: Vec<Kill>,
    /// Indexes into the spec's list, ascending.
    pub(super) start: Vec<usize>,
}

impl InitChanges {
    fn replace(&mut self, run: &ContainerStatus, reason: KillReason, index: usize) {
        self.kill.push(Kill::of(run, reason));
        self.start.push(index);
    }
}

/// Walks the init containers from last to first, because the runs of earlier ones may have been removed. The first
/// container with a run shows how far initialization got (the kubelet's `computeInitContainerActions`, 1.36).
///
/// Unlike the kubelet, this considers only runs in the pod's current sandbox. A new sandbox has the older runs removed,
/// but a removal can fail, and the work of an init container in an old sandbox must be repeated.
pub(super) fn decide(
    pod: &PodObject,
    sandbox: &SandboxId,
    status: &PodRuntimeStatus,
    probes: &ProbeSnapshot,
) -> InitDecision {
    let containers = pod.init_containers();
    if containers.is_empty() {
        return InitDecision::Done(InitChanges::default());
    }
    let mut walk =
        InitWalk { changes: InitChanges::default(), done: is_initialized(pod, sandbox, status), ahead: false };
    walk.ahead = walk.done;
    for (index, container) in containers.iter().enumerate().rev() {
        let sidecar = is_sidecar(container);
        let Some(run) = status.newest_in(sandbox, &container.name) else {
            // A sidecar whose run was removed must start again; a regular init container has completed.
            if walk.ahead && sidecar {
                walk.changes.start.push(index);
            }
            continue;
        };
        if walk.ahead && !sidecar {
            continue;
        }
        match run.state {
            ContainerState::Created => walk.changes.start.push(index),
            ContainerState::Running if sidecar => {
                let probe = probes.get(&run.id).copied().unwrap_or_default();
                let started = match container.startup_probe.as_ref().map(|_| probe.startup) {
                    None | Some(Some(ProbeResult::Success)) => true,
                    Some(None | Some(ProbeResult::Unknown)) => false,
                    Some(Some(ProbeResult::Failure)) => {
                        walk.changes.replace(run, KillReason::StartupFailed, index);
                        false
                    }
                };
                if started {
                    walk.passed(index, containers.len());
                    if !is_hash_of(run.spec_hash, container) {
                        walk.changes.replace(run, KillReason::HashChanged, index);
                    } else if container.liveness_probe.is_some() && probe.liveness == Some(ProbeResult::Failure) {
                        walk.changes.replace(run, KillReason::LivenessFailed, index);
                    }
                }
            }
            ContainerState::Running => {}
            ContainerState::Exited if sidecar => walk.changes.start.push(index),
            ContainerState::Exited if !has_completed(run) => {
                let code = if run.exit_code == 0 { OOM_KILLED } else { run.exit_code };
                match on_exit(pod.spec(), container, Exit { code, ..Exit::from(run) }, true) {
                    OnExit::Stay => return InitDecision::Failed,
                    OnExit::Restart | OnExit::RestartAllContainers => walk.changes.start.push(index),
                }
            }
            ContainerState::Exited => walk.passed(index, containers.len()),
            ContainerState::Unknown => {
                // Without an exit code the restart rules do not apply.
                if !sidecar && RestartPolicy::effective(pod.spec(), container) == RestartPolicy::Never {
                    return InitDecision::Failed;
                }
                walk.changes.replace(run, KillReason::StateUnknown, index);
            }
        }
        walk.ahead = true;
    }
    if !walk.ahead {
        walk.changes.start.push(0);
    }
    walk.changes.start.sort_unstable();
    walk.changes.start.dedup();
    if walk.done { InitDecision::Done(walk.changes) } else { InitDecision::Pending(walk.changes) }
}

/// Whether an init container that exited has completed its work.
pub(super) fn has_completed(run: &ContainerStatus) -> bool {
    Exit::from(run).is_success() && run.reason != "OOMKilled"
}

#[derive(Debug)]
struct InitWalk {
    changes: InitChanges,
    /// Initialization is complete.
    done: bool,
    /// A later container was started already.
    ahead: bool,
}

impl InitWalk {
    /// Records that the init container at `index` has completed or started, which lets the next one start.
    fn passed(&mut self, index: usize, count: usize) {
        if index + 1 == count {
            self.done = true;
        } else if !self.ahead {
            self.changes.start.push(index + 1);
        }
    }
}

/// Whether a created or running regular container proves that initialization was complete. An exited one does not (as
/// in the kubelet): if the runs of the init containers are gone, initialization starts again.
fn is_initialized(pod: &PodObject, sandbox: &SandboxId, status: &PodRuntimeStatus) -> bool {
    pod.containers().iter().any(|container| {
        status
            .newest_in(sandbox, &container.name)
            .is_some_and(|run| matches!(run.state, ContainerState::Created | ContainerState::Running))
    })
}
