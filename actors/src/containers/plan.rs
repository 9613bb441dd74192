//! Which containers of a pod to stop and which to start.
//!
//! [`plan`] compares a pod's spec with what the runtime knows and what the probes say. It is pure and total: the same
//! question always gets the same answer, and performing the answer (see [`perform`](super::perform)) is another room.
//!
//! ```text
//!                     a container exited, and a rule says so
//!        start ----------------------------------------------> RestartAll
//!          | otherwise
//!          v          no usable sandbox
//!      sandbox? ---------------------------------------------> NewSandbox, or StopPod if nothing may run again
//!          | fine
//!          v          an init container failed for good
//!        init? ----------------------------------------------> StopPod
//!          | not done: Keep, start what is next
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

pub use sandbox::{SandboxNeed, sandbox_need};

/// What to do with a pod's containers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Plan {
    /// The sandbox is good; change these containers in it.
    Keep(Changes),
    /// Stop what is left of the old sandbox, make a new one, and start in it.
    NewSandbox {
        /// How many sandboxes the pod had before.
        attempt: u32,
        /// What to start first.
        start: FirstStart,
    },
    /// Stop every container and sandbox and start nothing: the pod has ended.
    StopPod {
        /// Containers that had to be stopped for a reason of their own.
        kills: Vec<Kill>,
    },
    /// Remove every init and regular container, so that all start again (KEP-5532).
    RestartAll {
        /// Those that do not rest yet.
        kills: Vec<Kill>,
        /// All runs, in the order to remove them in. What triggered the restart comes last, so that an interrupted
        /// removal is taken up again.
        remove: Vec<ContainerId>,
        /// The containers that asked for it.
        triggers: Vec<ContainerName>,
    },
}

/// Changes within a good sandbox. The numbers are places in the lists of the spec, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// What to stop first.
    pub kill: Vec<Kill>,
    /// Ephemeral containers to start.
    pub ephemeral: Vec<usize>,
    /// Init containers to start.
    pub init: Vec<usize>,
    /// Regular containers to start.
    pub regular: Vec<usize>,
}

impl Plan {
    /// Whether the plan starts a container that the one before did not, which was just carried out. Then there is more to do
    /// at once: a sidecar that runs makes room for what follows it, and the runtime need not say anything more about it.
    pub fn goes_on(&self, before: &Plan) -> bool {
        let (init, regular) = self.starts();
        let (init_before, regular_before) = before.starts();
        init.iter().any(|place| !init_before.contains(place))
            || regular.iter().any(|place| !regular_before.contains(place))
    }

    /// Which init and regular containers it starts, by place.
    fn starts(&self) -> (&[usize], &[usize]) {
        match self {
            Plan::Keep(changes) => (&changes.init, &changes.regular),
            Plan::NewSandbox { start: FirstStart::Init, .. } => (&[0], &[]),
            Plan::NewSandbox { start: FirstStart::Regular(regular), .. } => (&[], regular),
            Plan::StopPod { .. } | Plan::RestartAll { .. } => (&[], &[]),
        }
    }
}

/// What to start in a new sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstStart {
    /// The first init container; every older run of an init container is removed.
    Init,
    /// These regular containers, by place in the spec.
    Regular(Vec<usize>),
}

/// One container run to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Which run.
    pub id: ContainerId,
    /// Of which container.
    pub name: ContainerName,
    /// Why.
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
    /// Its definition changed.
    HashChanged,
    /// Its liveness probe failed.
    LivenessFailed,
    /// Its startup probe failed.
    StartupFailed,
    /// The runtime does not know what it does.
    StateUnknown,
    /// Its post-start hook failed.
    PostStartFailed,
    /// A newer run of its container was made: its start was given up, and took effect later.
    Outlived,
    /// Every container of the pod is started again.
    RestartAll,
}

/// Decides what to do with a pod's containers.
pub fn plan(pod: &PodObject, status: &PodRuntimeStatus, probes: &ProbeSnapshot) -> Plan {
    if let Some(plan) = restart_all::decide(pod, status) {
        return plan;
    }
    let sandbox = match sandbox_need(pod, status) {
        SandboxNeed::New { attempt } => return sandbox::replace(pod, status, attempt),
        SandboxNeed::Keep(id) => id,
    };
    // A debugging container is started once, even while the pod still initializes.
    let ephemeral = absent(pod.ephemeral_containers().iter().map(|c| c.name.as_str()), status);
    let (of_init, init, initialized) = match init::decide(pod, &sandbox, status, probes) {
        init::Decision::Failed => return Plan::StopPod { kills: Vec::new() },
        init::Decision::Pending(actions) => (actions.kill, actions.start, false),
        init::Decision::Done(actions) => (actions.kill, actions.start, true),
    };
    let mut kill = outlived(status);
    kill.extend(of_init);
    if !initialized {
        return Plan::Keep(Changes { sandbox, kill, ephemeral, init, regular: Vec::new() });
    }
    let regular = regular::decide(pod, status, probes);
    kill.extend(regular.kill);
    if !regular.keeps_any && regular.start.is_empty() {
        // Sidecars that were to be started again are not: they live only for the regular containers.
        return Plan::StopPod { kills: kill };
    }
    Plan::Keep(Changes { sandbox, kill, ephemeral, init, regular: regular.start })
}

/// The runs of which two would run at once.
fn outlived(status: &PodRuntimeStatus) -> Vec<Kill> {
    let is_newest = |run: &ContainerStatus| status.newest(run.name.as_str()).is_some_and(|newest| newest.id == run.id);
    let running = status.containers.iter().filter(|run| run.state == ContainerState::Running);
    running.filter(|run| !is_newest(run)).map(|run| Kill::of(run, KillReason::Outlived)).collect()
}

fn absent<'a>(names: impl Iterator<Item = &'a str>, status: &PodRuntimeStatus) -> Vec<usize> {
    names.enumerate().filter(|(_, name)| status.newest(name).is_none()).map(|(place, _)| place).collect()
}
