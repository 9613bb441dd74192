//! Removing what belongs to a pod, and nothing else: links are never followed, mounts never entered. What was mounted for the
//! pod is unmounted, in whichever life of the agent that was; a mount that nobody here made stays, and with it all that is
//! in its way.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use podwright_actors::ports::StorageError;

use super::empty_dir::TMPFS;
use super::progress::Step;
use super::volume::{EMPTY_DIR, PLUGINS};
use super::{entries, io_error, is_dir, of_volume};
use crate::adapters::mounts::{self, UnmountError};

/// Removes the volumes that are made here, with their content. Others stay: their content is not the node's to remove.
pub(super) fn volumes(dir: &Path, step: &Step) -> Result<(), StorageError> {
    sub_paths(dir, step)?;
    for plugin in PLUGINS {
        for volume in entries(&dir.join("volumes").join(plugin))? {
            step.at(&volume);
            let named = |error| of_volume(&name(&volume), error);
            if *plugin == EMPTY_DIR {
                memory(&volume).map_err(named)?;
            }
            tree(&volume).map_err(named)?;
        }
    }
    Ok(())
}

/// Unmounts a volume in memory.
fn memory(volume: &Path) -> Result<(), StorageError> {
    match mounts::right_at(volume).map_err(|error| io_error(volume, &error))? {
        Some(mounted) if mounted.kind == TMPFS => unmounted(&name(volume), volume),
        _ => Ok(()),
    }
}

/// Unmounts what containers saw of volumes by a `subPath`, and removes the places.
fn sub_paths(dir: &Path, step: &Step) -> Result<(), StorageError> {
    let places = dir.join(mounts::SUB_PATHS);
    for mounted in mounts::below(&places).map_err(|error| io_error(&places, &error))? {
        step.at(&mounted.at);
        let volume = mounted.at.ancestors().nth(2).map(name).unwrap_or_default();
        unmounted(&volume, &mounted.at)?;
    }
    tree(&places)
}

fn unmounted(volume: &str, path: &Path) -> Result<(), StorageError> {
    mounts::take_down(path).map_err(|error| match error {
        UnmountError::Busy { .. } => StorageError::Busy { volume: volume.to_owned(), reason: error.to_string() },
        UnmountError::Refused { .. } => StorageError::Volume { volume: volume.to_owned(), reason: error.to_string() },
    })
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Removes the volumes that are empty.
///
/// # Errors
/// That of the first one that is not: then nothing else of the pod may be removed.
pub(super) fn empty_volumes(dir: &Path) -> Result<(), StorageError> {
    let volumes = dir.join("volumes");
    for plugin in entries(&volumes)? {
        if is_dir(&plugin) {
            for volume in entries(&plugin)? {
                rmdir(&volume)?;
            }
        }
        rmdir(&plugin)?;
    }
    rmdir(&volumes)
}

/// Removes the directory of a pod with all that is left in it.
pub(super) fn pod(dir: &Path) -> Result<(), StorageError> {
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
