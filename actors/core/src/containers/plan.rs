//! Decides which containers of a pod to stop and which to start. Pure.
//!
//! [`plan`] compares the pod's spec with its runtime status and its probe results. It is total, and equal inputs
//! give equal plans. The container manager performs the plan.
//!
//! ```text
//!                     a container exited, and a rule says so
//!        start ----------------------------------------------> RestartAll
//!          | otherwise
//!          v          no usable sandbox
//!      sandbox? ---------------------------------------------> NewSandbox, or StopPod if nothing may run again
//!          | usable
//!          v          an init container failed for good
//!        init? ----------------------------------------------> StopPod
//!          | not complete: Keep, start the next
//!          v          nothing runs and nothing may start
//!      regular? ---------------------------------------------> StopPod
//!          | otherwise: Keep
//! ```

mod init;
mod regular;
mod restart_all;
mod sandbox;
#[cfg(test)]
mod tests;

use crate::ids::{ContainerId, ContainerName, SandboxId};
use crate::pod::PodObject;
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus};
use crate::probes::ProbeSnapshot;

pub(crate) use sandbox::{SandboxNeed, sandbox_need};

/// The changes to a pod's containers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Plan {
    /// The sandbox is usable; change these containers in it.
    Keep(Changes),
    /// Stop what remains of the old sandbox, create a new sandbox, and start containers in it.
    NewSandbox {
        /// The number of sandboxes that the pod had before.
        attempt: u32,
        /// The containers to start first.
        start: FirstStart,
    },
    /// Stop every container and sandbox and start nothing, because the pod has ended.
    StopPod {
        /// The containers to stop for a reason of their own.
        kills: Vec<Kill>,
    },
    /// Remove every init and regular container, so that all start again (KEP-5532).
    RestartAll {
        /// The containers that still run.
        kills: Vec<Kill>,
        /// All runs, in the order of their removal. The runs whose exits triggered the restart come last, so that an
        /// interrupted removal is continued.
        remove: Vec<ContainerId>,
        /// The containers whose exits triggered the restart.
        triggers: Vec<ContainerName>,
    },
}

/// The changes in a usable sandbox. The numbers are indexes into the lists of the spec, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The containers to stop first.
    pub kill: Vec<Kill>,
    /// The ephemeral containers to start.
    pub ephemeral: Vec<usize>,
    /// The init containers to start.
    pub init: Vec<usize>,
    /// The regular containers to start.
    pub regular: Vec<usize>,
}

impl Plan {
    /// Whether this plan starts a container that the plan `before`, which was just performed, did not start. Then the
    /// pod must be synced again at once: a started sidecar lets the next container start, and the runtime may report no
    /// further event.
    pub fn starts_more_than(&self, before: &Plan) -> bool {
        let (init, regular) = self.starts();
        let (init_before, regular_before) = before.starts();
        init.iter().any(|index| !init_before.contains(index))
            || regular.iter().any(|index| !regular_before.contains(index))
    }

    /// The indexes of the init and regular containers that the plan starts.
    fn starts(&self) -> (&[usize], &[usize]) {
        match self {
            Plan::Keep(changes) => (&changes.init, &changes.regular),
            Plan::NewSandbox { start: FirstStart::Init, .. } => (&[0], &[]),
            Plan::NewSandbox { start: FirstStart::Regular(regular), .. } => (&[], regular),
            Plan::StopPod { .. } | Plan::RestartAll { .. } => (&[], &[]),
        }
    }
}

/// The containers to start first in a new sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstStart {
    /// The first init container. Every older run of an init container is removed.
    Init,
    /// These regular containers, by index into the spec's list.
    Regular(Vec<usize>),
}

/// A container run to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The run.
    pub id: ContainerId,
    /// The run's container.
    pub name: ContainerName,
    /// Why the run is stopped.
    pub reason: KillReason,
}

impl Kill {
    fn of(run: &ContainerStatus, reason: KillReason) -> Self {
        Kill { id: run.id.clone(), name: run.name.clone(), reason }
    }
}

/// Why a container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KillReason {
    /// The pod stops, or its sandbox is replaced.
    PodStops,
    /// The container's definition changed.
    HashChanged,
    /// The container's liveness probe failed.
    LivenessFailed,
    /// The container's startup probe failed.
    StartupFailed,
    /// The runtime does not know the container's state.
    StateUnknown,
    /// The container's post-start hook failed.
    PostStartFailed,
    /// A newer run of the container exists: an abandoned start took effect late.
    Superseded,
    /// The container was resized, and its resize policy requires a restart.
    Resize,
    /// All containers of the pod start again.
    RestartAll,
}

/// Plans the changes to a pod's containers.
pub fn plan(pod: &PodObject, status: &PodRuntimeStatus, probes: &ProbeSnapshot) -> Plan {
    if let Some(plan) = restart_all::decide(pod, status) {
        return plan;
    }
    let sandbox = match sandbox_need(pod, status) {
        SandboxNeed::New { attempt } => return sandbox::replace(pod, status, attempt),
        SandboxNeed::Keep(id) => id,
    };
    // An ephemeral container starts once, even while the pod initializes.
    let ephemeral = absent(pod.ephemeral_containers().iter().map(|c| c.name.as_str()), status);
    let (of_init, init, initialized) = match init::decide(pod, &sandbox, status, probes) {
        init::InitDecision::Failed => return Plan::StopPod { kills: Vec::new() },
        init::InitDecision::Pending(changes) => (changes.kill, changes.start, false),
        init::InitDecision::Done(changes) => (changes.kill, changes.start, true),
    };
    let mut kill = superseded(status);
    kill.extend(of_init);
    if !initialized {
        return Plan::Keep(Changes { sandbox, kill, ephemeral, init, regular: Vec::new() });
    }
    let regular = regular::decide(pod, status, probes);
    kill.extend(regular.kill);
    if !regular.keeps_any && regular.start.is_empty() {
        // The sidecars that were to start do not: sidecars live only as long as the regular containers.
        return Plan::StopPod { kills: kill };
    }
    Plan::Keep(Changes { sandbox, kill, ephemeral, init, regular: regular.start })
}

/// Stops the older of two running runs of a container.
fn superseded(status: &PodRuntimeStatus) -> Vec<Kill> {
    let is_newest = |run: &ContainerStatus| status.newest(run.name.as_str()).is_some_and(|newest| newest.id == run.id);
    let running = status.containers.iter().filter(|run| run.state == ContainerState::Running);
    running.filter(|run| !is_newest(run)).map(|run| Kill::of(run, KillReason::Superseded)).collect()
}

fn absent<'a>(names: impl Iterator<Item = &'a str>, status: &PodRuntimeStatus) -> Vec<usize> {
    names.enumerate().filter(|(_, name)| status.newest(name).is_none()).map(|(index, _)| index).collect()
}
