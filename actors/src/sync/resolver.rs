//! Command, environment and mounts of a container, from its spec and what is known of the node.

use std::net::IpAddr;

use crate::config::fields::FieldFacts;
use crate::containers::env::resolve;
use crate::containers::perform::{ContainerResolver, ResolveRequest, ResolvedContainer};

/// Resolves without an API server.
#[derive(Clone, Debug)]
pub struct NodeResolver {
    /// The node's addresses.
    pub host_ips: Vec<IpAddr>,
}

impl ContainerResolver for NodeResolver {
    fn resolve(&self, wanted: &ResolveRequest<'_>) -> Result<ResolvedContainer, String> {
        // A pod on the node's network has the node's addresses.
        let pod_ips = if wanted.pod.is_host_network() { self.host_ips.clone() } else { wanted.pod_ips.to_vec() };
        let facts = FieldFacts { pod_ips, host_ips: self.host_ips.clone() };
        let resolved =
            resolve(wanted.pod, wanted.kind, wanted.name, wanted.volumes, &facts).map_err(|error| error.to_string())?;
        Ok(ResolvedContainer {
            command: resolved.command,
            args: resolved.args,
            env: resolved.env,
            mounts: resolved.mounts,
        })
    }
}
