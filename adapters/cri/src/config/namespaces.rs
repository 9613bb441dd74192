//! The Linux namespaces of a pod and its containers.

use podwright_core::containers::definition::Definition;
use podwright_model::pod::PodObject;
use podwright_model::texts::containers::config as texts;
use podwright_ports::ContainerConfig;

use super::error::ConfigError;
use super::inputs::{ContainerLookups, NodeFacts, PodAssignments};
use crate::v1::{self, NamespaceMode};

/// The namespaces of a pod's sandbox. They apply to its containers too, except for an ephemeral container with a target
/// (upstream `NamespacesForPod`, kubelet 1.36).
pub(super) fn of_pod(
    facts: &NodeFacts,
    assignments: &PodAssignments,
    pod: &PodObject,
) -> Result<v1::NamespaceOption, ConfigError> {
    let spec = pod.spec();
    let users = match (spec.host_users, assignments.users) {
        (Some(false), _) if !facts.user_namespaces.contains(&assignments.handler) => {
            return Err(ConfigError::Unsupported {
                field: "spec.hostUsers".into(),
                reason: "is false, and the container runtime does not support user namespaces",
                remedy: "remove it, or use a runtime that reports support for user namespaces (containerd 2.0 or newer) \
                         and a kernel that has them",
            });
        }
        (Some(false), Some(users)) => v1::UserNamespace {
            mode: NamespaceMode::Pod.into(),
            uids: vec![users.mapping()],
            gids: vec![users.mapping()],
        },
        _ => v1::UserNamespace { mode: NamespaceMode::Node.into(), uids: vec![], gids: vec![] },
    };
    let is = |flag: Option<bool>| flag.unwrap_or(false);
    let pid = match (is(spec.host_pid), is(spec.share_process_namespace)) {
        (true, _) => NamespaceMode::Node,
        (false, true) => NamespaceMode::Pod,
        (false, false) => NamespaceMode::Container,
    };
    let shared = |with_node| if with_node { NamespaceMode::Node } else { NamespaceMode::Pod };
    Ok(v1::NamespaceOption {
        network: shared(pod.is_host_network()).into(),
        pid: pid.into(),
        ipc: shared(is(spec.host_ipc)).into(),
        target_id: String::new(),
        userns_options: Some(users),
    })
}

/// The namespaces of a container. An ephemeral container with a target shares the target's PID namespace.
pub(super) fn of_container(
    facts: &NodeFacts,
    assignments: &PodAssignments,
    config: &ContainerConfig,
    lookups: &ContainerLookups,
) -> Result<v1::NamespaceOption, ConfigError> {
    let mut namespaces = of_pod(facts, assignments, &config.pod)?;
    let Some(target) = target_name(config) else { return Ok(namespaces) };
    let id = lookups.target.as_ref().ok_or_else(|| ConfigError::OfKubelet(texts::no_target(target)))?;
    // If the pod's containers share one PID namespace, or the node's, the target's processes are already visible.
    if namespaces.pid() == NamespaceMode::Container {
        namespaces.set_pid(NamespaceMode::Target);
        namespaces.target_id = id.as_str().to_owned();
    }
    Ok(namespaces)
}

/// The `targetContainerName` of an ephemeral container.
pub(crate) fn target_name(config: &ContainerConfig) -> Option<&str> {
    let Definition::Ephemeral(container) = Definition::find_in(&config.pod, config.kind, config.name.as_str())? else {
        return None;
    };
    container.target_container_name.as_deref().filter(|name| !name.is_empty())
}
