//! Checks the values of a specification.

use std::collections::BTreeSet;
use std::path::Path;

use super::document::Document;
use super::edits::{DeviceNode, Edits, Hook};
use super::error::SpecError;
use super::name::{is_device, is_kind};

/// The points at which a runtime calls hooks.
const HOOKS: [&str; 6] = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

/// The permissions of a device node that has none.
pub(super) const NO_PERMISSIONS: &str = "none";

/// Checks names and values. The paths are checked when a container gets the edits.
pub(super) fn check(document: &Document) -> Result<(), SpecError> {
    if !is_kind(&document.kind) {
        return Err(SpecError::value(
            "kind",
            &document.kind,
            "VENDOR/CLASS, each of letters, digits, '_', '-' and '.'",
        ));
    }
    if document.devices.is_empty() {
        return Err(SpecError::value("devices", "", "at least one device"));
    }
    edits("containerEdits", &document.container_edits)?;
    let mut names = BTreeSet::new();
    for device in &document.devices {
        if !is_device(&device.name) {
            return Err(SpecError::value("name of a device", &device.name, "letters, digits, '_', '-', '.' and ':'"));
        }
        if !names.insert(&device.name) {
            return Err(SpecError::value("name of a device", &device.name, "each name once"));
        }
        if device.container_edits.is_empty() {
            return Err(SpecError::value(format!("containerEdits of device {}", device.name), "", "at least one edit"));
        }
        edits(&format!("device {}", device.name), &device.container_edits)?;
    }
    Ok(())
}

fn edits(of: &str, edits: &Edits) -> Result<(), SpecError> {
    environment(&format!("{of}: env"), &edits.env)?;
    edits.device_nodes.iter().try_for_each(|node| device_node(of, node))?;
    for mount in &edits.mounts {
        not_empty(&format!("{of}: hostPath of a mount"), &mount.host_path)?;
        not_empty(&format!("{of}: containerPath of a mount"), &mount.container_path)?;
    }
    edits.hooks.iter().try_for_each(|hook| check_hook(of, hook))?;
    if let Some(rdt) = &edits.intel_rdt {
        let class = rdt.class.as_str();
        let is_file = class.len() < 4096 && !matches!(class, "." | "..") && !class.contains(['/', '\n']);
        if class != "/" && !is_file {
            return Err(SpecError::value(format!("{of}: closID"), class, "the name of a file, or /"));
        }
    }
    let (mut hosts, mut names) = (BTreeSet::new(), BTreeSet::new());
    for device in &edits.net_devices {
        let (host, name) = (&device.host_interface_name, &device.name);
        if host.is_empty() || name.is_empty() || !hosts.insert(host) || !names.insert(name) {
            return Err(SpecError::value(format!("{of}: netDevices"), name, "each interface and each name once"));
        }
    }
    Ok(())
}

fn environment(field: &str, env: &[String]) -> Result<(), SpecError> {
    let is_bad = |text: &&String| matches!(text.find('='), None | Some(0)) || text.contains('\0');
    env.iter().find(is_bad).map_or(Ok(()), |bad| Err(SpecError::value(field, bad, "NAME=VALUE")))
}

fn device_node(of: &str, node: &DeviceNode) -> Result<(), SpecError> {
    not_empty(&format!("{of}: path of a device node"), &node.path)?;
    let of = format!("{of}: device node {:?}", node.path);
    if !matches!(node.kind.as_str(), "" | "b" | "c" | "u" | "p") {
        return Err(SpecError::value(format!("{of}: type"), &node.kind, "b, c, u or p"));
    }
    for (name, number) in [("major", node.major), ("minor", node.minor)] {
        if u32::try_from(number).is_err() {
            return Err(SpecError::value(format!("{of}: {name}"), &number.to_string(), "a number of 0 or more"));
        }
    }
    let known = node.permissions == NO_PERMISSIONS || node.permissions.chars().all(|c| "rwm".contains(c));
    if !known {
        return Err(SpecError::value(
            format!("{of}: permissions"),
            &node.permissions,
            "a combination of r, w and m, or none",
        ));
    }
    Ok(())
}

fn check_hook(of: &str, hook: &Hook) -> Result<(), SpecError> {
    if !HOOKS.contains(&hook.hook_name.as_str()) {
        return Err(SpecError::value(format!("{of}: hookName"), &hook.hook_name, "one of the hooks of OCI"));
    }
    not_empty(&format!("{of}: path of a hook"), &hook.path)?;
    environment(&format!("{of}: env of a hook"), &hook.env)
}

fn not_empty(field: &str, path: &Path) -> Result<(), SpecError> {
    let text = path.to_string_lossy();
    if text.is_empty() || text.contains('\0') {
        return Err(SpecError::value(field, &text, "a path"));
    }
    Ok(())
}
