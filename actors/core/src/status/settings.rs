//! The settings of a container that its status shows: volume mounts, user and resources.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ContainerUser, LinuxContainerUser, ResourceRequirements, VolumeMount, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::config::resource_amount::ResourceAmount;
use crate::containers::definition::Definition;
use crate::pod::PodObject;
use crate::ports::{ContainerState, ContainerStatus};
use crate::quantity::Amount;

/// The least CPU limit that the kernel can apply, in thousandths of one CPU (upstream `MinMilliCPULimit`, kubelet 1.36).
const LEAST_CPU_LIMIT: i64 = 10;
/// The least CPU request that the kernel can apply (upstream `MinShares`, kubelet 1.36).
const LEAST_CPU_REQUEST: i64 = 2;

/// Whether a mount of the pod may become read-only with all mounts below it, if the runtime supports that.
pub fn wants_recursive_read_only(pod: &PodObject) -> bool {
    Definition::all(pod).flat_map(Definition::mounts).any(|mount| is_recursive(mount, true))
}

/// Whether a read-only mount makes the mounts below it read-only too (KEP-3857).
fn is_recursive(mount: &VolumeMount, supported: bool) -> bool {
    supported && matches!(mount.recursive_read_only.as_deref(), Some("IfPossible" | "Enabled"))
}

/// The mounts in a container's status. Only a read-only mount has the field `recursiveReadOnly`.
pub(super) fn volume_mounts(mounts: &[VolumeMount], supported: bool) -> Option<Vec<VolumeMountStatus>> {
    let status = |mount: &VolumeMount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only.filter(|read_only| *read_only),
        recursive_read_only: (mount.read_only == Some(true))
            .then(|| if is_recursive(mount, supported) { "Enabled" } else { "Disabled" }.to_owned()),
        ..VolumeMountStatus::default()
    };
    (!mounts.is_empty()).then(|| mounts.iter().map(status).collect())
}

/// The user of a container's first process, if the runtime reports it.
pub(super) fn user(run: &ContainerStatus) -> Option<ContainerUser> {
    let user = run.applied.as_ref()?.user.as_ref()?;
    let groups = Some(user.groups.clone()).filter(|groups| !groups.is_empty());
    Some(ContainerUser {
        linux: Some(LinuxContainerUser { uid: user.uid, gid: user.gid, supplemental_groups: groups }),
    })
}

/// The resources in a container's status: those of the spec, with the CPU and the memory that a running container has. They are what
/// the runtime reports (upstream `convertContainerStatusResources`, kubelet 1.36). Where it reports nothing, they are those of the
/// last resize that was applied: `in_use`, or the spec's if there is none.
pub(super) fn resources(
    spec: Option<&ResourceRequirements>,
    run: &ContainerStatus,
    in_use: Option<&ResourceRequirements>,
) -> ResourceRequirements {
    let mut resources = spec.cloned().unwrap_or_default();
    if run.state != ContainerState::Running {
        return resources;
    }
    let applied = run.applied.as_deref();
    let used_limits = in_use.and_then(|used| used.limits.as_ref());
    let used_requests = in_use.and_then(|used| used.requests.as_ref());
    if let Some(limits) = &mut resources.limits {
        let cpu =
            applied.and_then(|applied| applied.cpu_limit).map(|millis| Applied::Cpu { millis, least: LEAST_CPU_LIMIT });
        show(limits, used_limits, "cpu", cpu);
        show(limits, used_limits, "memory", applied.and_then(|applied| applied.memory_limit).map(Applied::Bytes));
    }
    if let Some(requests) = &mut resources.requests {
        let cpu = applied
            .and_then(|applied| applied.cpu_request)
            .map(|millis| Applied::Cpu { millis, least: LEAST_CPU_REQUEST });
        show(requests, used_requests, "cpu", cpu);
        // No runtime knows the memory request.
        show(requests, used_requests, "memory", None);
    }
    resources
}

/// An amount that the runtime applied.
#[derive(Clone, Copy)]
enum Applied {
    /// `least` is the least amount that the kernel can apply.
    Cpu {
        millis: i64,
        least: i64,
    },
    Bytes(i64),
}

fn show(
    shown: &mut BTreeMap<String, Quantity>,
    used: Option<&BTreeMap<String, Quantity>>,
    name: &str,
    applied: Option<Applied>,
) {
    let Some(applied) = applied else {
        if let Some(used) = used.and_then(|used| used.get(name)) {
            shown.insert(name.to_owned(), used.clone());
        }
        return;
    };
    let requested = shown.get(name).and_then(|quantity| Amount::of(quantity).ok());
    let text = match applied {
        // The kernel raised the amount. The spec's amount is clearer.
        Applied::Cpu { millis, least } if millis <= least && requested.is_none_or(|it| it.millis() <= least) => return,
        Applied::Cpu { millis, .. } => format!("{millis}m"),
        Applied::Bytes(bytes) => format!("{bytes}"),
    };
    let quantity = Quantity(text);
    // An equal amount keeps the text of the spec.
    if requested.is_some() && requested == Amount::of(&quantity).ok() {
        return;
    }
    let family = if matches!(applied, Applied::Bytes(_)) { ResourceAmount::binary } else { ResourceAmount::parse };
    shown.insert(name.to_owned(), family(&quantity).map_or(quantity, ResourceAmount::to_quantity));
}
