//! Which namespaces the containers of a pod share, and with whom.

use podwright_actors::pod::{ContainerKind, PodObject};
use podwright_actors::ports::ContainerConfig;

use super::assigned::Assigned;
use super::container::Seen;
use super::definition;
use super::error::ConfigError;
use super::facts::Facts;
use crate::adapters::cri::v1::{self, NamespaceMode};

/// The namespaces of a pod's sandbox, and of its containers unless they say otherwise (upstream `NamespacesForPod`, kubelet
/// 1.36).
pub(super) fn of_pod(facts: &Facts, assigned: &Assigned, pod: &PodObject) -> Result<v1::NamespaceOption, ConfigError> {
    let spec = pod.spec();
    let users = match (spec.host_users, assigned.users) {
        (Some(false), _) if !facts.user_namespaces.contains(&assigned.handler) => {
            return Err(ConfigError::Unsupported {
                field: "spec.hostUsers".into(),
                reason: "is false, and the container runtime cannot give a pod users of its own",
                remedy: "remove it, or use a runtime that tells of user namespaces (containerd 2.0) and a kernel that has \
                         them",
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

/// The namespaces of one container: an ephemeral one may look at the processes of another.
pub(super) fn of_container(
    facts: &Facts,
    assigned: &Assigned,
    config: &ContainerConfig,
    seen: &Seen,
) -> Result<v1::NamespaceOption, ConfigError> {
    let mut namespaces = of_pod(facts, assigned, &config.pod)?;
    let Some(target) = target_name(config) else { return Ok(namespaces) };
    let id = seen
        .target
        .as_ref()
        .ok_or_else(|| ConfigError::Target { container: config.name.to_string(), target: target.to_owned() })?;
    // Where processes are shared anyway, they are seen anyway.
    if namespaces.pid() == NamespaceMode::Container {
        namespaces.set_pid(NamespaceMode::Target);
        namespaces.target_id = id.as_str().to_owned();
    }
    Ok(namespaces)
}

/// The container whose processes this one wants to see: `targetContainerName` of an ephemeral container.
pub(crate) fn target_name(config: &ContainerConfig) -> Option<&str> {
    if config.kind != ContainerKind::Ephemeral {
        return None;
    }
    let container = definition::ephemeral(&config.pod, config.name.as_str())?;
    container.target_container_name.as_deref().filter(|name| !name.is_empty())
}
