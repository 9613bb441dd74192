//! The container configuration in a request to create a container.

use podwright_core::containers::definition::Definition;
use podwright_ports::{ContainerConfig, Device};

use super::error::ConfigError;
use super::inputs::{ContainerLookups, NodeFacts, PodAssignments};
use super::{labels, mounts, resources, security};
use crate::layout::Layout;
use crate::v1;

/// The configuration of one run of a container.
///
/// # Errors
/// [`ConfigError`] for the first setting that the node or the runtime does not support.
pub(crate) fn container_config(
    facts: &NodeFacts,
    assignments: &PodAssignments,
    config: &ContainerConfig,
    lookups: &ContainerLookups,
) -> Result<v1::ContainerConfig, ConfigError> {
    let (pod, name) = (&*config.pod, config.name.as_str());
    let container =
        Definition::find_in(pod, config.kind, name).ok_or_else(|| ConfigError::NoContainer(name.to_owned()))?;
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt: config.restart_count }),
        image: Some(v1::ImageSpec {
            image: config.image_id.clone(),
            user_specified_image: container.image().to_owned(),
            ..Default::default()
        }),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: container.working_dir().unwrap_or_default().to_owned(),
        envs: config.env.iter().map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone() }).collect(),
        mounts: mounts::of_container(facts, assignments, config, container)?,
        devices: config.devices.iter().map(device).collect(),
        labels: labels::of_container(&facts.layout, pod, name),
        annotations: labels::annotations_of_container(config, container),
        log_path: Layout::log_path(name, config.restart_count),
        stdin: container.stdin(),
        stdin_once: container.stdin_once(),
        tty: container.tty(),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources::of_container(facts, pod, container)?),
            security_context: Some(security::of_container(facts, assignments, config, container, lookups)?),
        }),
        cdi_devices: config.cdi_devices.iter().map(|name| v1::CdiDevice { name: name.clone() }).collect(),
        stop_signal: stop_signal(container)?.into(),
    })
}

fn device(device: &Device) -> v1::Device {
    v1::Device {
        container_path: device.container_path.clone(),
        host_path: device.host_path.clone(),
        permissions: device.permissions.clone(),
    }
}

/// The signal that stops the container, if it is not the image's (KEP-4960). Runtimes older than Kubernetes 1.33 ignore this
/// field and send the image's signal.
fn stop_signal(container: Definition<'_>) -> Result<v1::Signal, ConfigError> {
    let requested = container.lifecycle().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    let Some(requested) = requested.filter(|name| !name.is_empty()) else { return Ok(v1::Signal::RuntimeDefault) };
    // `SIGRTMIN+1` of the API is `SIGRTMINPLUS1` in the CRI.
    let name = requested.replace('+', "PLUS").replace("X-", "XMINUS");
    match v1::Signal::from_str_name(&name) {
        Some(signal) if signal != v1::Signal::RuntimeDefault => Ok(signal),
        _ => Err(ConfigError::Value {
            field: format!("container {:?}: lifecycle.stopSignal", container.name()),
            value: requested.to_owned(),
            allowed: "the Linux signal names, such as SIGTERM, SIGUSR1 or SIGRTMIN+1",
        }),
    }
}
