//! From a pod to the sandbox that it asks for. Pure: the same pod on the same node gives the same sandbox.

use std::collections::HashMap;

use podwright_actors::pod::PodObject;

use super::facts::Facts;
use super::{labels, v1};

/// No host name is longer (`HOST_NAME_MAX` of Linux, less one, as upstream `truncatePodHostnameIfNeeded` has it).
const MAX_HOSTNAME: usize = 63;

/// The sandbox of a pod, of which there were `attempt` before.
pub(super) fn sandbox_config(facts: &Facts, pod: &PodObject, attempt: u32) -> v1::PodSandboxConfig {
    let name = pod.full_name();
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.name().to_owned(),
            uid: pod.uid().to_string(),
            namespace: name.namespace().to_owned(),
            attempt,
        }),
        // On the node's network a pod has the node's name.
        hostname: if pod.is_host_network() { String::new() } else { hostname(pod) },
        log_directory: facts.layout.log_dir(pod).display().to_string(),
        dns_config: Some(facts.resolver.of_pod(pod)),
        port_mappings: vec![],
        labels: labels::of_sandbox(pod),
        annotations: labels::annotations_of_sandbox(pod),
        linux: Some(v1::LinuxPodSandboxConfig {
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(pod)),
                ..Default::default()
            }),
            sysctls: HashMap::new(),
            ..Default::default()
        }),
    }
}

/// The name that a pod's containers have for themselves.
pub(super) fn hostname(pod: &PodObject) -> String {
    let named = pod.spec().hostname.as_deref().filter(|name| !name.is_empty());
    let name = named.unwrap_or_else(|| pod.full_name().name());
    let end = name.floor_char_boundary(MAX_HOSTNAME);
    name[..end].trim_end_matches(['-', '.']).to_owned()
}

/// Which namespaces the pod's containers share, and with whom.
pub(super) fn namespaces(pod: &PodObject) -> v1::NamespaceOption {
    use v1::NamespaceMode::{Container, Node, Pod};
    let spec = pod.spec();
    let is = |flag: Option<bool>| flag.unwrap_or(false);
    let pid = match (is(spec.host_pid), is(spec.share_process_namespace)) {
        (true, _) => Node,
        (false, true) => Pod,
        (false, false) => Container,
    };
    v1::NamespaceOption {
        network: (if pod.is_host_network() { Node } else { Pod }).into(),
        pid: pid.into(),
        ipc: (if is(spec.host_ipc) { Node } else { Pod }).into(),
        target_id: String::new(),
        userns_options: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::adapters::cri::fixtures::{facts, pod};

    #[test]
    fn a_sandbox_has_the_pods_names_labels_and_namespaces() {
        let config = sandbox_config(&facts(), &pod(json!({"containers": [], "hostPID": true})), 3);
        let metadata = config.metadata.unwrap();
        assert_eq!((metadata.name.as_str(), metadata.namespace.as_str(), metadata.attempt), ("web", "shop", 3));
        assert_eq!(config.log_directory, "/var/log/pods/shop_web_u-1");
        assert_eq!(config.hostname, "web");
        for (key, value) in [(labels::POD_NAME, "web"), (labels::POD_NAMESPACE, "shop"), (labels::POD_UID, "u-1")] {
            assert_eq!(config.labels[key], value);
        }
        assert_eq!(config.labels["app"], "a");
        let namespaces = config.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        assert_eq!(namespaces.pid(), v1::NamespaceMode::Node);
        assert_eq!(namespaces.network(), v1::NamespaceMode::Pod);
    }

    #[test]
    fn a_pod_on_the_nodes_network_has_the_nodes_name() {
        let config = sandbox_config(&facts(), &pod(json!({"containers": [], "hostNetwork": true})), 0);
        assert_eq!(config.hostname, "");
        let long = pod(json!({"containers": [], "hostname": format!("{}-x", "a".repeat(62))}));
        assert_eq!(hostname(&long), "a".repeat(62));
    }
}
