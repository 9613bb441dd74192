//! Gives CDI devices to containers of the process runtime.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use podwright_host::cdi::{self, CdiError, DeviceNode, NodePropagation, SpecCache};
use podwright_host::pod_group;
use podwright_ports::{ContainerConfig, Mount};
use rustix::fs::{CWD, Mode, StatVfsMountFlags, mknodat, statvfs};
use rustix::io::Errno;

use super::create::ContainerPlan;
use super::identity;
use super::record::User;
use super::rootfs::{self, MakeError, NewRoot, relative};

/// The edits of a container's devices that its [`ContainerConfig`] does not express.
#[derive(Debug, Default)]
pub(super) struct Devices {
    nodes: Vec<DeviceNode>,
    groups: Vec<u32>,
}

/// Resolves the CDI devices of a container, and adds their variables and mounts to its settings. A variable replaces one of the
/// container's own, and a mount replaces one at the same path, as in the OCI configuration of a container runtime.
///
/// # Errors
/// [`CdiError`] with the remedy, if a device cannot be resolved or if this runtime cannot apply one of its edits.
pub(super) fn apply(mut config: ContainerConfig, specs: &SpecCache) -> Result<(ContainerConfig, Devices), CdiError> {
    if config.cdi_devices.is_empty() {
        return Ok((config, Devices::default()));
    }
    let edits = cdi::resolve(specs.read(), &config.cdi_devices)?;
    edits.refuse_unsupported("the process runtime")?;
    for (name, value) in edits.variables() {
        config.env.retain(|(known, _)| known != name);
        config.env.push((name.to_owned(), value.to_owned()));
    }
    for mount in &edits.mounts {
        let options = mount.bind_options()?;
        if options.propagation != NodePropagation::Private {
            return Err(mount.refuse("the process runtime gives a device no later mounts of the node"));
        }
        // A volume may be missing, and a device's files may not.
        fs::metadata(&mount.host_path).map_err(|error| CdiError::Node { edit: mount.label(), error })?;
        let path = mount.container_path.to_string_lossy().into_owned();
        config.mounts.retain(|known| relative(&known.container_path) != relative(&path));
        config.mounts.push(Mount {
            // The name in errors and in the variable `PODWRIGHT_MOUNT_CDI_...`. No volume can have it.
            volume: format!("cdi{path}"),
            host_path: mount.host_path.clone(),
            sub_path: PathBuf::new(),
            container_path: path,
            read_only: options.read_only,
            image: None,
        });
    }
    for node in &edits.device_nodes {
        // The node's own devices are visible to every container, with the permissions of its user. They cannot be reduced.
        if !node.allowed().contains('r') || !node.allowed().contains('w') {
            return Err(node.refuse(format!(
                "the process runtime does not limit the use of devices, and its permissions are {:?}",
                node.permissions
            )));
        }
    }
    Ok((config, Devices { nodes: edits.device_nodes, groups: edits.additional_gids }))
}

impl Devices {
    /// Adds the supplementary groups to the plan of the container, and checks the paths of the device nodes. A device node in a mount
    /// would be created in the volume.
    pub(super) fn join(&self, plan: &mut ContainerPlan, agent: &identity::NodeAccounts<'_>) -> Result<(), CdiError> {
        for node in &self.nodes {
            let at = path_of(node)?;
            let overlaps = |other: &Path| at.starts_with(other) || other.starts_with(&at);
            if plan.links.iter().any(|link| overlaps(&link.at)) || overlaps(&plan.run.termination_log) {
                return Err(node.refuse("its path overlaps a mount or the termination log of the container"));
            }
        }
        for gid in &self.groups {
            let is_own = *gid == agent.group || agent.groups.contains(gid);
            if pod_group::RANGE.contains(gid) || (agent.user != 0 && !is_own) {
                let reason = "the agent may not give this group to a container";
                return Err(CdiError::unsupported(format!("additionalGids {gid}"), reason));
            }
            if !plan.run.user.groups.contains(gid) {
                plan.run.user.groups.push(*gid);
            }
        }
        Ok(())
    }

    /// Creates the device nodes in the container's root directory. The owner and the mode of a node are set by its path, so nobody else may
    /// be able to put a link there.
    pub(super) fn make(&self, root: &NewRoot<'_>) -> Result<(), MakeError> {
        for node in &self.nodes {
            let at = root.path().join(path_of(node)?);
            rootfs::make_parent(&at)?;
            make(node, &at, root.user())?;
        }
        Ok(())
    }
}

/// The path of a device node, relative to the container's root.
fn path_of(node: &DeviceNode) -> Result<PathBuf, CdiError> {
    relative(&node.path.to_string_lossy()).ok_or_else(|| node.refuse("its path leaves the container's root"))
}

/// Creates a device node of the container's user, as a container runtime does. Where that is not possible, creates a link to the
/// node's own device node, whose owner and mode then decide.
fn make(node: &DeviceNode, at: &Path, user: &User) -> Result<(), MakeError> {
    let found = node.find()?;
    if has_devices(at)? {
        match mknodat(CWD, at, found.kind, Mode::RUSR | Mode::WUSR, found.number) {
            Ok(()) => {
                chown(at, Some(node.uid.unwrap_or(user.uid)), Some(node.gid.unwrap_or(user.gid)))?;
                // The default of container runtimes.
                fs::set_permissions(at, Permissions::from_mode(node.file_mode.unwrap_or(0o666) & 0o7777))?;
                return Ok(());
            }
            // Only root may create device nodes, and only if its capabilities and cgroup permit it.
            Err(Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    node.check_host_node(&found)?;
    Ok(symlink(node.on_host(), at)?)
}

/// Whether device nodes can be used in the file system of a new file.
fn has_devices(at: &Path) -> io::Result<bool> {
    let dir = at.parent().unwrap_or(Path::new("/"));
    Ok(!statvfs(dir)?.f_flag.contains(StatVfsMountFlags::NODEV))
}
