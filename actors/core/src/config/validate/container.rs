//! Validates containers.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec, VolumeDevice, VolumeMount};

use super::report::Report;
use super::{env, probes, resources, security};
use crate::names;
use crate::pod::{ContainerKind, is_sidecar};

/// The number of names that a remedy lists.
const LISTED: usize = 10;

/// The names that containers may refer to.
pub(super) struct Known<'a> {
    pub(super) volumes: BTreeSet<&'a str>,
    /// The volumes that are emptyDirs. A volume without a source is one.
    pub(super) empty_dirs: BTreeSet<&'a str>,
    /// The volumes that can be block devices: claims and generic ephemeral volumes.
    pub(super) claimed: BTreeSet<&'a str>,
    pub(super) containers: BTreeSet<&'a str>,
    pub(super) claims: BTreeSet<&'a str>,
}

pub(super) fn check_all(spec: &PodSpec, known: &Known<'_>, report: &mut Report) {
    if spec.containers.is_empty() {
        report.add("spec.containers", "is empty", "add at least one container");
    }
    let mut seen = BTreeMap::new();
    let mut host_ports = BTreeMap::new();
    for (i, container) in spec.init_containers.iter().flatten().enumerate() {
        let path = format!("spec.initContainers[{i}]");
        name(&path, &container.name, &mut seen, report);
        check(&path, spec, container, ContainerKind::Init, known, report);
        // Init containers run one after the other, so they can use the same ports.
        taken_host_ports(&path, container, &mut BTreeMap::new(), report);
    }
    for (i, container) in spec.containers.iter().enumerate() {
        let path = format!("spec.containers[{i}]");
        name(&path, &container.name, &mut seen, report);
        check(&path, spec, container, ContainerKind::Regular, known, report);
        taken_host_ports(&path, container, &mut host_ports, report);
    }
    for (i, container) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let path = format!("spec.ephemeralContainers[{i}]");
        name(&path, &container.name, &mut seen, report);
        ephemeral(&path, spec, container, known, report);
    }
}

fn name<'a>(path: &str, name: &'a str, seen: &mut BTreeMap<&'a str, String>, report: &mut Report) {
    let field = format!("{path}.name");
    if name.is_empty() {
        return report.add(field, "is missing", "give the container a name");
    }
    report.label(&field, name);
    if let Some(other) = seen.get(name) {
        return report.add(field, format!("{name:?} is also the name of {other}"), "rename one of the two containers");
    }
    seen.insert(name, path.to_owned());
}

fn check(
    path: &str,
    spec: &PodSpec,
    container: &Container,
    kind: ContainerKind,
    known: &Known<'_>,
    report: &mut Report,
) {
    common(path, spec, container, known, report);
    restart(path, container, report);
    let plain_init = kind == ContainerKind::Init && !is_sidecar(container);
    let resize = container.resize_policy.as_deref().unwrap_or_default();
    resources::resize_policy(path, spec, resize, plain_init, report);
    probes::check(path, spec, container, plain_init, report);
}

/// Validates the fields that containers of all kinds have.
fn common(path: &str, spec: &PodSpec, container: &Container, known: &Known<'_>, report: &mut Report) {
    let image = container.image.as_deref().unwrap_or_default();
    if image.is_empty() {
        report.add(
            format!("{path}.image"),
            "is missing",
            "name an image; the process runtime does not run it, so any name will do there",
        );
    } else if image.trim() != image {
        report.add(format!("{path}.image"), format!("{image:?} has spaces around it"), "remove them");
    }
    let field = |name: &str| format!("{path}.{name}");
    let pull = ["Always", "IfNotPresent", "Never"];
    report.one_of(field("imagePullPolicy"), container.image_pull_policy.as_deref(), &pull);
    let messages = ["File", "FallbackToLogsOnError"];
    report.one_of(field("terminationMessagePolicy"), container.termination_message_policy.as_deref(), &messages);
    ports(path, spec, container, report);
    env::check(path, container.env.as_deref(), container.env_from.as_deref(), known, report);
    mounts(path, container, known, report);
    resources::of_container(path, container, &known.claims, report);
    security::of_container(path, spec, container.security_context.as_ref(), report);
}

/// Validates a container's own restart policy and its rules, which need one (KEP-753, KEP-5307).
fn restart(path: &str, container: &Container, report: &mut Report) {
    let policies = ["Always", "OnFailure", "Never"];
    report.one_of(format!("{path}.restartPolicy"), container.restart_policy.as_deref(), &policies);
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    if !rules.is_empty() && container.restart_policy.is_none() {
        report.add(
            format!("{path}.restartPolicy"),
            "is missing although restartPolicyRules are set",
            "set it to what holds when no rule matches: Always, OnFailure or Never",
        );
    }
    if rules.len() > 20 {
        report.add(format!("{path}.restartPolicyRules"), format!("has {} rules", rules.len()), "use at most 20");
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = format!("{path}.restartPolicyRules[{i}]");
        report.one_of(format!("{path}.action"), Some(&rule.action), &["Restart", "RestartAllContainers"]);
        let Some(codes) = &rule.exit_codes else {
            report.add(format!("{path}.exitCodes"), "is missing", "say which exit codes the rule is for");
            continue;
        };
        report.one_of(format!("{path}.exitCodes.operator"), Some(&codes.operator), &["In", "NotIn"]);
        if codes.values.as_ref().is_some_and(|values| values.len() > 255) {
            report.add(format!("{path}.exitCodes.values"), "is too long", "list at most 255 exit codes");
        }
    }
}

fn ports(path: &str, spec: &PodSpec, container: &Container, report: &mut Report) {
    let mut port_names = BTreeSet::new();
    for (i, port) in container.ports.iter().flatten().enumerate() {
        let path = format!("{path}.ports[{i}]");
        report.port(format!("{path}.containerPort"), port.container_port);
        report.one_of(format!("{path}.protocol"), port.protocol.as_deref(), &["TCP", "UDP", "SCTP"]);
        match port.host_port {
            None | Some(0) => {}
            Some(host) => {
                report.port(format!("{path}.hostPort"), host);
                if spec.host_network == Some(true) && host != port.container_port {
                    report.add(
                        format!("{path}.hostPort"),
                        format!("is {host} but containerPort is {} and hostNetwork is on", port.container_port),
                        "make both the same or remove hostPort",
                    );
                }
            }
        }
        let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) else { continue };
        if !names::is_port_name(name) {
            report.add(
                format!("{path}.name"),
                format!("{name:?} is not a valid port name"),
                "use at most 15 lower-case letters, digits and single '-', at least one letter",
            );
        }
        if !port_names.insert(name) {
            report.add(format!("{path}.name"), format!("{name:?} is used twice"), "rename one of the two ports");
        }
    }
}

type HostPorts<'a> = BTreeMap<(i32, &'a str, &'a str), String>;

fn taken_host_ports<'a>(path: &str, container: &'a Container, taken: &mut HostPorts<'a>, report: &mut Report) {
    for (i, port) in container.ports.iter().flatten().enumerate() {
        let Some(host) = port.host_port.filter(|host| *host != 0) else { continue };
        let key = (host, port.protocol.as_deref().unwrap_or("TCP"), port.host_ip.as_deref().unwrap_or_default());
        let path = format!("{path}.ports[{i}].hostPort");
        match taken.get(&key) {
            Some(other) => report.add(path, format!("{host} is also {other}"), "choose another port"),
            None => {
                taken.insert(key, path);
            }
        }
    }
}

fn mounts(path: &str, container: &Container, known: &Known<'_>, report: &mut Report) {
    let mut paths = BTreeSet::new();
    for (i, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = format!("{path}.volumeMounts[{i}]");
        volume_name(&path, &mount.name, known, report);
        if mount.mount_path.is_empty() {
            report.add(format!("{path}.mountPath"), "is missing", "say where in the container the volume appears");
        } else if !paths.insert(mount.mount_path.as_str()) {
            let message = format!("{:?} is used twice", mount.mount_path);
            report.add(format!("{path}.mountPath"), message, "mount each volume at a path of its own");
        }
        for (name, value) in [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)] {
            if let Some(sub) = value.as_deref() {
                report.relative_path(format!("{path}.{name}"), sub, "the volume");
            }
        }
        let is_set = |path: &Option<String>| path.as_deref().is_some_and(|path| !path.is_empty());
        if is_set(&mount.sub_path) && is_set(&mount.sub_path_expr) {
            report.add(format!("{path}.subPathExpr"), "is set beside subPath", "keep one of the two");
        }
        let modes = ["None", "HostToContainer", "Bidirectional"];
        let propagation = mount.mount_propagation.as_deref();
        report.one_of(format!("{path}.mountPropagation"), propagation, &modes);
        let privileged = container.security_context.as_ref().and_then(|own| own.privileged) == Some(true);
        if propagation == Some("Bidirectional") && !privileged {
            let remedy = "set securityContext.privileged, or use HostToContainer";
            report.add(format!("{path}.mountPropagation"), "is Bidirectional, for privileged containers only", remedy);
        }
        recursive_read_only(&path, mount, report);
    }
    devices(path, container, known, report);
}

/// Validates the volumes that a container gets as block devices.
fn devices(path: &str, container: &Container, known: &Known<'_>, report: &mut Report) {
    let mounts = || container.volume_mounts.iter().flatten();
    let list: Vec<&VolumeDevice> = container.volume_devices.iter().flatten().collect();
    for (i, device) in list.iter().enumerate() {
        let path = format!("{path}.volumeDevices[{i}]");
        volume_name(&path, &device.name, known, report);
        if known.volumes.contains(&*device.name) && !known.claimed.contains(&*device.name) {
            let message = format!("{:?} is not a block device", device.name);
            report.add(format!("{path}.name"), message, "name a persistentVolumeClaim or ephemeral volume");
        }
        let earlier = &list[..i];
        if earlier.iter().any(|other| other.name == device.name) || mounts().any(|mount| mount.name == device.name) {
            let message = format!("{:?} is used twice", device.name);
            report.add(format!("{path}.name"), message, "use each volume once, mounted or as a device");
        }
        let field = format!("{path}.devicePath");
        let used = earlier.iter().any(|other| other.device_path == device.device_path)
            || mounts().any(|mount| mount.mount_path == device.device_path);
        if device.device_path.is_empty() {
            report.add(field, "is missing", "name the path of the device in the container");
        } else if device.device_path.split('/').any(|part| part == "..") {
            report.add(field, format!("{:?} contains '..'", device.device_path), "use a path without '..'");
        } else if used {
            report.add(field, format!("{:?} is used twice", device.device_path), "give each device a path of its own");
        }
    }
}

/// Validates `recursiveReadOnly` (KEP-3857): the mount must be read-only and must not propagate later mounts.
fn recursive_read_only(path: &str, mount: &VolumeMount, report: &mut Report) {
    let path = format!("{path}.recursiveReadOnly");
    let mode = mount.recursive_read_only.as_deref();
    report.one_of(path.clone(), mode, &["Disabled", "IfPossible", "Enabled"]);
    if matches!(mode, None | Some("Disabled")) {
        return;
    }
    if mount.read_only != Some(true) {
        report.add(path.clone(), "is set on a mount that can be written to", "set readOnly, or remove it");
    }
    if !matches!(mount.mount_propagation.as_deref(), None | Some("None")) {
        report.add(path, "is set beside mountPropagation", "remove mountPropagation, or set it to None");
    }
}

fn volume_name(path: &str, name: &str, known: &Known<'_>, report: &mut Report) {
    if name.is_empty() {
        report.add(format!("{path}.name"), "is missing", "name a volume of spec.volumes");
    } else if !known.volumes.contains(name) {
        let listed = known.volumes.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
        let remedy = if listed.is_empty() {
            "add it to spec.volumes, which has none".to_owned()
        } else {
            format!("add it to spec.volumes or use one of {listed}")
        };
        report.add(format!("{path}.name"), format!("{name:?} is not a volume of the pod"), remedy);
    }
}

fn ephemeral(path: &str, spec: &PodSpec, container: &EphemeralContainer, known: &Known<'_>, report: &mut Report) {
    let fields = Container {
        image: container.image.clone(),
        image_pull_policy: container.image_pull_policy.clone(),
        termination_message_policy: container.termination_message_policy.clone(),
        env: container.env.clone(),
        env_from: container.env_from.clone(),
        volume_mounts: container.volume_mounts.clone(),
        volume_devices: container.volume_devices.clone(),
        security_context: container.security_context.clone(),
        ..Container::default()
    };
    common(path, spec, &fields, known, report);
    for (i, mount) in container.volume_mounts.iter().flatten().enumerate() {
        for (name, value) in [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)] {
            if value.as_deref().is_some_and(|value| !value.is_empty()) {
                let path = format!("{path}.volumeMounts[{i}].{name}");
                report.add(path, "cannot be set on an ephemeral container", "remove it");
            }
        }
    }
    for (field, set) in [
        ("ports", container.ports.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
        ("lifecycle", container.lifecycle.is_some()),
        ("resources", container.resources.is_some()),
        ("restartPolicy", container.restart_policy.is_some()),
        ("restartPolicyRules", container.restart_policy_rules.is_some()),
        ("resizePolicy", container.resize_policy.is_some()),
    ] {
        if set {
            report.add(format!("{path}.{field}"), "cannot be set on an ephemeral container", "remove it");
        }
    }
    if let Some(target) = container.target_container_name.as_deref()
        && !target.is_empty()
        && !spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(|other| other.name == target)
    {
        let message = format!("{target:?} is not a container of the pod");
        report.add(format!("{path}.targetContainerName"), message, "name one of its containers or remove it");
    }
}
