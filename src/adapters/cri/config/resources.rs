//! What pods and containers may use, in the numbers of the kernel.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_actors::config::quantity::Amount;
use podwright_actors::pod::{ContainerKind, PodObject};
use podwright_actors::status::resources_without_overhead;

use super::cgroup::Version;
use super::error::ConfigError;
use super::facts::Facts;
use super::oom;
use crate::adapters::cri::v1;

/// Bounds of `cpu.shares` in the kernel; without a request a container gets the least (upstream `MilliCPUToShares`).
const SHARES: std::ops::RangeInclusive<i64> = 2..=262_144;
/// In microseconds: how often a container gets its share, and the least that it gets (upstream `MilliCPUToQuota`).
pub(super) const PERIOD: i64 = 100_000;
const LEAST_QUOTA: i64 = 1000;

/// What is asked for of CPU and memory. A CPU request of nothing is not the same as none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub(super) cpu_request: Option<Amount>,
    pub(super) cpu_limit: Option<Amount>,
    pub(super) memory_request: Option<Amount>,
    pub(super) memory_limit: Option<Amount>,
}

impl Asked {
    /// Reads the resources of `owner`, a container or the pod.
    pub(super) fn of(owner: &str, resources: Option<&ResourceRequirements>) -> Result<Self, ConfigError> {
        let Some(resources) = resources else { return Ok(Asked::default()) };
        let read = |list: &str, map: &Option<BTreeMap<String, Quantity>>, name: &str| {
            map.as_ref().and_then(|map| map.get(name)).map(|quantity| amount(owner, list, name, quantity)).transpose()
        };
        Ok(Asked {
            cpu_request: read("requests", &resources.requests, "cpu")?,
            cpu_limit: read("limits", &resources.limits, "cpu")?,
            memory_request: read("requests", &resources.requests, "memory")?,
            memory_limit: read("limits", &resources.limits, "memory")?,
        })
    }

    /// The kernel's numbers. Who has a limit and no request asks for the limit (upstream `calculateLinuxResources`, kubelet
    /// 1.36).
    fn in_cgroup(self, version: Version) -> v1::LinuxContainerResources {
        let cpu_limit = self.cpu_limit.map_or(0, Amount::millis);
        let unified = match version {
            Version::V1 { .. } => HashMap::new(),
            // A container that lost one process for want of memory is no longer what it was: it ends as a whole.
            Version::V2 { .. } => HashMap::from([("memory.oom.group".to_owned(), "1".to_owned())]),
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

/// An amount of memory in bytes; nothing is 0.
pub(super) fn bytes(amount: Option<Amount>) -> i64 {
    amount.map_or(0, Amount::units)
}

/// `cpu.shares` of so many thousandths of a core.
pub(super) fn shares(millis: i64) -> i64 {
    (millis.saturating_mul(1024) / 1000).clamp(*SHARES.start(), *SHARES.end())
}

/// Microseconds in each period for so many thousandths of a core; 0 is no limit.
pub(super) fn quota(millis: i64) -> i64 {
    if millis == 0 { 0 } else { millis.saturating_mul(PERIOD / 1000).max(LEAST_QUOTA) }
}

/// What a container may use. Where it has no limit of its own, that of the pod as a whole is its limit (KEP-2837).
pub(super) fn of_container(
    facts: &Facts,
    pod: &PodObject,
    kind: ContainerKind,
    container: &Container,
) -> Result<v1::LinuxContainerResources, ConfigError> {
    let mut asked = Asked::of(&container.name, container.resources.as_ref())?;
    let whole = Asked::of("spec", pod.spec().resources.as_ref())?;
    let or = |own: Option<Amount>, whole: Option<Amount>| own.filter(|own| *own != Amount::ZERO).or(whole);
    asked.cpu_limit = or(asked.cpu_limit, whole.cpu_limit);
    asked.memory_limit = or(asked.memory_limit, whole.memory_limit);

    let mut resources = asked.in_cgroup(facts.cgroups.version);
    match facts.cgroups.version {
        // There the limit is that of memory and swap together.
        Version::V1 { swap: true } => resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes,
        Version::V2 { swap: true } => {
            resources.unified.insert("memory.swap.max".to_owned(), "0".to_owned());
        }
        Version::V1 { swap: false } | Version::V2 { swap: false } => {}
    }
    resources.hugepage_limits = huge_pages(&facts.huge_pages, container)?;
    resources.oom_score_adj = oom::score(pod, kind, container, facts.memory)?;
    Ok(resources)
}

/// What a sandbox and its containers may use, for runtimes that size a virtual machine by it, and what the sandbox itself
/// needs beyond (upstream `applySandboxResources`, kubelet 1.36).
pub(super) fn of_sandbox(
    facts: &Facts,
    pod: &PodObject,
) -> Result<(v1::LinuxContainerResources, v1::LinuxContainerResources), ConfigError> {
    let spec = pod.spec();
    let version = facts.cgroups.version;
    let resources = Asked::of("spec", Some(&resources_without_overhead(spec)))?.in_cgroup(version);
    let Some(overhead) = &spec.overhead else { return Ok((resources, v1::LinuxContainerResources::default())) };
    let both = ResourceRequirements { claims: None, limits: Some(overhead.clone()), requests: Some(overhead.clone()) };
    Ok((resources, Asked::of("spec.overhead", Some(&both))?.in_cgroup(version)))
}

/// A limit for every size of huge pages that the kernel knows, 0 for those that the container does not ask for.
fn huge_pages(sizes: &[u64], container: &Container) -> Result<Vec<v1::HugepageLimit>, ConfigError> {
    let mut limits: BTreeMap<u64, u64> = sizes.iter().map(|size| (*size, 0)).collect();
    let asked = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    for (name, quantity) in asked.into_iter().flatten() {
        let Some(size) = name.strip_prefix("hugepages-") else { continue };
        let size = amount(&container.name, "limits", name, &Quantity(size.to_owned()))?.units();
        let most = amount(&container.name, "limits", name, quantity)?.units();
        if let Some(limit) = u64::try_from(size).ok().and_then(|size| limits.get_mut(&size)) {
            *limit = u64::try_from(most).unwrap_or(0);
        }
    }
    Ok(limits.into_iter().map(|(size, limit)| v1::HugepageLimit { page_size: page_size(size), limit }).collect())
}

/// A page size as cgroup files are named (`2MB`, `1GB`).
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
