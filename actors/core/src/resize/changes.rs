//! Plans how a sync applies an allocated resize.

use std::cmp::Ordering;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};

use super::actuated::{Actual, Actuated};
use super::allocation::{Bounds, Resizable, effective, resizable};
use super::decide::amount;
use crate::containers::plan::{Kill, KillReason, Plan};
use crate::ids::{ContainerId, ContainerName};
use crate::pod::{ContainerKind, PodObject};
use crate::ports::{ContainerState, PodRuntimeStatus};
use crate::quantity::Amount;

/// The changes that give the running containers and the cgroup of a pod the allocated resources. Memory is changed before CPU, and in
/// each list decreases come before increases (upstream `computePodResizeAction`, kubelet 1.36).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResizeChanges {
    /// The containers that are stopped and started again, because their resize policies require that for a resource that changes.
    pub restart: Vec<ResizeRestart>,
    /// The containers whose memory changes while they run.
    pub memory: Vec<ContainerChange>,
    /// The containers whose CPU changes while they run.
    pub cpu: Vec<ContainerChange>,
    /// The change of the pod's cgroup, if its bounds may differ from the allocated ones.
    pub cgroup: Option<CgroupChange>,
}

/// The bounds of a cgroup that change.
#[derive(Clone, Debug, PartialEq)]
pub struct CgroupChange {
    /// The bounds that the cgroup has.
    pub before: Actual<Bounds>,
    /// The bounds that follow from the largest resources that the containers may have.
    pub in_use: Bounds,
    /// The allocated bounds.
    pub after: Bounds,
}

/// A container that is stopped and started again with the allocated resources.
#[derive(Clone, Debug, PartialEq)]
pub struct ResizeRestart {
    /// The stop of the container.
    pub kill: Kill,
    /// The list of the spec that has the container.
    pub kind: ContainerKind,
    /// The index in the list of the spec.
    pub index: usize,
}

/// A container whose resources change while it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerChange {
    /// The run of the container.
    pub id: ContainerId,
    /// Its name in the spec.
    pub name: ContainerName,
    /// The list of the spec that has the container.
    pub kind: ContainerKind,
    /// The effective resources that the container has.
    pub from: Actual<ResourceRequirements>,
    /// The effective resources that are allocated to the container.
    pub to: ResourceRequirements,
}

impl ResizeChanges {
    /// Plans the changes for a pod with allocated resources, beside the other changes of a sync. `None` if there is nothing to do.
    pub fn plan(
        actuated: &Actuated,
        pod: &PodObject,
        status: &PodRuntimeStatus,
        planned: &Plan,
    ) -> Option<ResizeChanges> {
        let mut changes = ResizeChanges::default();
        match planned {
            Plan::Keep(others) => resizable(pod).for_each(|it| changes.add(actuated, pod, it, status, &others.kill)),
            // The containers start again, with the allocated resources.
            Plan::NewSandbox { .. } | Plan::RestartAll { .. } => {}
            Plan::StopPod { .. } => return None,
        }
        for (list, name) in [(&mut changes.memory, "memory"), (&mut changes.cpu, "cpu")] {
            list.sort_by_key(|change| change.is_increase(name));
        }
        let after = Bounds::of(pod);
        changes.cgroup = (!actuated.cgroup.has(after)).then(|| {
            let in_use = Bounds::of_spec(&actuated.spec_in_use(pod));
            CgroupChange { before: actuated.cgroup.clone(), in_use, after }
        });
        (changes != ResizeChanges::default()).then_some(changes)
    }

    /// Adds the changes that a container needs.
    fn add(
        &mut self,
        actuated: &Actuated,
        pod: &PodObject,
        it: Resizable<'_>,
        status: &PodRuntimeStatus,
        kills: &[Kill],
    ) {
        let Resizable { kind, index, container } = it;
        let Some(from) = actuated.containers.get(&container.name) else { return };
        let run = status.newest(&container.name).filter(|run| run.state == ContainerState::Running);
        // A container that is stopped for another reason starts again with the allocated resources.
        let Some(run) = run.filter(|run| !kills.iter().any(|kill| kill.id == run.id)) else { return };
        let to = effective(pod, container);
        let has = |own: &ResourceRequirements, name| {
            ["limits", "requests"].iter().all(|of| amount(Some(own), of, name) == amount(Some(&to), of, name))
        };
        let differs = |name| from.values().any(|own| !has(own, name));
        let (cpu, memory) = (differs("cpu"), differs("memory"));
        if (cpu && requires_restart(container, "cpu")) || (memory && requires_restart(container, "memory")) {
            let kill = Kill { id: run.id.clone(), name: run.name.clone(), reason: KillReason::Resize };
            self.restart.push(ResizeRestart { kill, kind, index });
            return;
        }
        let change = ContainerChange { id: run.id.clone(), name: run.name.clone(), kind, from: from.clone(), to };
        if memory {
            self.memory.push(change.clone());
        }
        if cpu {
            self.cpu.push(change);
        }
    }
}

impl ContainerChange {
    /// Whether the limit of a resource certainly does not shrink, nor its request if the limit stays, and one of them may grow. A
    /// missing limit counts as zero, as upstream.
    fn is_increase(&self, name: &str) -> bool {
        let change = |from: &ResourceRequirements| {
            let of = |list| {
                let value = |resources| amount(Some(resources), list, name).unwrap_or(Amount::ZERO);
                value(&self.to).cmp(&value(from))
            };
            of("limits").then(of("requests"))
        };
        self.from.values().map(change).min() >= Some(Ordering::Equal)
            && self.from.values().map(change).max() == Some(Ordering::Greater)
    }

    /// The memory limit in bytes, if it may become lower than before. A container without a limit may use more than any limit.
    pub(crate) fn lower_memory_limit(&self) -> Option<i64> {
        let of = |resources| amount(Some(resources), "limits", "memory");
        of(&self.to)
            .filter(|to| self.from.values().map(of).any(|from| from.is_none_or(|from| *to < from)))
            .map(Amount::units)
    }
}

fn requires_restart(container: &Container, name: &str) -> bool {
    let policies = container.resize_policy.iter().flatten();
    policies.into_iter().any(|policy| policy.resource_name == name && policy.restart_policy == "RestartContainer")
}

/// The memory limits that a resize lowers or adds, in bytes: that of the pod's cgroup, and those of containers by name.
pub fn decreased_limits(changes: &ResizeChanges) -> (Option<i64>, Vec<(&ContainerName, i64)>) {
    let of_pod = changes.cgroup.as_ref().and_then(|CgroupChange { before, after, .. }| {
        let is_lower = |after: &i64| before.values().any(|it| it.memory_limit.is_none_or(|before| *after < before));
        after.memory_limit.filter(is_lower)
    });
    let of = |change: &ContainerChange| change.lower_memory_limit();
    (of_pod, changes.memory.iter().filter_map(|change| Some((&change.name, of(change)?))).collect())
}
