//! Bind-mounts the `subPath` of a volume, so that a container keeps the checked file even if its name is changed later.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{fstat, stat};
use rustix::io::Errno;
use rustix::mount::mount_bind;

use super::{SubPathError, make_point, open};
use crate::mounts;

/// Bind-mounts the file or directory `sub_path` of `volume` at `mount_point`, which is created. A mount that already exists
/// there is kept if it is the same file or directory, and replaced otherwise. Blocks.
///
/// # Errors
/// The errors of [`open`](super::open). [`ErrorKind::PermissionDenied`], with the remedy, if this process may not mount.
pub fn bind(volume: &Path, sub_path: &Path, mount_point: &Path) -> Result<(), SubPathError> {
    let found = open(volume, sub_path)?;
    mount(&found, sub_path, mount_point).map_err(SubPathError::Prepare)
}

fn mount(found: &OwnedFd, sub_path: &Path, mount_point: &Path) -> io::Result<()> {
    let meta = fstat(found)?;
    if mounts::exactly_at(mount_point)?.is_some() {
        let mounted = stat(mount_point)?;
        if (mounted.st_dev, mounted.st_ino) == (meta.st_dev, meta.st_ino) {
            return Ok(());
        }
        mounts::unmount(mount_point).map_err(io::Error::other)?;
    }
    make_point(mount_point, found)?;
    // This path names the open file or directory itself. Its own path may lead to another file by now.
    mount_bind(format!("/proc/self/fd/{}", found.as_raw_fd()), mount_point).map_err(|error| match error {
        Errno::PERM => io::Error::new(
            ErrorKind::PermissionDenied,
            format!("subPath {}: this process may not mount: run the agent as root", sub_path.display()),
        ),
        error => io::Error::other(format!("subPath {} cannot be mounted: {error}", sub_path.display())),
    })
}
