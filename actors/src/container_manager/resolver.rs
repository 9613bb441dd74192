//! Resolves a container's command, environment and mounts from its spec and the facts of the node.

use std::net::IpAddr;

use crate::config::fields::FieldFacts;
use crate::containers::definition::Definition;
use crate::containers::env::{Allocatable, ConfigError, ResolvedContainer, VolumeContents, resolve};
use crate::pod::PodObject;
use crate::ports::HostIps;
use crate::ports::VolumeMounts;

/// Resolves containers from what was read for them.
#[derive(Clone, Debug, Default)]
pub struct ContainerResolver {
    /// The node's addresses.
    pub host_ips: HostIps,
    /// The resources that the node offers to pods.
    pub allocatable: Allocatable,
}

impl ContainerResolver {
    /// Resolves one container of a pod. `pod_ips` are the addresses of the pod's sandbox, and `contents` what was read and
    /// pulled for its volumes.
    ///
    /// # Errors
    /// [`ConfigError`] if the container cannot run as its spec says.
    pub(super) fn resolve(
        &self,
        pod: &PodObject,
        container: &Definition<'_>,
        volumes: &VolumeMounts,
        pod_ips: &[IpAddr],
        contents: &VolumeContents,
    ) -> Result<ResolvedContainer, ConfigError> {
        // A pod on the node's network has the node's addresses.
        let host_ips = self.host_ips.get();
        let pod_ips = if pod.is_host_network() { host_ips.clone() } else { pod_ips.to_vec() };
        let facts = FieldFacts { pod_ips, host_ips };
        resolve(pod, container.kind(), container.name(), volumes, &facts, &self.allocatable, contents)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unset_limit_resolves_to_the_nodes_allocatable() {
        let env = json!([{"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]);
        let pod = json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"containers": [{"name": "a", "env": env}]},
        });
        let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
        let allocatable = Allocatable::from([("cpu".to_owned(), Quantity("4".into()))]);
        let resolver = ContainerResolver { host_ips: HostIps::default(), allocatable };
        let container = Definition::find(&pod, "a").unwrap();
        let resolved =
            resolver.resolve(&pod, &container, &VolumeMounts::new(), &[], &VolumeContents::default()).unwrap();
        assert_eq!(resolved.env, [("CPUS".to_owned(), "4".to_owned())]);
    }
}
