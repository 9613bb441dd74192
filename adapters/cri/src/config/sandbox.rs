//! The sandbox configuration in a request to create a sandbox.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::{Container, ContainerPort, Sysctl};
use podwright_core::config::sysctl::{dotted_sysctl_name, is_sysctl_name};
use podwright_model::pod::{PodObject, is_sidecar};

use super::error::ConfigError;
use super::inputs::{NodeFacts, PodAssignments};
use super::{dns, hosts, labels, resources, security};
use crate::v1;

/// The configuration of a pod's sandbox. `attempt` is the number of sandboxes that the pod had before.
///
/// # Errors
/// [`ConfigError`] for the first setting that the node or the runtime does not support.
pub(crate) fn sandbox_config(
    facts: &NodeFacts,
    assignments: &PodAssignments,
    pod: &PodObject,
    attempt: u32,
) -> Result<v1::PodSandboxConfig, ConfigError> {
    let name = pod.full_name();
    let (resources, overhead) = resources::of_sandbox(facts, pod)?;
    Ok(v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.name().to_owned(),
            uid: pod.uid().to_string(),
            namespace: name.namespace().to_owned(),
            attempt,
        }),
        hostname: hosts::hostname(facts, pod)?,
        log_directory: facts.layout.log_dir(pod).display().to_string(),
        dns_config: Some(dns::of_pod(facts, pod).0),
        port_mappings: if pod.is_host_network() { vec![] } else { ports(pod)? },
        labels: labels::of_sandbox(&facts.layout, pod),
        annotations: labels::annotations_of_sandbox(pod),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: facts.cgroups.of_pod(pod),
            security_context: Some(security::of_sandbox(facts, assignments, pod)?),
            sysctls: sysctls(pod)?,
            overhead: Some(overhead),
            resources: Some(resources),
        }),
    })
}

/// The ports of regular containers and sidecars. A port that a container lists twice is mapped once (upstream
/// `MakePortMappings`, kubelet 1.36).
fn ports(pod: &PodObject) -> Result<Vec<v1::PortMapping>, ConfigError> {
    let sidecars = pod.init_containers().iter().filter(|container| is_sidecar(container));
    let mut mappings = vec![];
    for container in pod.containers().iter().chain(sidecars) {
        let mut mapped = HashSet::new();
        for port in container.ports.iter().flatten() {
            let mapping = port_mapping(container, port)?;
            let key = match port.name.as_deref() {
                Some(name) if !name.is_empty() => name.to_owned(),
                _ => format!("{mapping:?}"),
            };
            if mapped.insert(key) {
                mappings.push(mapping);
            }
        }
    }
    Ok(mappings)
}

fn port_mapping(container: &Container, port: &ContainerPort) -> Result<v1::PortMapping, ConfigError> {
    let protocol = match port.protocol.as_deref() {
        None | Some("" | "TCP") => v1::Protocol::Tcp,
        Some("UDP") => v1::Protocol::Udp,
        Some("SCTP") => v1::Protocol::Sctp,
        Some(other) => {
            return Err(ConfigError::Value {
                field: format!("container {:?}: protocol of port {}", container.name, port.container_port),
                value: other.to_owned(),
                allowed: "TCP, UDP, SCTP",
            });
        }
    };
    Ok(v1::PortMapping {
        protocol: protocol.into(),
        container_port: port.container_port,
        host_port: port.host_port.unwrap_or_default(),
        host_ip: port.host_ip.clone().unwrap_or_default(),
    })
}

/// The kernel parameters of the pod, with dots as separators, because runtimes check only that form. Admission checks which
/// parameters a pod may set.
fn sysctls(pod: &PodObject) -> Result<HashMap<String, String>, ConfigError> {
    let requested = pod.spec().security_context.as_ref().and_then(|context| context.sysctls.as_ref());
    let dotted = |sysctl: &Sysctl| match is_sysctl_name(&sysctl.name) {
        true => Ok((dotted_sysctl_name(&sysctl.name), sysctl.value.clone())),
        false => Err(ConfigError::Value {
            field: "spec.securityContext.sysctls".into(),
            value: sysctl.name.clone(),
            allowed: "the names of kernel parameters, such as net.ipv4.tcp_syncookies",
        }),
    };
    requested.into_iter().flatten().map(dotted).collect()
}
