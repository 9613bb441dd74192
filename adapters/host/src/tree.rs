//! Removes directory trees that containers wrote. The removal follows no links and enters no mounts.
//!
//! A container may change the tree during the removal, and another process may mount a file system in it. So every step goes
//! from an open directory to a name in that directory, and the kernel refuses to cross into another mount.

use std::ffi::{CString, OsStr};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, renameat, unlinkat};
use rustix::io::Errno;

use super::mounts;

/// The depth to which directories are emptied in place. Deeper directories are first moved to the top of the tree, so the
/// removal of a tree of any depth has at most this many directories open.
const DEPTH: usize = 64;

/// Removes a file, or a directory with its content. Succeeds if the path does not exist. Blocks.
///
/// # Errors
/// The error names the path. If a mount is at the path or below it, nothing is removed. If another process mounts a file
/// system there during the removal, the removal ends at that mount.
pub fn remove(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        let text = format!("{} is not an entry of a directory and cannot be removed", path.display());
        return Err(io::Error::new(ErrorKind::InvalidInput, text));
    };
    if let Some(mounted) = mounts::below(path)?.last() {
        return Err(mounted_error(&mounted.at));
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = match openat(CWD, parent, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        dir => dir.map_err(|error| with_path(parent, error))?,
    };
    let name = CString::new(name.as_bytes())?;
    let Some(tree) = unlink_or_open(&dir, &name, path)? else { return Ok(()) };
    let mut moved = 0;
    // Each round moves deep directories up, and the next round empties them.
    while empty(&tree, &tree, path, 0, &mut moved)? {}
    unlink_dir(&dir, &name, path)
}

/// Removes the content of a directory. Returns whether a directory was moved up to `top`.
fn empty(top: &OwnedFd, dir: &OwnedFd, path: &Path, depth: usize, moved: &mut u64) -> io::Result<bool> {
    let mut any_moved = false;
    let names: Vec<CString> = Dir::read_from(dir)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name().to_owned())).collect())
        .map_err(|error| with_path(path, error))?;
    for name in names.iter().filter(|name| ![&b"."[..], b".."].contains(&name.as_bytes())) {
        let path = path.join(OsStr::from_bytes(name.as_bytes()));
        let Some(below) = unlink_or_open(dir, name, &path)? else { continue };
        if depth >= DEPTH {
            *moved += 1;
            let fresh = format!("..removed_{}_{moved}", std::process::id());
            renameat(dir, name, top, fresh).map_err(|error| with_path(&path, error))?;
            any_moved = true;
            continue;
        }
        any_moved |= empty(top, &below, &path, depth + 1, moved)?;
        unlink_dir(dir, name, &path)?;
    }
    Ok(any_moved)
}

/// Removes the entry if it is not a directory. Opens it if it is one, and restores the owner's permissions, which a container
/// may have removed.
fn unlink_or_open(dir: &OwnedFd, name: &CString, path: &Path) -> io::Result<Option<OwnedFd>> {
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(dir, name, flags, Mode::empty(), inside) {
        Ok(found) => {
            let mode = fstat(&found).map_err(|error| with_path(path, error))?.st_mode;
            if FileType::from_raw_mode(mode) == FileType::Directory {
                restore_access(&found, mode)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                return openat(&found, c".", flags, Mode::empty()).map(Some).map_err(|error| with_path(path, error));
            }
        }
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::XDEV) => return Err(mounted_error(path)),
        // The entry is a symbolic link.
        Err(Errno::LOOP) => {}
        Err(error) => return Err(with_path(path, error)),
    }
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(None),
        Err(Errno::BUSY) => Err(mounted_error(path)),
        Err(error) => Err(with_path(path, error)),
    }
}

/// Restores the owner's permissions on a directory, which a container may have removed. Does not follow a link. Blocks.
///
/// # Errors
/// The system's error, with the path.
pub(crate) fn restore_owner_access(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(CWD, path, flags, Mode::empty()).map_err(|error| with_path(path, error))?;
    restore_access(&dir, fstat(&dir).map_err(|error| with_path(path, error))?.st_mode)
}

fn restore_access(dir: &OwnedFd, mode: u32) -> io::Result<()> {
    if mode & 0o700 == 0o700 {
        return Ok(());
    }
    // This path names the open directory itself. The directory's own path may lead to another directory by now.
    let itself = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    fs::set_permissions(itself, Permissions::from_mode(mode & 0o7777 | 0o700))
}

fn unlink_dir(dir: &OwnedFd, name: &CString, path: &Path) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => Err(mounted_error(path)),
        Err(error) => Err(with_path(path, error)),
    }
}

fn mounted_error(path: &Path) -> io::Error {
    io::Error::new(ErrorKind::ResourceBusy, format!("something is mounted at {}: unmount it", path.display()))
}

fn with_path(path: &Path, error: Errno) -> io::Error {
    io::Error::new(io::Error::from(error).kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
