//! The mounts of a container.

use k8s_openapi::api::core::v1::{Volume, VolumeMount};
use podwright_core::containers::definition::Definition;
use podwright_model::pod::PodObject;
use podwright_model::texts::containers::config::unknown_propagation;
use podwright_ports::{ContainerConfig, Mount};

use super::error::ConfigError;
use super::inputs::{NodeFacts, PodAssignments};
use super::labels;
use crate::v1::{self, MountPropagation};

/// The path of the hosts file in every container, unless the container mounts another file there.
const HOSTS: &str = "/etc/hosts";

/// The volume mounts of the spec, then `/etc/hosts` and the termination message file, unless the spec mounts a volume at the
/// same path.
pub(super) fn of_container(
    facts: &NodeFacts,
    assignments: &PodAssignments,
    config: &ContainerConfig,
    container: Definition<'_>,
) -> Result<Vec<v1::Mount>, ConfigError> {
    if let Some(device) = container.devices().first() {
        return Err(ConfigError::Unsupported {
            field: format!("container {:?}: volumeDevices {:?}", container.name(), device.name),
            reason: "is a block volume, which this node does not support",
            remedy: "use volumeMounts with a filesystem volume instead",
        });
    }
    let volumes = config.mounts.iter().enumerate();
    let mut mounts = volumes
        .map(|(number, mount)| volume(facts, assignments, config, container, number, mount))
        .collect::<Result<Vec<_>, _>>()?;
    let uid = config.pod.uid().to_string();
    let node_files = [
        (HOSTS.to_owned(), facts.layout.hosts(&uid)),
        (labels::message_path(container), facts.layout.message(&uid, config.name.as_str(), config.restart_count)),
    ];
    for (container_path, host_path) in node_files {
        if mounts.iter().all(|mount| mount.container_path.trim_end_matches('/') != container_path) {
            mounts.push(v1::Mount {
                container_path,
                host_path: host_path.display().to_string(),
                selinux_relabel: facts.selinux,
                ..Default::default()
            });
        }
    }
    // With these mappings the files keep the pod's own user and group IDs inside the container.
    if let Some(users) = assignments.users {
        for mount in &mut mounts {
            mount.uid_mappings = vec![users.mapping()];
            mount.gid_mappings = vec![users.mapping()];
        }
    }
    Ok(mounts)
}

fn volume(
    facts: &NodeFacts,
    assignments: &PodAssignments,
    config: &ContainerConfig,
    container: Definition<'_>,
    number: usize,
    mount: &Mount,
) -> Result<v1::Mount, ConfigError> {
    let container_path = absolute_path(&mount.container_path);
    let spec = container
        .mounts()
        .iter()
        .find(|spec| spec.name == mount.volume && absolute_path(&spec.mount_path) == container_path);
    let propagation = spec.map_or(Ok(MountPropagation::PropagationPrivate), propagation)?;
    let recursive = spec.map_or(Ok(false), |spec| recursive_read_only(facts, assignments, spec))?;
    if let Some(image) = &mount.image {
        return Ok(v1::Mount {
            container_path,
            readonly: true,
            image: Some(v1::ImageSpec {
                image: image.id.clone(),
                user_specified_image: image.reference.clone(),
                runtime_handler: assignments.handler.clone(),
                ..Default::default()
            }),
            image_sub_path: mount.sub_path.display().to_string(),
            ..Default::default()
        });
    }
    let host_path = if mount.sub_path.as_os_str().is_empty() {
        mount.host_path.clone()
    } else {
        // Before the container is created, the sub path is checked and mounted there.
        facts.layout.sub_path(&config.pod.uid().to_string(), &mount.volume, config.name.as_str(), number)
    };
    Ok(v1::Mount {
        container_path,
        host_path: host_path.display().to_string(),
        readonly: mount.read_only,
        selinux_relabel: facts.selinux && pod_volume(&config.pod, &mount.volume).is_some_and(is_created_by_node),
        propagation: propagation.into(),
        recursive_read_only: recursive && mount.read_only,
        ..Default::default()
    })
}

/// A path inside a container. The API allows a relative path, which means a path below `/`.
pub(super) fn absolute_path(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn propagation(spec: &VolumeMount) -> Result<MountPropagation, ConfigError> {
    match spec.mount_propagation.as_deref() {
        None | Some("" | "None") => Ok(MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(MountPropagation::PropagationBidirectional),
        Some(other) => Err(ConfigError::OfKubelet(unknown_propagation(other))),
    }
}

/// Whether a read-only mount makes the mounts below it read-only too (KEP-3857).
fn recursive_read_only(
    facts: &NodeFacts,
    assignments: &PodAssignments,
    spec: &VolumeMount,
) -> Result<bool, ConfigError> {
    let possible = facts.recursive_read_only.contains(&assignments.handler);
    match spec.recursive_read_only.as_deref() {
        None | Some("" | "Disabled") => Ok(false),
        Some("IfPossible") => Ok(possible),
        Some("Enabled") if possible => Ok(true),
        Some("Enabled") => Err(ConfigError::RecursiveReadOnly(spec.name.clone())),
        Some(other) => Err(ConfigError::Value {
            field: field(spec, "recursiveReadOnly"),
            value: other.to_owned(),
            allowed: "Disabled, IfPossible, Enabled",
        }),
    }
}

fn field(spec: &VolumeMount, name: &str) -> String {
    format!("mount of volume {:?} at {}: {name}", spec.name, spec.mount_path)
}

fn pod_volume<'a>(pod: &'a PodObject, name: &str) -> Option<&'a Volume> {
    pod.spec().volumes.iter().flatten().find(|volume| volume.name == name)
}

/// Whether the node creates the volume's files, so that the runtime may change their SELinux labels. The files of a `hostPath`
/// belong to others.
fn is_created_by_node(volume: &Volume) -> bool {
    volume.empty_dir.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
        || volume.config_map.is_some()
        || volume.secret.is_some()
}
