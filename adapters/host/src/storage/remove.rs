//! Removes only the files of a pod: the removal follows no links and enters no mounts. It unmounts what this agent or an
//! earlier agent mounted for the pod. Any other mount is kept, together with the directories above it.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use podwright_model::ids::PodUid;
use podwright_ports::StorageError;

use super::calls::CallProgress;
use super::empty_dir::TMPFS;
use super::huge_pages::HUGETLBFS;
use super::volume::{IN_MEMORY, PLUGINS};
use super::{PodLogs, entries, for_volume, io_error, is_dir};
use crate::mounts::{self, UnmountError};

/// Removes the volumes that the storage creates, with their content. Other volumes are kept, because the agent does not own
/// their content.
pub(super) fn volumes(dir: &Path, step: &CallProgress) -> Result<(), StorageError> {
    sub_paths(dir, step)?;
    for plugin in PLUGINS {
        for volume in entries(&dir.join("volumes").join(plugin))? {
            step.at(&volume);
            let named = |error| for_volume(&name(&volume), error);
            if IN_MEMORY.contains(plugin) {
                unmount_memory(&volume).map_err(named)?;
            }
            tree(&volume).map_err(named)?;
        }
    }
    Ok(())
}

/// Unmounts a volume if it is a tmpfs or has huge pages.
fn unmount_memory(volume: &Path) -> Result<(), StorageError> {
    match mounts::exactly_at(volume).map_err(|error| io_error(volume, error))? {
        Some(mounted) if [TMPFS, HUGETLBFS].contains(&&*mounted.kind) => unmount(&name(volume), volume),
        _ => Ok(()),
    }
}

/// Unmounts the `subPath` mounts of the pod's containers, and removes their mount points.
fn sub_paths(dir: &Path, step: &CallProgress) -> Result<(), StorageError> {
    let sub_paths = dir.join(mounts::SUB_PATHS);
    for mounted in mounts::below(&sub_paths).map_err(|error| io_error(&sub_paths, error))? {
        step.at(&mounted.at);
        let volume = mounted.at.ancestors().nth(2).map(name).unwrap_or_default();
        unmount(&volume, &mounted.at)?;
    }
    tree(&sub_paths)
}

fn unmount(volume: &str, path: &Path) -> Result<(), StorageError> {
    mounts::unmount(path).map_err(|error| match error {
        UnmountError::Busy { .. } => StorageError::busy(volume, error),
        UnmountError::Refused { .. } => StorageError::volume(volume, error),
    })
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Removes the pod's empty volumes and the directory of its volumes.
///
/// # Errors
/// The error of the first volume that is not empty. Then nothing else of the pod may be removed.
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

/// Removes the directory of a pod with its content.
pub(super) fn pod(dir: &Path) -> Result<(), StorageError> {
    if is_dir(dir) { tree(dir) } else { Ok(()) }
}

/// Removes the log directory of a pod of this agent, and every link to a log in that directory, including broken links.
pub(super) fn logs(logs: &PodLogs, uid: &PodUid) -> Result<(), StorageError> {
    let suffix = format!("_{uid}");
    // The UID may contain underscores, but the namespace and the name before it cannot.
    let is_of_pod = |name: &str| name.strip_suffix(&suffix).is_some_and(|rest| rest.split('_').count() == 2);
    let is_below = |path: &Path| {
        let dir = path.strip_prefix(&logs.pods).ok().and_then(|below| below.iter().next()?.to_str());
        dir.is_some_and(is_of_pod)
    };
    for link in entries(&logs.links)? {
        if fs::read_link(&link).is_ok_and(|target| is_below(&target)) {
            fs::remove_file(&link).map_err(|error| io_error(&link, error))?;
        }
    }
    for dir in entries(&logs.pods)?.into_iter().filter(|path| is_below(path) && is_dir(path)) {
        tree(&dir)?;
    }
    Ok(())
}

/// Removes an empty directory. Succeeds if it does not exist.
fn rmdir(path: &Path) -> Result<(), StorageError> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error(path, error)),
        _ => Ok(()),
    }
}

fn tree(path: &Path) -> Result<(), StorageError> {
    crate::tree::remove(path).map_err(|error| io_error(path, error))
}
