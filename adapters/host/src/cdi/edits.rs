//! What a device changes in a container.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};

/// The changes of one device, of one specification, or of all devices of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edits {
    /// Environment variables, each as `NAME=VALUE`.
    #[serde(default, deserialize_with = "nullable")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(default, deserialize_with = "nullable")]
    pub device_nodes: Vec<DeviceNode>,
    /// Network interfaces that move into the container.
    #[serde(default, deserialize_with = "nullable")]
    pub net_devices: Vec<NetDevice>,
    /// Commands that the runtime calls.
    #[serde(default, deserialize_with = "nullable")]
    pub hooks: Vec<Hook>,
    /// Mounts of files and directories of the node.
    #[serde(default, deserialize_with = "nullable")]
    pub mounts: Vec<Mount>,
    /// The class of Intel's Resource Director Technology.
    #[serde(default)]
    pub intel_rdt: Option<IntelRdt>,
    /// Supplementary groups.
    #[serde(default, deserialize_with = "nullable")]
    pub additional_gids: Vec<u32>,
}

/// A device node of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// The path in the container.
    pub path: PathBuf,
    /// The path on the node, if it differs.
    #[serde(default, deserialize_with = "nullable")]
    pub host_path: PathBuf,
    /// `b` (block), `c` or `u` (character) or `p` (FIFO); empty for the type of the node's device.
    #[serde(default, rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    /// The major number; 0 for the numbers of the node's device.
    #[serde(default, deserialize_with = "nullable")]
    pub major: i64,
    /// The minor number.
    #[serde(default, deserialize_with = "nullable")]
    pub minor: i64,
    /// The mode of the device node.
    #[serde(default)]
    pub file_mode: Option<u32>,
    /// A combination of `r`, `w` and `m` (mknod), or `none`; empty for `rwm`.
    #[serde(default, deserialize_with = "nullable")]
    pub permissions: String,
    /// The owner of the device node.
    #[serde(default)]
    pub uid: Option<u32>,
    /// The group of the device node.
    #[serde(default)]
    pub gid: Option<u32>,
}

impl DeviceNode {
    /// The path of the device on the node.
    pub fn on_host(&self) -> &Path {
        if self.host_path.as_os_str().is_empty() { &self.path } else { &self.host_path }
    }
}

/// A network interface that moves into the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetDevice {
    /// The interface of the node.
    pub host_interface_name: String,
    /// Its name in the container.
    pub name: String,
}

/// A command that a runtime calls at one point in the life of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// When it is called, such as `createContainer`.
    pub hook_name: String,
    /// The program.
    pub path: PathBuf,
    /// Its arguments, beginning with its name.
    #[serde(default, deserialize_with = "nullable")]
    pub args: Vec<String>,
    /// Its environment.
    #[serde(default, deserialize_with = "nullable")]
    pub env: Vec<String>,
    /// How many seconds it may take.
    #[serde(default)]
    pub timeout: Option<i64>,
}

/// A mount of a file or directory of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// The path on the node.
    pub host_path: PathBuf,
    /// The path in the container.
    pub container_path: PathBuf,
    /// The options of the mount, such as `ro`.
    #[serde(default, deserialize_with = "nullable")]
    pub options: Vec<String>,
    /// The type of the mount.
    #[serde(default, rename = "type", deserialize_with = "nullable")]
    pub kind: String,
}

/// A class of Intel's Resource Director Technology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntelRdt {
    /// The class.
    #[serde(default, rename = "closID", deserialize_with = "nullable")]
    pub class: String,
    /// The part of the third-level cache.
    #[serde(default, rename = "l3CacheSchema", deserialize_with = "nullable")]
    pub l3_cache_schema: String,
    /// The memory bandwidth.
    #[serde(default, rename = "memBwSchema", deserialize_with = "nullable")]
    pub memory_bandwidth_schema: String,
    /// The lines of the class's schemata, since version 1.1.0.
    #[serde(default, deserialize_with = "nullable")]
    pub schemata: Vec<String>,
    /// Whether the cache is monitored, until version 1.0.0.
    #[serde(default, rename = "enableCMT", deserialize_with = "nullable")]
    pub monitors_cache: bool,
    /// Whether the memory bandwidth is monitored, until version 1.0.0.
    #[serde(default, rename = "enableMBM", deserialize_with = "nullable")]
    pub monitors_bandwidth: bool,
    /// Whether the container is monitored, since version 1.1.0.
    #[serde(default, rename = "enableMonitoring", deserialize_with = "nullable")]
    pub monitors: bool,
}

/// Reads `null` as the default, as the library of the specification does.
pub(super) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(input: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(input).map(Option::unwrap_or_default)
}

impl Edits {
    /// The environment variables. Of several with one name, the last one applies.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.env.iter().filter_map(|text| text.split_once('='))
    }

    /// Whether there is no edit.
    pub fn is_empty(&self) -> bool {
        *self == Edits::default()
    }

    /// Adds edits. As in a container's OCI configuration, a later variable, device node or mount replaces an earlier one of the
    /// same name or path, and the last class of Resource Director Technology applies.
    pub(super) fn add(&mut self, more: &Edits) {
        let name = |text: &str| text.split('=').next().unwrap_or_default().to_owned();
        for variable in &more.env {
            match self.env.iter_mut().find(|known| name(known) == name(variable)) {
                Some(known) => known.clone_from(variable),
                None => self.env.push(variable.clone()),
            }
        }
        for node in &more.device_nodes {
            self.device_nodes.retain(|known| known.path != node.path);
            self.device_nodes.push(node.clone());
        }
        for mount in &more.mounts {
            self.mounts.retain(|known| known.container_path != mount.container_path);
            self.mounts.push(mount.clone());
        }
        for gid in &more.additional_gids {
            // Group 0 has no effect: a device must not make a container a member of the group of root.
            if *gid != 0 && !self.additional_gids.contains(gid) {
                self.additional_gids.push(*gid);
            }
        }
        for device in &more.net_devices {
            if !self.net_devices.contains(device) {
                self.net_devices.push(device.clone());
            }
        }
        self.hooks.extend(more.hooks.iter().cloned());
        if more.intel_rdt.is_some() {
            self.intel_rdt.clone_from(&more.intel_rdt);
        }
    }
}
