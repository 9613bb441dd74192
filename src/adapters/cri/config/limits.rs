//! What the cgroups of pods are set to, in the words of the kernel.

use podwright_actors::config::quantity::Amount;
use podwright_actors::pod::PodObject;
use podwright_actors::status::pod_bounds;

use super::cgroup::{Qos, Version};
use super::resources::{PERIOD, quota, shares};

/// One file of a cgroup, and what is written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// In which tree of version 1.
    pub(crate) controller: &'static str,
    /// The file's name.
    pub(crate) file: &'static str,
    /// What it is to hold.
    pub(crate) value: String,
}

fn setting(controller: &'static str, file: &'static str, value: impl ToString) -> Setting {
    Setting { controller, file, value: value.to_string() }
}

/// How a pod shares and what it may have: its containers together get no more (upstream `cm.ResourceConfigForPod`, kubelet
/// 1.36).
pub(crate) fn of_pod(version: Version, pod: &PodObject) -> Vec<Setting> {
    let bounds = pod_bounds(pod.spec());
    let mut settings = vec![share(version, bounds.cpu_request.millis())];
    let quota = bounds.cpu_limit.map(|limit| quota(limit.millis()));
    let memory = bounds.memory_limit.map(Amount::units);
    match version {
        Version::V1 { .. } => {
            settings.extend(quota.iter().flat_map(|quota| {
                [setting("cpu", "cpu.cfs_period_us", PERIOD), setting("cpu", "cpu.cfs_quota_us", quota)]
            }));
            settings.extend(memory.map(|bytes| setting("memory", "memory.limit_in_bytes", bytes)));
        }
        Version::V2 { .. } => {
            settings.extend(quota.map(|quota| setting("cpu", "cpu.max", format!("{quota} {PERIOD}"))));
            settings.extend(memory.map(|bytes| setting("memory", "memory.max", bytes)));
        }
    }
    settings
}

/// How a cgroup shares the processors with those beside it, for so many thousandths of a core asked for in it.
pub(crate) fn share(version: Version, millis: i64) -> Setting {
    match version {
        Version::V1 { .. } => setting("cpu", "cpu.shares", shares(millis)),
        Version::V2 { .. } => setting("cpu", "cpu.weight", weight(shares(millis))),
    }
}

/// `cpu.shares` (2 to 262144) as `cpu.weight` (1 to 10000) (KEP-2254).
fn weight(shares: i64) -> i64 {
    1 + (shares - 2) * 9999 / 262_142
}

/// What a pod adds to the share of its class; `None` where that does not depend on its pods: who is guaranteed shares beside
/// the classes, and best effort gets what is left.
pub(crate) fn adds_to_burstable(pod: &PodObject) -> Option<i64> {
    (Qos::of(pod) == Qos::Burstable).then(|| pod_bounds(pod.spec()).cpu_request.millis())
}
