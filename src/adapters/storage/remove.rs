//! Removing what belongs to a pod, and nothing else: links are never followed, mounts never entered.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use podwright_actors::ports::StorageError;

use super::{entries, io_error, is_dir};

/// Removes the volumes of the named plugins with their content. Others stay: their content is not the node's to remove.
pub(super) fn volumes(dir: &Path, plugins: &[&str]) -> Result<(), StorageError> {
    for plugin in plugins {
        for volume in entries(&dir.join("volumes").join(plugin))? {
            tree(&volume)?;
        }
    }
    Ok(())
}

/// Removes the directory of a pod. While a volume is left nothing but empty volumes is removed.
pub(super) fn pod(dir: &Path) -> Result<(), StorageError> {
    let volumes = dir.join("volumes");
    for plugin in entries(&volumes)? {
        if is_dir(&plugin) {
            for volume in entries(&plugin)? {
                rmdir(&volume)?;
            }
        }
        rmdir(&plugin)?;
    }
    rmdir(&volumes)?;
    if is_dir(dir) { tree(dir) } else { Ok(()) }
}

/// Removes a directory that is empty or not there.
fn rmdir(path: &Path) -> Result<(), StorageError> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error(path, &error)),
        _ => Ok(()),
    }
}

fn tree(path: &Path) -> Result<(), StorageError> {
    let meta = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| io_error(path, &error))?,
    };
    let device = path.parent().and_then(|parent| fs::symlink_metadata(parent).ok()).map_or(meta.dev(), |it| it.dev());
    let remove = || {
        prepare(path, device)?;
        if meta.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
    };
    match remove() {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error(path, &error)),
        _ => Ok(()),
    }
}

/// Refuses a tree with something mounted in it, and makes its directories writable: a container may have locked its own.
fn prepare(path: &Path, device: u64) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if meta.dev() != device {
        return Err(io::Error::other(format!("{} is mounted there: unmount it", path.display())));
    }
    if !meta.is_dir() {
        return Ok(());
    }
    let mode = meta.permissions().mode();
    if mode & 0o700 != 0o700 {
        fs::set_permissions(path, Permissions::from_mode(mode | 0o700))?;
    }
    for entry in fs::read_dir(path)? {
        prepare(&entry?.path(), device)?;
    }
    Ok(())
}
