//! The limits and CPU shares of pod cgroups, as the kernel's files and values.

use podwright_actors::config::pod_resources::pod_bounds;
use podwright_actors::config::quantity::Amount;
use podwright_actors::pod::PodObject;

use super::cgroup::{CgroupVersion, QosClass};
use super::resources::{PERIOD, quota, shares};

/// One file of a cgroup and the value to write to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CgroupSetting {
    /// The controller. In cgroup version 1 it names the tree.
    pub(crate) controller: &'static str,
    /// The file's name.
    pub(crate) file: &'static str,
    /// The value to write.
    pub(crate) value: String,
}

fn setting(controller: &'static str, file: &'static str, value: impl ToString) -> CgroupSetting {
    CgroupSetting { controller, file, value: value.to_string() }
}

/// The CPU shares and limits of a pod's cgroup, which apply to all its containers together (upstream
/// `cm.ResourceConfigForPod`, kubelet 1.36).
pub(crate) fn of_pod(version: CgroupVersion, pod: &PodObject) -> Vec<CgroupSetting> {
    let bounds = pod_bounds(pod.spec());
    let mut settings = vec![share(version, bounds.cpu_request.millis())];
    let quota = bounds.cpu_limit.map(|limit| quota(limit.millis()));
    let memory = bounds.memory_limit.map(Amount::units);
    match version {
        CgroupVersion::V1 { .. } => {
            settings.extend(quota.iter().flat_map(|quota| {
                [setting("cpu", "cpu.cfs_period_us", PERIOD), setting("cpu", "cpu.cfs_quota_us", quota)]
            }));
            settings.extend(memory.map(|bytes| setting("memory", "memory.limit_in_bytes", bytes)));
        }
        CgroupVersion::V2 { .. } => {
            settings.extend(quota.map(|quota| setting("cpu", "cpu.max", format!("{quota} {PERIOD}"))));
            settings.extend(memory.map(|bytes| setting("memory", "memory.max", bytes)));
        }
    }
    settings
}

/// The CPU shares of a cgroup whose containers request `millis` thousandths of a CPU together.
pub(crate) fn share(version: CgroupVersion, millis: i64) -> CgroupSetting {
    match version {
        CgroupVersion::V1 { .. } => setting("cpu", "cpu.shares", shares(millis)),
        CgroupVersion::V2 { .. } => setting("cpu", "cpu.weight", weight(shares(millis))),
    }
}

/// Converts `cpu.shares` (2 to 262144) to `cpu.weight` (1 to 10000), as KEP-2254 does.
fn weight(shares: i64) -> i64 {
    1 + (shares - 2) * 9999 / 262_142
}

/// The CPU request, in thousandths of a CPU, that a pod adds to the shares of the burstable class. `None` for a pod of another
/// class: the cgroup of a guaranteed pod is not in a class, and the best-effort class has fixed shares.
pub(crate) fn burstable_request(pod: &PodObject) -> Option<i64> {
    (QosClass::of(pod) == QosClass::Burstable).then(|| pod_bounds(pod.spec()).cpu_request.millis())
}
