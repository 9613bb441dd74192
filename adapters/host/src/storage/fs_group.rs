//! The group that owns a pod's volumes.

use std::io;
use std::path::Path;

use podwright_core::config::linux_id::linux_id;
use podwright_model::pod::PodObject;
use rustix::fs::{AtFlags, CWD, Gid, chownat};

use crate::pod_group;

/// The `fsGroup` of a pod. The pod's volumes, and the files that are created in them, belong to this group (upstream
/// `volume.SetVolumeOwnership`, kubelet 1.36).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FsGroup(u32);

impl FsGroup {
    /// The `fsGroup` of a pod. `None` if the pod has none, or if this process may not give files to that group. A process
    /// that does not run as root may give files only to its own groups.
    ///
    /// # Errors
    /// An error that names the field, if the number is not the id of a group. Giving the volume to no group, or to the group
    /// of another number, would open it to other users.
    pub(super) fn of(pod: &PodObject) -> io::Result<Option<Self>> {
        let Some(requested) = pod.spec().security_context.as_ref().and_then(|it| it.fs_group) else { return Ok(None) };
        let group = linux_id(requested).map_err(|error| format!("`fsGroup` {error}")).and_then(|id| {
            let used = format!(
                "`fsGroup` {id} is one of the groups that the agent gives to pods ({} to {}): use another group",
                pod_group::RANGE.start,
                pod_group::RANGE.end - 1
            );
            if pod_group::RANGE.contains(&id) { Err(used) } else { Ok(id) }
        });
        let group = group.map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))?;
        let may_give = rustix::process::geteuid().is_root()
            || rustix::process::getegid().as_raw() == group
            || rustix::process::getgroups()?.iter().any(|own| own.as_raw() == group);
        Ok(may_give.then_some(FsGroup(group)))
    }

    /// Gives a file or directory to the group. For a link, this changes the group of the link, not of its target.
    pub(super) fn give(self, path: &Path) -> io::Result<()> {
        Ok(chownat(CWD, path, None, Some(Gid::from_raw(self.0)), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub(super) const fn id(self) -> u32 {
        self.0
    }

    pub(super) fn gid(self) -> Gid {
        Gid::from_raw(self.0)
    }

    /// The mode of a directory in which the group may write. New files in the directory belong to the group.
    pub(super) const fn dir_mode(self, mode: u32) -> u32 {
        mode | 0o2770
    }

    /// The mode of a file that the agent writes and the group may read.
    pub(super) const fn file_mode(self, mode: u32) -> u32 {
        mode | 0o440
    }
}

/// The mode of a new volume. Every user may write to it, because the containers of the pod may run as different users. If
/// the pod has an `fsGroup`, the files that containers create in the volume belong to that group.
pub(super) fn volume_mode(group: Option<FsGroup>) -> u32 {
    group.map_or(0o777, |group| group.dir_mode(0o777))
}
