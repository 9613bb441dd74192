//! Finds the edits of devices. Pure.

use std::path::PathBuf;
use std::sync::Arc;

use super::edits::Edits;
use super::error::{CdiError, SpecFault};
use super::name::DeviceName;

/// The specifications of a node.
#[derive(Debug, Default)]
pub struct Specs {
    /// The directories, the earlier one first.
    pub directories: Vec<PathBuf>,
    /// The specifications that can be used.
    pub specs: Vec<Arc<Spec>>,
    /// The files and directories that cannot be used.
    pub faults: Vec<SpecFault>,
}

/// One specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The file.
    pub path: PathBuf,
    /// The position of its directory in [`Specs::directories`]. The device of a later directory is used.
    pub directory: usize,
    /// The vendor and the class of the devices.
    pub kind: String,
    /// The devices, each name once.
    pub devices: Vec<Device>,
    /// The edits for a container with any of the devices.
    pub edits: Edits,
}

/// One device of a specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The name in its kind.
    pub name: String,
    /// The edits for a container with the device.
    pub edits: Edits,
}

/// The edits of devices, in the order of their names. Each device counts once, and so do the edits of a whole specification,
/// which come before those of its devices.
///
/// # Errors
/// [`CdiError`] for the first name that cannot be resolved.
pub fn resolve(mut specs: Specs, names: &[String]) -> Result<Edits, CdiError> {
    let (mut edits, mut used, mut done) = (Edits::default(), Vec::new(), Vec::new());
    for text in names {
        let name: DeviceName = text.parse()?;
        if done.contains(&name) {
            continue;
        }
        let mut found: Vec<(&Spec, &Device)> = Vec::new();
        for spec in specs.specs.iter().map(|spec| &**spec).filter(|spec| spec.kind == name.kind) {
            found.extend(spec.devices.iter().find(|device| device.name == name.name).map(|device| (spec, device)));
        }
        let last = found.iter().map(|(spec, _)| spec.directory).max();
        found.retain(|(spec, _)| Some(spec.directory) == last);
        let (spec, device) = match found[..] {
            [one] => one,
            [] => {
                let faults = std::mem::take(&mut specs.faults);
                return Err(CdiError::Unknown { name: name.to_string(), directories: specs.directories, faults });
            }
            _ => {
                let mut files: Vec<PathBuf> = found.iter().map(|(spec, _)| spec.path.clone()).collect();
                files.sort();
                return Err(CdiError::Conflict { name: name.to_string(), files });
            }
        };
        if !used.contains(&&spec.path) {
            used.push(&spec.path);
            edits.add(&spec.edits);
        }
        edits.add(&device.edits);
        done.push(name);
    }
    Ok(edits)
}
