//! Opens the file or directory of a volume that a mount's `subPath` names.
//!
//! Containers can write to their volumes, so any directory of a volume may be a link, or may become one between two system
//! calls. So the kernel resolves each name within the volume, and the result stays open: the container gets exactly that
//! file or directory, even if its name leads elsewhere later.

mod bind;

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use podwright_model::texts::containers::config as texts;
use podwright_ports::RuntimeError;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, openat, openat2};
use rustix::io::Errno;

pub use bind::bind;

use super::tree;

/// How many times a name is looked up if another process renames files during the lookup.
const TRIES: u32 = 100;

/// Opens the file or directory `sub_path` of `volume`. Missing directories are created with the mode of the volume (upstream
/// `SafeMakeDir`, kubelet 1.36). Links are followed if they stay in the volume. The result is an `O_PATH` descriptor, which
/// can be mounted but not read. Blocks.
///
/// # Errors
/// [`SubPathError`]; also if the `subPath` leads out of the volume.
pub fn open(volume: &Path, sub_path: &Path) -> Result<OwnedFd, SubPathError> {
    let named = |error: Errno| match error {
        Errno::XDEV | Errno::LOOP => io::Error::new(
            ErrorKind::PermissionDenied,
            format!("subPath {} leads out of the volume: remove the link from the volume", sub_path.display()),
        ),
        error => io::Error::new(io::Error::from(error).kind(), format!("subPath {}: {error}", sub_path.display())),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = match openat(CWD, volume, flags, Mode::empty()) {
        // For example a hostPath volume that is a file.
        Err(error) => return Err(SubPathError::Prepare(named(error))),
        Ok(root) => root,
    };
    match open_below(&root, sub_path, OFlags::PATH) {
        Err(Errno::NOENT) => {}
        found => return found.map_err(|error| SubPathError::Prepare(named(error))),
    }
    create_missing(&root, sub_path).map_err(|error| SubPathError::Create(named(error)))?;
    open_below(&root, sub_path, OFlags::PATH).map_err(|error| SubPathError::Prepare(named(error)))
}

/// The `subPath` of a mount cannot be used. The source describes files of the node.
#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    /// A missing directory cannot be created.
    #[error(transparent)]
    Create(io::Error),
    /// The file or directory cannot be opened or mounted.
    #[error(transparent)]
    Prepare(io::Error),
}

impl SubPathError {
    /// The error of a container whose mount of `volume` has the `subPath`. Its text does not contain the source, because not every
    /// user who reads a pod's status may know the node's files. The source is only logged (upstream `makeMounts`, kubelet 1.36).
    pub fn of_container(&self, uid: impl std::fmt::Display, container: &str, volume: &str) -> RuntimeError {
        tracing::warn!(pod.uid = %uid, container.name = container, volume, error = %self, "cannot use the subPath of a mount");
        RuntimeError::config(match self {
            SubPathError::Create(_) => texts::sub_path_not_created(volume, container),
            SubPathError::Prepare(_) => texts::sub_path_not_prepared(volume, container),
        })
    }
}

/// The path of the volume, given a path that ends with `sub_path`.
pub fn volume<'a>(path: &'a Path, sub_path: &Path) -> &'a Path {
    let names = sub_path.components().filter(|part| matches!(part, Component::Normal(_))).count();
    path.ancestors().nth(names).unwrap_or(path)
}

/// The path of the file or directory `sub_path` of `volume`, with all links resolved. Missing directories are created. Only
/// for a container that uses the path with its own rights: another container may replace the file or directory by a link at any
/// time. Blocks.
///
/// # Errors
/// The errors of [`open`].
pub fn resolve(volume: &Path, sub_path: &Path) -> Result<PathBuf, SubPathError> {
    let found = open(volume, sub_path)?;
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&found));
    fs::read_link(path).map_err(SubPathError::Prepare)
}

/// Creates an empty file or directory on which the open file or directory `source` can be mounted. What is there already is replaced if it is of the other kind.
/// No container may write to the directory of the mount point.
///
/// # Errors
/// The system's error.
pub fn make_point(at: &Path, source: &OwnedFd) -> io::Result<()> {
    let is_dir = FileType::from_raw_mode(fstat(source)?.st_mode) == FileType::Directory;
    if fs::symlink_metadata(at).is_ok_and(|found| found.is_dir() != is_dir) {
        tree::remove(at)?;
    }
    if is_dir {
        return fs::create_dir_all(at);
    }
    at.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::OpenOptions::new().create(true).append(true).open(at).map(drop)
}

/// Creates the missing directories.
fn create_missing(root: &OwnedFd, sub_path: &Path) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(fstat(root)?.st_mode & 0o7777);
    let mut above = open_below(root, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut path = PathBuf::new();
    for name in sub_path.components().filter(|part| matches!(part, Component::Normal(_))) {
        path.push(name);
        let dir = OFlags::RDONLY | OFlags::DIRECTORY;
        above = match open_below(root, &path, dir) {
            Err(Errno::NOENT) => {
                match mkdirat(&above, name.as_os_str(), mode) {
                    // Another process created it, or it is a broken link, which this lookup reports.
                    Err(Errno::EXIST) => open_below(root, &path, dir)?,
                    made => {
                        made?;
                        // Only the new directory gets the mode. A link that a container put in its place is not followed.
                        let new = open_below_without_links(&above, Path::new(name.as_os_str()), dir)?;
                        // `mkdirat` applies the process's umask; this does not.
                        fchmod(&new, mode)?;
                        new
                    }
                }
            }
            found => found?,
        };
    }
    Ok(())
}

/// Opens a path below a directory. Links are followed, but never out of the directory.
fn open_below(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    look_up(root, path, flags, ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
}

/// Opens a path below a directory without following any link.
fn open_below_without_links(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    look_up(root, path, flags | OFlags::NOFOLLOW, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

fn look_up(root: &OwnedFd, path: &Path, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    for _ in 0..TRIES {
        match openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // Another process renamed a file during the lookup, so the kernel cannot decide whether the result is in the
            // volume.
            Err(Errno::AGAIN) => {}
            found => return found,
        }
    }
    Err(Errno::AGAIN)
}

#[cfg(test)]
mod tests;
