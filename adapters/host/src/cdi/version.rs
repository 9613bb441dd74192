//! The versions of the specification, and the fields that need one of them.

use super::document::Document;
use super::error::SpecError;

/// The known versions, oldest first. Versions 0.8.0 and 1.0.0 introduced no field.
const KNOWN: [&str; 8] = ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

/// Checks that the version is known, and that it has every field that the document uses. Container runtimes check the same, and a
/// device must not work with one runtime and fail with another.
pub(super) fn check(document: &Document) -> Result<(), SpecError> {
    let declared = document.cdi_version.as_str();
    let index = |version: &str| KNOWN.iter().position(|known| *known == version);
    let own = index(declared.strip_prefix('v').unwrap_or(declared));
    let own = own.ok_or_else(|| SpecError::Version(podwright_model::text::plain(declared, 50).into_owned()))?;
    for (what, needed) in needs(document) {
        if index(needed).is_some_and(|needed| own < needed) {
            return Err(SpecError::TooOld { what, needed, declared: declared.to_owned() });
        }
    }
    Ok(())
}

/// The features that the document uses, each with the version that introduced it.
fn needs(document: &Document) -> Vec<(&'static str, &'static str)> {
    let mut needs = Vec::new();
    let edits = document.devices.iter().map(|device| &device.container_edits).chain([&document.container_edits]);
    for edits in edits {
        let rdt = edits.intel_rdt.as_ref();
        needs.extend([
            (!edits.net_devices.is_empty(), "netDevices", "1.1.0"),
            (rdt.is_some_and(|rdt| rdt.monitors || !rdt.schemata.is_empty()), "intelRdt of version 1.1.0", "1.1.0"),
            (rdt.is_some(), "intelRdt", "0.7.0"),
            (!edits.additional_gids.is_empty(), "additionalGids", "0.7.0"),
            (
                edits.device_nodes.iter().any(|node| !node.host_path.as_os_str().is_empty()),
                "hostPath of a device",
                "0.5.0",
            ),
            (edits.mounts.iter().any(|mount| !mount.kind.is_empty()), "type of a mount", "0.4.0"),
        ]);
    }
    let annotated = document.devices.iter().map(|device| &device.annotations).chain([&document.annotations]);
    let class = document.kind.split('/').next_back().unwrap_or_default();
    let digit = |name: &str| name.starts_with(|c: char| !c.is_ascii_alphabetic());
    needs.extend([
        (annotated.into_iter().any(|annotations| !annotations.is_empty()), "annotations", "0.6.0"),
        (class.contains('.'), "a class with a dot", "0.6.0"),
        (document.devices.iter().any(|device| digit(&device.name)), "a device whose name begins with a digit", "0.5.0"),
    ]);
    needs.into_iter().filter_map(|(is_used, what, version)| is_used.then_some((what, version))).collect()
}
