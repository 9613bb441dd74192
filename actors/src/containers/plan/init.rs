//! How far initialization is, and what brings it on.

use crate::containers::definition::spec_hash;
use crate::containers::restart::{OnExit, RestartPolicy, on_exit};
use crate::ids::SandboxId;
use crate::pod::{PodObject, is_sidecar};
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus};
use crate::probes::{ProbeResult, ProbeSnapshot};

use super::{Kill, KillReason};

/// Exit code that the rules of an out-of-memory kill see when the runtime reports none.
const OOM_KILLED: i32 = 137;

/// Where initialization stands.
#[derive(Debug)]
pub(super) enum Decision {
    /// An init container failed and may not run again.
    Failed,
    /// It goes on.
    Pending(Actions),
    /// It is over; sidecars may still need something.
    Done(Actions),
}

/// What the init containers need.
#[derive(Debug, Default)]
pub(super) struct Actions {
    pub(super) kill: Vec<Kill>,
    /// Places in the spec, ascending.
    pub(super) start: Vec<usize>,
}

impl Actions {
    fn replace(&mut self, run: &ContainerStatus, reason: KillReason, place: usize) {
        self.kill.push(Kill::of(run, reason));
        self.start.push(place);
    }
}

/// Walks the init containers from last to first, because the runs of earlier ones may have been removed since: the first
/// one met that has a run tells how far initialization is (upstream `computeInitContainerActions`, kubelet 1.36).
///
/// Unlike upstream, only runs in the pod's sandbox count. A new sandbox has the older runs removed, but a removal can
/// fail, and what an init container did in a sandbox that is gone has to be done again.
pub(super) fn decide(
    pod: &PodObject,
    sandbox: &SandboxId,
    status: &PodRuntimeStatus,
    probes: &ProbeSnapshot,
) -> Decision {
    let containers = pod.init_containers();
    if containers.is_empty() {
        return Decision::Done(Actions::default());
    }
    let mut walk = Walk { actions: Actions::default(), done: main_seen(pod, sandbox, status), ahead: false };
    walk.ahead = walk.done;
    for (place, container) in containers.iter().enumerate().rev() {
        let sidecar = is_sidecar(container);
        let Some(run) = status.newest_in(sandbox, &container.name) else {
            // A sidecar whose run was removed is missed; a regular init container has done its work.
            if walk.ahead && sidecar {
                walk.actions.start.push(place);
            }
            continue;
        };
        if walk.ahead && !sidecar {
            continue;
        }
        match run.state {
            ContainerState::Created => walk.actions.start.push(place),
            ContainerState::Running if sidecar => {
                let probe = probes.get(&run.id).copied().unwrap_or_default();
                let started = match container.startup_probe.as_ref().map(|_| probe.startup) {
                    None | Some(Some(ProbeResult::Success)) => true,
                    Some(None | Some(ProbeResult::Unknown)) => false,
                    Some(Some(ProbeResult::Failure)) => {
                        walk.actions.replace(run, KillReason::StartupFailed, place);
                        false
                    }
                };
                if started {
                    walk.passed(place, containers.len());
                    if run.spec_hash != spec_hash(container) {
                        walk.actions.replace(run, KillReason::HashChanged, place);
                    } else if container.liveness_probe.is_some() && probe.liveness == Some(ProbeResult::Failure) {
                        walk.actions.replace(run, KillReason::LivenessFailed, place);
                    }
                }
            }
            ContainerState::Running => {}
            ContainerState::Exited if sidecar => walk.actions.start.push(place),
            ContainerState::Exited if has_failed(run) => {
                let exit_code = if run.exit_code == 0 { OOM_KILLED } else { run.exit_code };
                match on_exit(pod.spec(), container, exit_code, true) {
                    OnExit::Stay => return Decision::Failed,
                    OnExit::Restart | OnExit::RestartAllContainers => walk.actions.start.push(place),
                }
            }
            ContainerState::Exited => walk.passed(place, containers.len()),
            ContainerState::Unknown => {
                // There is no exit code, so the rules have no say.
                if !sidecar && RestartPolicy::effective(pod.spec(), container) == RestartPolicy::Never {
                    return Decision::Failed;
                }
                walk.actions.replace(run, KillReason::StateUnknown, place);
            }
        }
        walk.ahead = true;
    }
    if !walk.ahead {
        walk.actions.start.push(0);
    }
    walk.actions.start.sort_unstable();
    walk.actions.start.dedup();
    if walk.done { Decision::Done(walk.actions) } else { Decision::Pending(walk.actions) }
}

/// Whether an init container that ended did not do its work.
pub(super) fn has_failed(run: &ContainerStatus) -> bool {
    run.exit_code != 0 || run.reason == "OOMKilled"
}

#[derive(Debug)]
struct Walk {
    actions: Actions,
    /// Initialization is over.
    done: bool,
    /// A container further on has been started already.
    ahead: bool,
}

impl Walk {
    /// A container has done its part: on to the next, unless that was reached before.
    fn passed(&mut self, place: usize, count: usize) {
        if place + 1 == count {
            self.done = true;
        } else if !self.ahead {
            self.actions.start.push(place + 1);
        }
    }
}

/// A regular container that was made proves that initialization was over. One that exited does not, as
/// upstream has it: without a run of an init container beside it, initialization starts over.
fn main_seen(pod: &PodObject, sandbox: &SandboxId, status: &PodRuntimeStatus) -> bool {
    pod.containers().iter().any(|container| {
        status
            .newest_in(sandbox, &container.name)
            .is_some_and(|run| matches!(run.state, ContainerState::Created | ContainerState::Running))
    })
}
