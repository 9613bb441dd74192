//! Removing what belongs to a pod, and nothing else: links are never followed, mounts never entered.

use std::fs;
use std::io::ErrorKind;
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
    crate::adapters::tree::remove(path).map_err(|error| io_error(path, &error))
}
