//! What a container sees of the node's files.

use k8s_openapi::api::core::v1::{Container, Volume, VolumeMount};
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{ContainerConfig, Mount};

use super::assigned::Assigned;
use super::error::ConfigError;
use super::facts::Facts;
use super::labels;
use crate::adapters::cri::v1::{self, MountPropagation};

/// Where every container finds the pod's names, unless it mounts something there itself.
const HOSTS: &str = "/etc/hosts";

/// A path in a container, which is absolute there whether it says so or not.
pub(super) fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// What the spec mounts, and where it leaves room the pod's `/etc/hosts` and the file for the termination message.
pub(super) fn of_container(
    facts: &Facts,
    assigned: &Assigned,
    config: &ContainerConfig,
    container: &Container,
) -> Result<Vec<v1::Mount>, ConfigError> {
    if let Some(device) = container.volume_devices.iter().flatten().next() {
        return Err(ConfigError::Unsupported {
            field: format!("container {:?}: volumeDevices {:?}", container.name, device.name),
            reason: "is a block volume, and this node has none",
            remedy: "mount a volume of files instead",
        });
    }
    let wanted = config.mounts.iter().enumerate();
    let mut mounts = wanted
        .map(|(number, mount)| volume(facts, assigned, config, container, number, mount))
        .collect::<Result<Vec<_>, _>>()?;
    let uid = config.pod.uid().to_string();
    let ours = [
        (HOSTS.to_owned(), facts.layout.hosts(&uid)),
        (labels::message_path(container), facts.layout.message(&uid, config.name.as_str(), config.restart_count)),
    ];
    for (container_path, host_path) in ours {
        if mounts.iter().all(|mount| mount.container_path.trim_end_matches('/') != container_path) {
            mounts.push(v1::Mount {
                container_path,
                host_path: host_path.display().to_string(),
                selinux_relabel: facts.selinux,
                ..Default::default()
            });
        }
    }
    // What the pod's users own on the node is shown to them as theirs.
    if let Some(users) = assigned.users {
        for mount in &mut mounts {
            mount.uid_mappings = vec![users.mapping()];
            mount.gid_mappings = vec![users.mapping()];
        }
    }
    Ok(mounts)
}

fn volume(
    facts: &Facts,
    assigned: &Assigned,
    config: &ContainerConfig,
    container: &Container,
    number: usize,
    mount: &Mount,
) -> Result<v1::Mount, ConfigError> {
    let container_path = absolute(&mount.container_path);
    let wanted = container
        .volume_mounts
        .iter()
        .flatten()
        .find(|wanted| wanted.name == mount.volume && absolute(&wanted.mount_path) == container_path);
    let propagation = wanted.map_or(Ok(MountPropagation::PropagationPrivate), propagation)?;
    let deep = wanted.map_or(Ok(false), |wanted| recursive_read_only(facts, assigned, wanted))?;
    let host_path = match mount.sub_path.as_os_str().is_empty() {
        true => mount.host_path.clone(),
        // By then what the path leads to was checked and is mounted there.
        false => facts.layout.sub_path(&config.pod.uid().to_string(), &mount.volume, config.name.as_str(), number),
    };
    Ok(v1::Mount {
        container_path,
        host_path: host_path.display().to_string(),
        readonly: mount.read_only,
        selinux_relabel: facts.selinux && pod_volume(&config.pod, &mount.volume).is_some_and(is_made_here),
        propagation: propagation.into(),
        recursive_read_only: deep && mount.read_only,
        ..Default::default()
    })
}

fn propagation(wanted: &VolumeMount) -> Result<MountPropagation, ConfigError> {
    match wanted.mount_propagation.as_deref() {
        None | Some("" | "None") => Ok(MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(MountPropagation::PropagationBidirectional),
        Some(other) => Err(ConfigError::Value {
            field: field(wanted, "mountPropagation"),
            value: other.to_owned(),
            allowed: "None, HostToContainer, Bidirectional",
        }),
    }
}

/// Whether all that is mounted below a mount is read-only with it (KEP-3857).
fn recursive_read_only(facts: &Facts, assigned: &Assigned, wanted: &VolumeMount) -> Result<bool, ConfigError> {
    let possible = facts.recursive_read_only.contains(&assigned.handler);
    match wanted.recursive_read_only.as_deref() {
        None | Some("" | "Disabled") => Ok(false),
        Some("IfPossible") => Ok(possible),
        Some("Enabled") if possible => Ok(true),
        Some("Enabled") => Err(ConfigError::Unsupported {
            field: field(wanted, "recursiveReadOnly"),
            reason: "is Enabled, which the container runtime cannot do",
            remedy: "set it to IfPossible, or use a newer runtime and kernel",
        }),
        Some(other) => Err(ConfigError::Value {
            field: field(wanted, "recursiveReadOnly"),
            value: other.to_owned(),
            allowed: "Disabled, IfPossible, Enabled",
        }),
    }
}

fn field(wanted: &VolumeMount, name: &str) -> String {
    format!("mount of volume {:?} at {}: {name}", wanted.name, wanted.mount_path)
}

fn pod_volume<'a>(pod: &'a PodObject, name: &str) -> Option<&'a Volume> {
    pod.spec().volumes.iter().flatten().find(|volume| volume.name == name)
}

/// Whether a volume is the node's own work, so that its labels may be changed. The files of a `hostPath` are not.
fn is_made_here(volume: &Volume) -> bool {
    volume.empty_dir.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
        || volume.config_map.is_some()
        || volume.secret.is_some()
}
