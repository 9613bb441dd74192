//! The resource limits and OOM scores of sandboxes and containers, in the kernel's units.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_core::config::oom_score::{InvalidMemoryRequest, oom_score_adj};
use podwright_core::config::pod_resources::resources_without_overhead;
use podwright_core::containers::definition::Definition;
use podwright_model::pod::PodObject;
use podwright_model::quantity::Amount;

use super::cgroup::CgroupVersion;
use super::error::ConfigError;
use super::inputs::NodeFacts;
use super::swap::swap_limit;
use crate::v1;

/// The kernel's range of `cpu.shares`. A container without a CPU request gets the minimum (upstream `MilliCPUToShares`,
/// kubelet 1.36).
const SHARES: std::ops::RangeInclusive<i64> = 2..=262_144;
/// The period of the CPU quota in microseconds (upstream `QuotaPeriod`, kubelet 1.36).
pub(super) const PERIOD: i64 = 100_000;
/// The smallest CPU quota in microseconds (upstream `MinQuotaPeriod`, kubelet 1.36).
const MIN_QUOTA: i64 = 1000;
/// The file of a cgroup of version 2 that limits swap space.
const SWAP_LIMIT: &str = "memory.swap.max";

/// The CPU request, and the CPU and memory limits, of a container or pod. A CPU request of zero differs from no request.
#[derive(Clone, Copy, Debug, Default)]
struct ComputeResources {
    cpu_request: Option<Amount>,
    cpu_limit: Option<Amount>,
    memory_limit: Option<Amount>,
}

impl ComputeResources {
    /// Parses the resources of `owner`: the name of a container, or the field of the pod spec.
    fn parse(owner: &str, resources: Option<&ResourceRequirements>) -> Result<Self, ConfigError> {
        let Some(resources) = resources else { return Ok(ComputeResources::default()) };
        let read = |list: &str, map: &Option<BTreeMap<String, Quantity>>, name: &str| {
            map.as_ref().and_then(|map| map.get(name)).map(|quantity| amount(owner, list, name, quantity)).transpose()
        };
        Ok(ComputeResources {
            cpu_request: read("requests", &resources.requests, "cpu")?,
            cpu_limit: read("limits", &resources.limits, "cpu")?,
            memory_limit: read("limits", &resources.limits, "memory")?,
        })
    }

    /// The requests and limits in the kernel's units. A container with a CPU limit and no CPU request requests its limit
    /// (upstream `calculateLinuxResources`, kubelet 1.36).
    fn in_cgroup(self, version: CgroupVersion) -> v1::LinuxContainerResources {
        let cpu_limit = self.cpu_limit.map_or(0, Amount::millis);
        let unified = match version {
            CgroupVersion::V1 { .. } => HashMap::new(),
            // If the kernel kills one process of a container because memory is short, it kills the whole container. A
            // container that lost one process would be in an undefined state.
            CgroupVersion::V2 { .. } => HashMap::from([("memory.oom.group".to_owned(), "1".to_owned())]),
        };
        v1::LinuxContainerResources {
            cpu_period: PERIOD,
            cpu_quota: quota(cpu_limit),
            cpu_shares: shares(self.cpu_request.map_or(cpu_limit, Amount::millis)),
            memory_limit_in_bytes: bytes(self.memory_limit),
            unified,
            ..Default::default()
        }
    }
}

fn amount(owner: &str, list: &str, name: &str, quantity: &Quantity) -> Result<Amount, ConfigError> {
    Amount::of(quantity)
        .map_err(|source| ConfigError::Quantity { field: format!("{owner}: resources.{list}.{name}"), source })
}

/// An amount of memory in bytes. `None` is 0.
fn bytes(amount: Option<Amount>) -> i64 {
    amount.map_or(0, Amount::units)
}

/// The `cpu.shares` for a CPU request in thousandths of a CPU.
pub(super) fn shares(millis: i64) -> i64 {
    (millis.saturating_mul(1024) / 1000).clamp(*SHARES.start(), *SHARES.end())
}

/// The CPU quota in microseconds of each period, for a CPU limit in thousandths of a CPU. 0 means no limit.
pub(super) fn quota(millis: i64) -> i64 {
    if millis == 0 { 0 } else { millis.saturating_mul(PERIOD / 1000).max(MIN_QUOTA) }
}

/// The resources of a container. If it has no limit of its own, the limit of the whole pod applies (KEP-2837).
pub(super) fn of_container(
    facts: &NodeFacts,
    pod: &PodObject,
    container: Definition<'_>,
) -> Result<v1::LinuxContainerResources, ConfigError> {
    let mut requested = ComputeResources::parse(container.name(), container.resources())?;
    let whole = ComputeResources::parse("spec", pod.spec().resources.as_ref())?;
    let or = |own: Option<Amount>, whole: Option<Amount>| own.filter(|own| *own != Amount::ZERO).or(whole);
    requested.cpu_limit = or(requested.cpu_limit, whole.cpu_limit);
    requested.memory_limit = or(requested.memory_limit, whole.memory_limit);

    let mut resources = requested.in_cgroup(facts.cgroups.version);
    match facts.cgroups.version {
        // In version 1 the swap limit is the limit of memory and swap together.
        CgroupVersion::V1 { swap: true } => resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes,
        CgroupVersion::V2 { swap: true } => {
            let limit = swap_limit(facts, pod, container);
            resources.unified.insert(SWAP_LIMIT.to_owned(), limit.to_string());
        }
        CgroupVersion::V1 { swap: false } | CgroupVersion::V2 { swap: false } => {}
    }
    resources.hugepage_limits = huge_pages(&facts.huge_pages, pod, container)?;
    resources.oom_score_adj = oom_score_adj(pod, container.kind(), container.name(), facts.memory)
        .map_err(|InvalidMemoryRequest { field, source }| ConfigError::Quantity { field, source })?;
    Ok(resources)
}

/// The resources of a running container that is resized. What is 0 or empty stays as it is.
pub(crate) fn updated(
    facts: &NodeFacts,
    pod: &PodObject,
    container: Definition<'_>,
) -> Result<v1::LinuxContainerResources, ConfigError> {
    let mut all = of_container(facts, pod, container)?;
    // The limit of swap space follows the memory request.
    let swap = all.unified.remove_entry(SWAP_LIMIT).filter(|_| facts.shared_swap.is_some());
    let unified = swap.into_iter().collect();
    Ok(v1::LinuxContainerResources { oom_score_adj: 0, hugepage_limits: Vec::new(), unified, ..all })
}

/// The resources of a pod's containers together, and the pod's overhead. Runtimes that run a sandbox as a virtual machine set
/// its size from them (upstream `applySandboxResources`, kubelet 1.36).
pub(super) fn of_sandbox(
    facts: &NodeFacts,
    pod: &PodObject,
) -> Result<(v1::LinuxContainerResources, v1::LinuxContainerResources), ConfigError> {
    let spec = pod.spec();
    let version = facts.cgroups.version;
    let resources = ComputeResources::parse("spec", Some(&resources_without_overhead(spec)))?.in_cgroup(version);
    let Some(overhead) = &spec.overhead else { return Ok((resources, v1::LinuxContainerResources::default())) };
    let both = ResourceRequirements { claims: None, limits: Some(overhead.clone()), requests: Some(overhead.clone()) };
    Ok((resources, ComputeResources::parse("spec.overhead", Some(&both))?.in_cgroup(version)))
}

/// The limits of huge pages, one for each page size that the kernel supports. The limit is that of the container, or else that of
/// the whole pod, or else 0 (upstream `GetHugepageLimitsFromResources`, kubelet 1.36).
fn huge_pages(
    sizes: &[u64],
    pod: &PodObject,
    container: Definition<'_>,
) -> Result<Vec<v1::HugepageLimit>, ConfigError> {
    let mut limits: BTreeMap<u64, u64> = sizes.iter().map(|size| (*size, 0)).collect();
    fn limits_of<'a>(
        owner: &'a str,
        resources: Option<&'a ResourceRequirements>,
    ) -> impl Iterator<Item = (&'a str, &'a String, &'a Quantity)> {
        let limits = resources.and_then(|resources| resources.limits.as_ref());
        limits.into_iter().flatten().map(move |(name, quantity)| (owner, name, quantity))
    }
    // The container's limits come last and replace those of the pod.
    let of_pod = limits_of("spec", pod.spec().resources.as_ref());
    for (owner, name, quantity) in of_pod.chain(limits_of(container.name(), container.resources())) {
        // The name of the resource has the page size, such as `hugepages-2Mi`.
        let Some(size) = name.strip_prefix("hugepages-") else { continue };
        let size = amount(owner, "limits", name, &Quantity(size.to_owned()))?.units();
        let most = amount(owner, "limits", name, quantity)?.units();
        if let Some(limit) = u64::try_from(size).ok().and_then(|size| limits.get_mut(&size)) {
            *limit = u64::try_from(most).unwrap_or(0);
        }
    }
    Ok(limits.into_iter().map(|(size, limit)| v1::HugepageLimit { page_size: page_size(size), limit }).collect())
}

/// A page size as it appears in the names of cgroup files (`2MB`, `1GB`).
pub(super) fn page_size(mut bytes: u64) -> String {
    let mut units = ["B", "KB", "MB", "GB", "TB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while bytes != 0
        && bytes.is_multiple_of(1024)
        && let Some(next) = units.next()
    {
        bytes /= 1024;
        unit = next;
    }
    format!("{bytes}{unit}")
}
