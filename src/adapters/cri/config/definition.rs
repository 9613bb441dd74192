//! Finds a container in the pod spec, and gives ephemeral containers the type of regular ones.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer};
use podwright_actors::pod::{ContainerKind, PodObject};

use super::error::ConfigError;

/// The container of this kind and name.
pub(super) fn find<'a>(pod: &'a PodObject, kind: ContainerKind, name: &str) -> Result<Cow<'a, Container>, ConfigError> {
    let find_in = |list: &'a [Container]| list.iter().find(|container| container.name == name).map(Cow::Borrowed);
    match kind {
        ContainerKind::Init => find_in(pod.init_containers()),
        ContainerKind::Regular => find_in(pod.containers()),
        ContainerKind::Ephemeral => ephemeral(pod, name).map(|container| Cow::Owned(as_container(container))),
    }
    .ok_or_else(|| ConfigError::NoContainer(name.to_owned()))
}

/// The ephemeral container of this name.
pub(super) fn ephemeral<'a>(pod: &'a PodObject, name: &str) -> Option<&'a EphemeralContainer> {
    pod.ephemeral_containers().iter().find(|container| container.name == name)
}

/// The regular, init and ephemeral containers of a pod.
pub(super) fn all(pod: &PodObject) -> impl Iterator<Item = Cow<'_, Container>> {
    let containers = pod.containers().iter().chain(pod.init_containers()).map(Cow::Borrowed);
    containers.chain(pod.ephemeral_containers().iter().map(|container| Cow::Owned(as_container(container))))
}

/// A path inside a container. The API allows a relative path, which means a path below `/`.
pub(super) fn absolute_path(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// An ephemeral container as a regular one, with the fields that its run depends on.
fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let from = ephemeral.clone();
    Container {
        name: from.name,
        image: from.image,
        working_dir: from.working_dir,
        ports: from.ports,
        resources: from.resources,
        volume_mounts: from.volume_mounts,
        volume_devices: from.volume_devices,
        lifecycle: from.lifecycle,
        termination_message_path: from.termination_message_path,
        termination_message_policy: from.termination_message_policy,
        security_context: from.security_context,
        stdin: from.stdin,
        stdin_once: from.stdin_once,
        tty: from.tty,
        ..Container::default()
    }
}
