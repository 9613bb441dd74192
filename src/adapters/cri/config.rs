//! From pods to what the runtime is asked for. Pure: the same pod on the same node gives the same sandbox and containers.
//!
//! ```text
//!  PodObject ─────────┐
//!  Facts (the node) ──┼─► sandbox_config ───► v1::PodSandboxConfig
//!                     │
//!  Assigned (handler) ─┤
//!  ContainerConfig ───┼─► container_config ─► v1::ContainerConfig
//!  Seen (image, ...) ─┘
//! ```
//!
//! Names, values and paths are a kubelet's (1.36), so that `crictl`, log collectors and whatever else reads them finds what
//! it knows. Whatever a pod asks for is either in the answer or refused by name.

mod assigned;
mod cgroup;
mod container;
mod definition;
mod dns;
mod error;
mod facts;
mod hosts;
pub(super) mod labels;
pub(super) mod limits;
mod mounts;
mod namespaces;
mod oom;
mod profiles;
mod resources;
mod sandbox;
mod security;

#[cfg(test)]
pub(super) mod fixtures;
#[cfg(test)]
mod tests;

pub(super) use assigned::{Assigned, HostIds};
pub(super) use cgroup::{Cgroups, Driver, Version};
pub(super) use container::{ImageUser, Seen, container_config};
pub(super) use dns::{ClusterDns, DnsWarning, Resolver, dns_warnings};
pub(super) use facts::{Facts, Layout};
pub(super) use hosts::hosts;
pub(super) use namespaces::target_name;
pub(super) use sandbox::sandbox_config;
