//! Command, environment and mounts of a container, from its spec and what is known of the node.

use std::net::IpAddr;

use crate::config::fields::FieldFacts;
use crate::container_manager::{ContainerResolver, ResolveRequest, ResolvedContainer};
use crate::containers::env::{Allocatable, resolve};

/// Resolves without an API server.
#[derive(Clone, Debug)]
pub struct NodeResolver {
    /// The node's addresses.
    pub host_ips: Vec<IpAddr>,
    /// What the node can give to pods.
    pub allocatable: Allocatable,
}

impl ContainerResolver for NodeResolver {
    fn resolve(&self, wanted: &ResolveRequest<'_>) -> Result<ResolvedContainer, String> {
        // A pod on the node's network has the node's addresses.
        let pod_ips = if wanted.pod.is_host_network() { self.host_ips.clone() } else { wanted.pod_ips.to_vec() };
        let facts = FieldFacts { pod_ips, host_ips: self.host_ips.clone() };
        let resolved = resolve(wanted.pod, wanted.kind, wanted.name, wanted.volumes, &facts, &self.allocatable)
            .map_err(|error| error.to_string())?;
        Ok(ResolvedContainer {
            command: resolved.command,
            args: resolved.args,
            env: resolved.env,
            mounts: resolved.mounts,
            ..ResolvedContainer::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::json;

    use super::*;
    use crate::pod::{ContainerKind, PodObject};
    use crate::ports::VolumeMounts;

    #[test]
    fn a_limit_that_is_not_set_is_what_the_node_can_give() {
        let env = json!([{"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]);
        let pod = json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"containers": [{"name": "a", "env": env}]},
        });
        let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
        let allocatable = Allocatable::from([("cpu".to_owned(), Quantity("4".into()))]);
        let resolver = NodeResolver { host_ips: vec![], allocatable };
        let volumes = VolumeMounts::new();
        let wanted =
            ResolveRequest { pod: &pod, kind: ContainerKind::Regular, name: "a", volumes: &volumes, pod_ips: &[] };
        assert_eq!(resolver.resolve(&wanted).unwrap().env, [("CPUS".to_owned(), "4".to_owned())]);
    }
}
