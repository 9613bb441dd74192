//! The calls that apply a resize, in their order.

use k8s_openapi::api::core::v1::ResourceRequirements;

use super::allocation::{Bounds, with_amounts_of};
use super::changes::{CgroupChange, ContainerChange, ResizeChanges};
use super::decide::amount;
use crate::ids::{ContainerId, ContainerName};
use crate::pod::ContainerKind;
use crate::ports::CgroupLimits;
use crate::quantity::Amount;

/// One call to the runtime or to the cgroup of the pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Changes the resources of a container that runs.
    Container {
        /// The run of the container.
        id: ContainerId,
        /// Its name in the spec.
        name: ContainerName,
        /// The list of the spec that has the container.
        kind: ContainerKind,
        /// The effective resources that the container gets.
        resources: ResourceRequirements,
    },
    /// Sets limits of the pod's cgroup.
    Cgroup(CgroupLimits),
}

/// A resource whose changes are applied together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Memory,
    Cpu,
}

impl ResizeChanges {
    /// Changes memory and then CPU. For each of them, the limits of the pod's cgroup that grow are set before the containers change,
    /// and those that shrink after that, so that the containers never have more than their pod (upstream `doPodResizeAction`,
    /// kubelet 1.36).
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (resource, list) in [(Resource::Memory, &self.memory), (Resource::Cpu, &self.cpu)] {
            steps.extend(self.cgroup_step(resource, true));
            steps.extend(list.iter().map(|change| change.step(resource)));
            steps.extend(self.cgroup_step(resource, false));
        }
        steps
    }

    /// Sets the limits of the pod's cgroup that may be too low, if `grow`, or else those that may be too high. A limit that may be
    /// either first becomes high enough for what the containers may have.
    fn cgroup_step(&self, resource: Resource, grow: bool) -> Option<Step> {
        let CgroupChange { before, in_use, after } = self.cgroup.as_ref()?;
        let change = |of: fn(&Bounds) -> Option<i64>| {
            let after = of(after)?;
            let may_be_low = before.values().any(|bounds| of(bounds).is_none_or(|it| it < after));
            let may_be_high = before.values().any(|bounds| of(bounds).is_some_and(|it| it > after));
            let grown = if may_be_high { of(in_use).unwrap_or(after).max(after) } else { after };
            if grow {
                may_be_low.then_some(grown)
            } else {
                (may_be_high && (!may_be_low || grown > after)).then_some(after)
            }
        };
        let mut limits = CgroupLimits::default();
        match resource {
            Resource::Memory => limits.memory_limit = change(|bounds| bounds.memory_limit),
            Resource::Cpu => {
                limits.cpu_limit = change(|bounds| bounds.cpu_limit);
                limits.cpu_request = change(|bounds| Some(bounds.cpu_request));
            }
        }
        (limits != CgroupLimits::default()).then_some(Step::Cgroup(limits))
    }
}

impl ContainerChange {
    fn step(&self, resource: Resource) -> Step {
        let ContainerChange { id, name, kind, from, to } = self.clone();
        // A container whose memory and CPU both change has the new memory when its CPU changes. Until then it has the least CPU that
        // it may have, because the limit of the pod's cgroup may be too low for more.
        let cpu = |own: &&ResourceRequirements| amount(Some(own), "limits", "cpu").map_or(i64::MAX, Amount::millis);
        let resources = match resource {
            Resource::Memory => with_amounts_of(from.values().min_by_key(cpu).unwrap_or(&to), &to, "memory"),
            Resource::Cpu => to,
        };
        Step::Container { id, name, kind, resources }
    }
}
