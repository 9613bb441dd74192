//! The limits and CPU shares of pod cgroups: as the kernel's files and values, and as the properties of systemd slices.

use std::borrow::Cow;
use std::num::NonZeroU64;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_core::config::pod_resources::{pod_bounds, resources_without_overhead};
use podwright_model::pod::PodObject;
use podwright_model::quantity::Amount;
use podwright_ports::CgroupLimits;

use super::cgroup::{CgroupVersion, QosClass};
use super::resources::{PERIOD, page_size, quota, shares};

/// One file of a cgroup and the value to write to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CgroupSetting {
    /// The controller. In cgroup version 1 it names the tree.
    pub(crate) controller: &'static str,
    /// The file's name.
    pub(crate) file: Cow<'static, str>,
    /// The value to write.
    pub(crate) value: String,
}

fn setting(controller: &'static str, file: impl Into<Cow<'static, str>>, value: impl ToString) -> CgroupSetting {
    CgroupSetting { controller, file: file.into(), value: value.to_string() }
}

/// What the pods in one cgroup request and may use together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The CPU requests in thousandths of a CPU. They decide the CPU shares.
    pub(crate) cpu_request: i64,
    /// The CPU limit in thousandths of a CPU.
    pub(crate) cpu_limit: Option<i64>,
    /// The memory limit in bytes.
    pub(crate) memory_limit: Option<i64>,
}

impl Bounds {
    /// The bounds of a pod's cgroup, which apply to all its containers together (upstream `cm.ResourceConfigForPod`, kubelet
    /// 1.36).
    pub(crate) fn of_pod(pod: &PodObject) -> Self {
        let bounds = pod_bounds(pod.spec());
        Bounds {
            cpu_request: bounds.cpu_request.millis(),
            cpu_limit: bounds.cpu_limit.map(Amount::millis),
            memory_limit: bounds.memory_limit.map(Amount::units),
        }
    }

    /// The bounds of a QoS class whose pods request `cpu_request` thousandths of a CPU.
    pub(crate) fn of_class(cpu_request: i64) -> Self {
        Bounds { cpu_request, ..Bounds::default() }
    }
}

/// The bounds as files of a cgroup. A resource without a limit has no file.
pub(crate) fn settings(version: CgroupVersion, bounds: Bounds) -> Vec<CgroupSetting> {
    let Bounds { cpu_request, cpu_limit, memory_limit } = bounds;
    let limits = CgroupLimits { cpu_request: Some(cpu_request), cpu_limit, memory_limit };
    changes(version, limits)
}

/// Some limits as files of a cgroup.
pub(crate) fn changes(version: CgroupVersion, limits: CgroupLimits) -> Vec<CgroupSetting> {
    let mut settings: Vec<_> = limits.cpu_request.map(|millis| share(version, millis)).into_iter().collect();
    let quota = limits.cpu_limit.map(quota);
    let memory = limits.memory_limit;
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

/// The limits of huge pages of a pod's cgroup: one for each page size in bytes that the kernel limits. The limit is that of the pod,
/// or else the sum of its containers' limits, or else 0 (upstream `cgroupCommon.toResources`, kubelet 1.36).
pub(crate) fn huge_pages(version: CgroupVersion, sizes: &[u64], pod: &PodObject) -> Vec<CgroupSetting> {
    let limits = resources_without_overhead(pod.spec()).limits.unwrap_or_default();
    let units = |quantity: &str| Amount::of(&Quantity(quantity.to_owned())).ok().map(Amount::units);
    let limit = |size: u64| {
        let of_size =
            |name: &str| units(name.strip_prefix("hugepages-")?).filter(|own| u64::try_from(*own) == Ok(size));
        let quantity = limits.iter().find_map(|(name, quantity)| of_size(name).map(|_| quantity))?;
        units(&quantity.0)
    };
    let file = match version {
        CgroupVersion::V1 { .. } => "limit_in_bytes",
        CgroupVersion::V2 { .. } => "max",
    };
    let of_size =
        |size: &u64| setting("hugetlb", format!("hugetlb.{}.{file}", page_size(*size)), limit(*size).unwrap_or(0));
    sizes.iter().map(of_size).collect()
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

/// The value of a property without a limit (`CGROUP_LIMIT_MAX` and `USEC_INFINITY` of systemd).
const NO_LIMIT: u64 = u64::MAX;
/// The property for the limit of processes and threads.
const TASKS: &str = "TasksMax";

/// A property of a systemd unit (systemd.resource-control(5)). The value's D-Bus type is `t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceProperty {
    /// The property's name.
    pub(crate) name: &'static str,
    /// The property's value.
    pub(crate) value: u64,
}

/// The limit of processes and threads as a file of a cgroup. Both versions have the same file.
pub(crate) fn processes(most: NonZeroU64) -> CgroupSetting {
    setting("pids", "pids.max", most)
}

/// The limit of processes and threads as a property of a slice.
pub(crate) fn processes_of_slice(most: NonZeroU64) -> SliceProperty {
    SliceProperty { name: TASKS, value: most.get() }
}

/// The bounds as properties of a slice. A resource without a limit has a property that lifts the limit, because the slice may
/// exist with other properties. systemd's default limit of processes for other units does not apply to pods.
pub(crate) fn slice_properties(version: CgroupVersion, bounds: Bounds) -> Vec<SliceProperty> {
    let [share, memory] = property_names(version);
    vec![
        property(share, share_of(version, bounds.cpu_request)),
        property("CPUQuotaPerSecUSec", bounds.cpu_limit.map_or(-1, quota_per_second)),
        property(memory, bounds.memory_limit.unwrap_or(-1)),
        SliceProperty { name: TASKS, value: NO_LIMIT },
    ]
}

/// Some limits as properties of a slice.
pub(crate) fn changed_properties(version: CgroupVersion, limits: CgroupLimits) -> Vec<SliceProperty> {
    let [share, memory] = property_names(version);
    let properties = [
        limits.cpu_request.map(|millis| property(share, share_of(version, millis))),
        limits.cpu_limit.map(|millis| property("CPUQuotaPerSecUSec", quota_per_second(millis))),
        limits.memory_limit.map(|bytes| property(memory, bytes)),
    ];
    properties.into_iter().flatten().collect()
}

/// The names of the properties for the CPU shares and for the memory limit.
fn property_names(version: CgroupVersion) -> [&'static str; 2] {
    match version {
        CgroupVersion::V1 { .. } => ["CPUShares", "MemoryLimit"],
        CgroupVersion::V2 { .. } => ["CPUWeight", "MemoryMax"],
    }
}

fn share_of(version: CgroupVersion, millis: i64) -> i64 {
    match version {
        CgroupVersion::V1 { .. } => shares(millis),
        CgroupVersion::V2 { .. } => weight(shares(millis)),
    }
}

/// A property. A negative value means that there is no limit.
fn property(name: &'static str, value: i64) -> SliceProperty {
    SliceProperty { name, value: u64::try_from(value).unwrap_or(NO_LIMIT) }
}

/// The CPU quota in microseconds of each second. systemd stores the quota in whole percents of a CPU, and its cgroup must not
/// have less than the containers in it, so the quota is rounded up to 10 ms.
fn quota_per_second(millis: i64) -> i64 {
    const PERCENT: i64 = 10_000;
    let quota = quota(millis).saturating_mul(1_000_000 / PERIOD);
    quota.saturating_add(PERCENT - 1) / PERCENT * PERCENT
}
