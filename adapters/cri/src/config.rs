//! Converts a pod to the requests for the runtime. Pure: the same pod on the same node gives the same sandbox and
//! containers.
//!
//! ```text
//!  PodObject ────────┐
//!  NodeFacts ────────┼─► sandbox_config ───► v1::PodSandboxConfig
//!  PodAssignments ───┤
//!                    │
//!  ContainerConfig ──┼─► container_config ─► v1::ContainerConfig
//!  ContainerLookups ─┘
//! ```
//!
//! Names, values and paths are the kubelet's (1.36), so that `crictl`, log collectors and other tools find what they expect.
//! Each setting of the pod is either in the request, or the conversion fails with an error that names the field.

mod cdi;
mod cgroup;
mod container;
mod dns;
mod driver;
mod error;
mod hosts;
mod inputs;
pub(super) mod labels;
pub(super) mod limits;
mod mounts;
mod namespaces;
mod profiles;
mod resolver;
mod resources;
mod sandbox;
mod security;
mod swap;

#[cfg(test)]
pub(super) mod fixtures;
#[cfg(test)]
mod tests;

pub(super) use cdi::{CdiFields, CdiSupport};
pub use cgroup::{CgroupDriver, ParseCgroupDriverError};
pub(super) use cgroup::{CgroupVersion, Cgroups};
pub(super) use container::container_config;
pub(super) use dns::{DnsWarning, dns_warnings};
pub(super) use driver::{cgroup_driver, reported_driver};
pub(super) use hosts::hosts;
pub(super) use inputs::{ContainerLookups, HostIdRange, ImageUser, NodeFacts, PodAssignments};
pub(super) use namespaces::target_name;
pub(super) use resolver::{ClusterDns, Resolver};
pub(super) use resources::updated as updated_resources;
pub(super) use sandbox::sandbox_config;
pub(super) use swap::shared_swap;
