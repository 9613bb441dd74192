//! Mounting it, so that it stays what it was.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{FileType, fstat, stat};
use rustix::io::Errno;
use rustix::mount::mount_bind;

use super::open;
use crate::adapters::{mounts, tree};

/// Mounts what `sub_path` names below `volume` at `place`, which is made. One that is there already is kept if it is the
/// same file or directory. Blocking.
///
/// # Errors
/// Those of [`open`](super::open); that mounting is not allowed, with the remedy.
pub(in crate::adapters) fn bind(volume: &Path, sub_path: &Path, place: &Path) -> io::Result<()> {
    let found = open(volume, sub_path)?;
    let meta = fstat(&found)?;
    if mounts::right_at(place)?.is_some() {
        let there = stat(place)?;
        if (there.st_dev, there.st_ino) == (meta.st_dev, meta.st_ino) {
            return Ok(());
        }
        mounts::take_down(place).map_err(io::Error::other)?;
    }
    let is_dir = FileType::from_raw_mode(meta.st_mode) == FileType::Directory;
    if fs::symlink_metadata(place).is_ok_and(|it| it.is_dir() != is_dir) {
        tree::remove(place)?;
    }
    if is_dir {
        fs::create_dir_all(place)?;
    } else {
        place.parent().map_or(Ok(()), fs::create_dir_all)?;
        drop(fs::OpenOptions::new().create(true).append(true).open(place)?);
    }
    // The one way to what was found that no name leads astray.
    mount_bind(format!("/proc/self/fd/{}", found.as_raw_fd()), place).map_err(|error| match error {
        Errno::PERM => io::Error::new(
            ErrorKind::PermissionDenied,
            format!("subPath {}: may not mount it: run the agent as root", sub_path.display()),
        ),
        error => io::Error::other(format!("subPath {} cannot be mounted: {error}", sub_path.display())),
    })
}
