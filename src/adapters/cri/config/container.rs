//! From a container of a pod to the one that the runtime is asked for.

use k8s_openapi::api::core::v1::Container;
use podwright_actors::ids::ContainerId;
use podwright_actors::ports::{ContainerConfig, Device};

use super::assigned::Assigned;
use super::error::ConfigError;
use super::facts::{Facts, Layout};
use super::{definition, labels, mounts, resources, security};
use crate::adapters::cri::v1;

/// What has to be asked of the runtime before a container can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Who the image runs as.
    pub(crate) user: ImageUser,
    /// The running container that [`target_name`](super::target_name) names, if it names one.
    pub(crate) target: Option<ContainerId>,
}

/// Who an image runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageUser {
    /// A number; 0 where the image says nothing.
    Id(i64),
    /// A name, whose number only the image's files know.
    Name(String),
}

impl ImageUser {
    /// What the runtime says of an image.
    pub(crate) fn of(image: &v1::Image) -> Self {
        match &image.uid {
            Some(uid) => ImageUser::Id(uid.value),
            None if image.username.is_empty() => ImageUser::Id(0),
            None => ImageUser::Name(image.username.clone()),
        }
    }
}

/// A run of a container.
///
/// # Errors
/// [`ConfigError`] for the first thing that cannot be had.
pub(crate) fn container_config(
    facts: &Facts,
    assigned: &Assigned,
    config: &ContainerConfig,
    seen: &Seen,
) -> Result<v1::ContainerConfig, ConfigError> {
    let (pod, name) = (&*config.pod, config.name.as_str());
    let container = definition::find(pod, config.kind, name)?;
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt: config.restart_count }),
        image: Some(v1::ImageSpec {
            image: config.image_id.clone(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: config.env.iter().map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone() }).collect(),
        mounts: mounts::of_container(facts, assigned, config, &container)?,
        devices: config.devices.iter().map(device).collect(),
        labels: labels::of_container(&facts.layout, pod, name),
        annotations: labels::annotations_of_container(config, &container),
        log_path: Layout::log_path(name, config.restart_count),
        stdin: container.stdin.unwrap_or_default(),
        stdin_once: container.stdin_once.unwrap_or_default(),
        tty: container.tty.unwrap_or_default(),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources::of_container(facts, pod, config.kind, &container)?),
            security_context: Some(security::of_container(facts, assigned, config, &container, seen)?),
        }),
        cdi_devices: config.cdi_devices.iter().map(|name| v1::CdiDevice { name: name.clone() }).collect(),
        stop_signal: stop_signal(&container)?.into(),
    })
}

fn device(device: &Device) -> v1::Device {
    v1::Device {
        container_path: device.container_path.clone(),
        host_path: device.host_path.clone(),
        permissions: device.permissions.clone(),
    }
}

/// With which signal the container is asked to stop, if not with that of its image (KEP-4960). Runtimes from before
/// Kubernetes 1.33 do not know of it and send the image's.
fn stop_signal(container: &Container) -> Result<v1::Signal, ConfigError> {
    let wanted = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    let Some(wanted) = wanted.filter(|name| !name.is_empty()) else { return Ok(v1::Signal::RuntimeDefault) };
    // The protocol spells out what the API writes as SIGRTMIN+1.
    let name = wanted.replace('+', "PLUS").replace("X-", "XMINUS");
    match v1::Signal::from_str_name(&name) {
        Some(signal) if signal != v1::Signal::RuntimeDefault => Ok(signal),
        _ => Err(ConfigError::Value {
            field: format!("container {:?}: lifecycle.stopSignal", container.name),
            value: wanted.to_owned(),
            allowed: "the signals of Linux by name, such as SIGTERM, SIGUSR1 or SIGRTMIN+1",
        }),
    }
}
