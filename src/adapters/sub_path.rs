//! The part of a volume that a mount's `subPath` names.
//!
//! A volume is the containers' to change, so any of its directories may be a link by now, or become one between two looks.
//! The kernel is asked to resolve each name within the volume, and what it found is held open from then on: a container gets
//! that very file or directory, whatever its name leads to later.

#[cfg(feature = "cri")]
mod bind;

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, openat, openat2};
use rustix::io::Errno;

#[cfg(feature = "cri")]
pub(super) use bind::bind;

/// How often a name is looked up again that somebody changed meanwhile.
const TRIES: u32 = 100;

/// Opens what `sub_path` names below `volume`, and makes what is missing of it as directories, with the mode of the volume
/// (upstream `SafeMakeDir`, kubelet 1.36). Links are followed as far as they stay in the volume. What comes back can be
/// looked at and mounted, not read. Blocking.
///
/// # Errors
/// As the system says, with the path; also for one that leads out of the volume.
pub(super) fn open(volume: &Path, sub_path: &Path) -> io::Result<OwnedFd> {
    let named = |error: Errno| match error {
        Errno::XDEV | Errno::LOOP => io::Error::new(
            ErrorKind::PermissionDenied,
            format!("subPath {} leads out of the volume: remove the link in it", sub_path.display()),
        ),
        error => io::Error::new(io::Error::from(error).kind(), format!("subPath {}: {error}", sub_path.display())),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = match openat(CWD, volume, flags, Mode::empty()) {
        // A volume of one file has nothing below it.
        Err(error) => return Err(named(error)),
        Ok(root) => root,
    };
    match within(&root, sub_path, OFlags::PATH) {
        Err(Errno::NOENT) => {}
        found => return found.map_err(named),
    }
    make(&root, sub_path).and_then(|()| within(&root, sub_path, OFlags::PATH)).map_err(named)
}

/// The volume's own part of a path that ends in `sub_path`.
pub(super) fn volume<'a>(path: &'a Path, sub_path: &Path) -> &'a Path {
    let names = sub_path.components().filter(|part| matches!(part, Component::Normal(_))).count();
    path.ancestors().nth(names).unwrap_or(path)
}

/// Where what `sub_path` names below `volume` is, with no link on the way; missing directories are made. It may be elsewhere
/// soon: for whoever cannot mount. Blocking.
///
/// # Errors
/// Those of [`open`].
#[cfg(feature = "process")]
pub(super) fn resolve(volume: &Path, sub_path: &Path) -> io::Result<PathBuf> {
    let found = open(volume, sub_path)?;
    std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&found)))
}

/// Makes the directories that are missing.
fn make(root: &OwnedFd, sub_path: &Path) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(fstat(root)?.st_mode & 0o7777);
    let mut above = within(root, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut path = PathBuf::new();
    for name in sub_path.components().filter(|part| matches!(part, Component::Normal(_))) {
        path.push(name);
        let dir = OFlags::RDONLY | OFlags::DIRECTORY;
        above = match within(root, &path, dir) {
            Err(Errno::NOENT) => {
                match mkdirat(&above, name.as_os_str(), mode) {
                    // A link that leads nowhere, too.
                    Err(Errno::EXIST) => within(root, &path, dir)?,
                    made => {
                        made?;
                        // Only what was made here gets the mode, and not what took its place.
                        let new = within_links_off(&above, Path::new(name.as_os_str()), dir)?;
                        // Past the process's mask.
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

/// What a path names below a directory, and never outside of it.
fn within(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    look_up(root, path, flags, ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
}

/// The same without following any link.
fn within_links_off(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    look_up(root, path, flags | OFlags::NOFOLLOW, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

fn look_up(root: &OwnedFd, path: &Path, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    for _ in 0..TRIES {
        match openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // Something was renamed at the same time, so the kernel cannot tell whether the result is inside.
            Err(Errno::AGAIN) => {}
            found => return found,
        }
    }
    Err(Errno::AGAIN)
}

#[cfg(test)]
mod tests;
