//! What the adapters need to apply edits: options of mounts, paths, and the devices of the node.

use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, FileType, major, makedev, minor, statat};

use super::edits::{DeviceNode, Edits, Mount};
use super::error::CdiError;
use super::validate::NO_PERMISSIONS;

/// The remedy for an edit that an adapter cannot express.
const USE_CDI: &str = "use a container runtime with CDI (containerd with enable_cdi, or CRI-O), or another device";

/// The options of a bind mount of a file or directory of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindOptions {
    /// Whether the container may only read it.
    pub read_only: bool,
    /// Where mounts that are created in it later appear.
    pub propagation: NodePropagation,
}

/// Where mounts that are created later in a mount appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePropagation {
    /// Only where they are created.
    Private,
    /// Mounts that the node creates also appear in the container.
    Slave,
    /// Mounts that one of the two creates also appear in the other.
    Shared,
}

/// A device of the node, as a device node names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// The type: a block device, a character device or a FIFO.
    pub kind: FileType,
    /// The device number; 0 for a FIFO.
    pub number: u64,
    /// The device node at [`DeviceNode::on_host`]. `None` if there is none.
    pub on_host: Option<HostNode>,
}

/// A device node of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// Whether it is the device that the specification describes.
    pub is_same: bool,
    /// The mode without the type.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl Edits {
    /// Checks the edits that no adapter can apply.
    ///
    /// # Errors
    /// [`CdiError::Unsupported`] for the first one.
    pub fn refuse_unsupported(&self, runtime: &'static str) -> Result<(), CdiError> {
        let hook = self.hooks.first().map(|hook| format!("hook {} {:?}", hook.hook_name, hook.path));
        let net = self.net_devices.first().map(|device| format!("netDevices {:?}", device.host_interface_name));
        let rdt = self.intel_rdt.as_ref().map(|_| "intelRdt".to_owned());
        match hook.or(net).or(rdt) {
            Some(edit) => Err(CdiError::unsupported(edit, format!("{runtime} does not support it"))),
            None => Ok(()),
        }
    }
}

impl CdiError {
    /// An error that says why an edit cannot be applied.
    pub fn unsupported(edit: String, reason: impl Into<String>) -> Self {
        CdiError::Unsupported { edit, reason: reason.into(), remedy: USE_CDI }
    }
}

impl Mount {
    /// How errors name this edit.
    pub fn label(&self) -> String {
        format!("mount of {:?} at {:?}", self.host_path, self.container_path)
    }

    /// An error that says why this mount cannot be applied.
    pub fn refuse(&self, reason: impl Into<String>) -> CdiError {
        CdiError::unsupported(self.label(), reason)
    }

    /// The options of the mount. `nosuid`, `nodev`, `noexec` and the options of access times are not applied: they restrict the use
    /// of files that the node's administrator has installed for the device.
    ///
    /// # Errors
    /// [`CdiError::Unsupported`] for another type than `bind`, an unknown option, or a path that is not absolute or has `..`.
    pub fn bind_options(&self) -> Result<BindOptions, CdiError> {
        plain_path(&self.host_path, || self.label())?;
        plain_path(&self.container_path, || self.label())?;
        if !matches!(self.kind.as_str(), "" | "none" | "bind") {
            return Err(self.refuse(format!("its type is {:?} and not bind", self.kind)));
        }
        let mut found = BindOptions { read_only: false, propagation: NodePropagation::Private };
        for option in &self.options {
            match option.as_str() {
                "ro" => found.read_only = true,
                "rw" => found.read_only = false,
                "private" | "rprivate" => found.propagation = NodePropagation::Private,
                "slave" | "rslave" => found.propagation = NodePropagation::Slave,
                "shared" | "rshared" => found.propagation = NodePropagation::Shared,
                "bind" | "rbind" | "nosuid" | "nodev" | "noexec" | "suid" | "dev" | "exec" | "noatime"
                | "nodiratime" | "relatime" => {}
                other => return Err(self.refuse(format!("it has the option {other:?}"))),
            }
        }
        Ok(found)
    }
}

impl DeviceNode {
    /// How errors name this edit.
    pub fn label(&self) -> String {
        format!("device node {:?}", self.path)
    }

    /// An error that says why this device node cannot be applied.
    pub fn refuse(&self, reason: impl Into<String>) -> CdiError {
        CdiError::unsupported(self.label(), reason)
    }

    /// The permissions: a combination of `r`, `w` and `m`; empty for none.
    pub fn allowed(&self) -> &str {
        match self.permissions.as_str() {
            "" => "rwm",
            NO_PERMISSIONS => "",
            some => some,
        }
    }

    /// Looks up the device on the node. As in container runtimes, the type and the numbers come from the specification if it has
    /// them, and otherwise from the node.
    ///
    /// # Errors
    /// [`CdiError`] if the node has no such device, or if a path is not absolute or has `..`.
    pub fn find(&self) -> Result<FoundDevice, CdiError> {
        plain_path(&self.path, || self.label())?;
        plain_path(self.on_host(), || self.label())?;
        let failed = |error: rustix::io::Errno| CdiError::Node {
            edit: format!("{} ({:?} on the node)", self.label(), self.on_host()),
            error: error.into(),
        };
        let declared = match self.kind.as_str() {
            "b" => Some(FileType::BlockDevice),
            "c" | "u" => Some(FileType::CharacterDevice),
            "p" => Some(FileType::Fifo),
            _ => None,
        };
        // A link is not followed, as in container runtimes: it could change between the check and the use.
        let stat = statat(CWD, self.on_host(), AtFlags::SYMLINK_NOFOLLOW);
        let of_host = stat.as_ref().ok().map(|stat| (FileType::from_raw_mode(stat.st_mode), stat.st_rdev));
        let is_complete = declared == Some(FileType::Fifo) || (declared.is_some() && self.major != 0);
        let (kind, number) = if is_complete {
            let (high, low) = (u32::try_from(self.major).unwrap_or(0), u32::try_from(self.minor).unwrap_or(0));
            (declared.unwrap_or(FileType::Fifo), makedev(high, low))
        } else {
            let stat = stat.as_ref().map_err(|error| failed(*error))?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            if !matches!(kind, FileType::BlockDevice | FileType::CharacterDevice | FileType::Fifo) {
                return Err(self.refuse(format!("{:?} is not a device", self.on_host())));
            }
            if declared.is_some_and(|declared| declared != kind) {
                return Err(self.refuse(format!("{:?} is not of type {:?}", self.on_host(), self.kind)));
            }
            let number = match self.major {
                0 => stat.st_rdev,
                high => makedev(u32::try_from(high).unwrap_or(0), u32::try_from(self.minor).unwrap_or(0)),
            };
            (kind, number)
        };
        let number = if kind == FileType::Fifo { 0 } else { number };
        let on_host = stat.ok().zip(of_host).map(|(stat, of_host)| HostNode {
            is_same: of_host.0 == kind && (kind == FileType::Fifo || of_host.1 == number),
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
        });
        Ok(FoundDevice { kind, number, on_host })
    }

    /// Checks that a container can use the node's own device node in place of the one that the specification describes.
    ///
    /// # Errors
    /// [`CdiError`] with the difference.
    pub fn check_host_node(&self, found: &FoundDevice) -> Result<(), CdiError> {
        let host = self.on_host();
        let Some(node) = found.on_host else { return Err(self.refuse(format!("{host:?} does not exist on the node"))) };
        if !node.is_same {
            let (high, low) = (major(found.number), minor(found.number));
            return Err(self.refuse(format!("{host:?} on the node is not device {high}:{low}")));
        }
        let wanted = [
            ("fileMode", self.file_mode.map(|mode| mode & 0o7777), node.mode),
            ("uid", self.uid, node.uid),
            ("gid", self.gid, node.gid),
        ];
        match wanted.into_iter().find(|(_, wanted, is)| wanted.is_some_and(|wanted| wanted != *is)) {
            Some((field, _, _)) => Err(self.refuse(format!("its {field} is not that of {host:?} on the node"))),
            None => Ok(()),
        }
    }
}

/// Checks that a path is absolute and has no `..`, which would lead out of a container's root.
fn plain_path(path: &Path, edit: impl Fn() -> String) -> Result<(), CdiError> {
    let is_plain = path.is_absolute() && path.components().all(|part| part != Component::ParentDir);
    if is_plain && path != Path::new("/") {
        return Ok(());
    }
    Err(CdiError::unsupported(edit(), format!("{path:?} is not an absolute path without `..`, below /")))
}
