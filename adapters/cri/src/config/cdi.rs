//! CDI devices of containers. A container runtime with CDI gets their names. For one without, the agent turns the edits of the
//! devices into the fields of the CRI.

use podwright_host::cdi::{self, CdiError, NodePropagation, SpecCache};
use serde::Deserialize;

use super::inputs::PodAssignments;
use crate::v1::{self, MountPropagation};

/// Who applies the edits of CDI devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CdiSupport {
    /// The container runtime, which gets the names of the devices.
    #[default]
    Runtime,
    /// The agent, because the runtime ignores or refuses the names.
    Agent,
}

impl CdiSupport {
    /// Reads from the runtime's verbose status and its version whether it applies CDI devices.
    ///
    /// containerd reports `enableCDI` in the configuration of its CRI plugin since 1.7, whose default is off, and has no CDI before.
    /// A later version without the field always applies the devices. CRI-O reads the names since 1.28. The agent passes the names to
    /// other runtimes, because it cannot know whether they apply them.
    pub(crate) fn of(config: Option<&str>, name: &str, version: &str) -> Self {
        let (least, enabled) = match name {
            "containerd" => ((2, 0), config.and_then(|text| serde_json::from_str::<Config>(text).ok()?.enable_cdi)),
            "cri-o" => ((1, 28), None),
            _ => return CdiSupport::Runtime,
        };
        let has_cdi = enabled.unwrap_or_else(|| numbers(version).is_none_or(|version| version >= least));
        if has_cdi { CdiSupport::Runtime } else { CdiSupport::Agent }
    }
}

/// The part of containerd's configuration that decides about CDI.
#[derive(Deserialize)]
struct Config {
    #[serde(rename = "enableCDI")]
    enable_cdi: Option<bool>,
}

/// The first two numbers of a version such as `v1.7.2` or `1.6.20~ds1`. `None` if it has none, as a version of a developer.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The edits of a container's devices as fields of the CRI.
#[derive(Clone, Debug, Default)]
pub(crate) struct CdiFields {
    env: Vec<(String, String)>,
    mounts: Vec<v1::Mount>,
    devices: Vec<v1::Device>,
    groups: Vec<i64>,
}

impl CdiFields {
    /// Resolves devices, and compares them with the devices of the node. Blocks on the disk.
    ///
    /// # Errors
    /// [`CdiError`] with the remedy, if a device cannot be resolved or if the CRI cannot express one of its edits.
    pub(crate) fn resolve(specs: &SpecCache, names: &[String]) -> Result<Self, CdiError> {
        let edits = cdi::resolve(specs.read(), names)?;
        edits.refuse_unsupported("the CRI")?;
        Ok(CdiFields {
            env: edits.variables().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            mounts: edits.mounts.iter().map(mount).collect::<Result<_, _>>()?,
            devices: edits.device_nodes.iter().map(device).collect::<Result<_, _>>()?,
            groups: edits.additional_gids.iter().map(|gid| i64::from(*gid)).collect(),
        })
    }

    /// Adds the edits to the configuration of a container, which then has no names of devices. A variable, mount or device replaces
    /// one of the same name or path.
    pub(crate) fn apply(self, assignments: &PodAssignments, config: &mut v1::ContainerConfig) {
        config.cdi_devices.clear();
        for (key, value) in self.env {
            config.envs.retain(|known| known.key != key);
            config.envs.push(v1::KeyValue { key, value });
        }
        for mut mount in self.mounts {
            config.mounts.retain(|known| !is_same_path(&known.container_path, &mount.container_path));
            let mapping: Vec<_> = assignments.users.map(|users| users.mapping()).into_iter().collect();
            (mount.uid_mappings, mount.gid_mappings) = (mapping.clone(), mapping);
            config.mounts.push(mount);
        }
        for device in self.devices {
            config.devices.retain(|known| !is_same_path(&known.container_path, &device.container_path));
            config.devices.push(device);
        }
        let security = config.linux.get_or_insert_default().security_context.get_or_insert_default();
        for group in self.groups {
            if !security.supplemental_groups.contains(&group) {
                security.supplemental_groups.push(group);
            }
        }
    }
}

fn is_same_path(a: &str, b: &str) -> bool {
    a.trim_end_matches('/') == b.trim_end_matches('/')
}

fn mount(mount: &cdi::Mount) -> Result<v1::Mount, CdiError> {
    let options = mount.bind_options()?;
    // containerd would create a missing path as an empty directory.
    std::fs::metadata(&mount.host_path).map_err(|error| CdiError::Node { edit: mount.label(), error })?;
    let propagation = match options.propagation {
        NodePropagation::Private => MountPropagation::PropagationPrivate,
        NodePropagation::Slave => MountPropagation::PropagationHostToContainer,
        NodePropagation::Shared => MountPropagation::PropagationBidirectional,
    };
    Ok(v1::Mount {
        container_path: mount.container_path.to_string_lossy().into_owned(),
        host_path: mount.host_path.to_string_lossy().into_owned(),
        readonly: options.read_only,
        propagation: propagation.into(),
        ..Default::default()
    })
}

/// A device node. The CRI has no fields for the numbers, the mode and the owner: the runtime reads them from the node.
fn device(node: &cdi::DeviceNode) -> Result<v1::Device, CdiError> {
    if node.allowed().is_empty() {
        return Err(node.refuse("the CRI cannot express a device without permissions"));
    }
    node.check_host_node(&node.find()?)?;
    Ok(v1::Device {
        container_path: node.path.to_string_lossy().into_owned(),
        host_path: node.on_host().to_string_lossy().into_owned(),
        permissions: node.allowed().to_owned(),
    })
}
