//! The scan of one directory tree, in steps.
//!
//! The containers of a pod may change the tree during the scan. So every step goes from an open directory to a name in that
//! directory, no link is followed, and the kernel refuses to cross into another mount. A directory is read in portions, so the
//! memory of a scan does not grow with the number of files.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use podwright_ports::UsedSpace;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags, fstatvfs, openat,
    openat2, statx,
};
use rustix::io::Errno;

use super::with_path;

/// The number of levels that stay open. The directory that is as many levels above the current one is closed, and is opened
/// again as the `..` of its child. So a tree of any depth has at most this many directories open.
const OPEN_LEVELS: usize = 64;

/// The unit of a file's allocated blocks (statx(2), `stx_blocks`).
const BLOCK: u64 = 512;

const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The scan of one tree. All methods block.
#[derive(Debug)]
pub(super) struct Scan {
    path: PathBuf,
    /// The directories from the top of the tree down to the current one.
    levels: Vec<Level>,
    used: UsedSpace,
    /// The counted inodes that have several hard links. The tree is on one device.
    linked: HashSet<u64>,
}

/// A directory that the scan is in.
#[derive(Debug)]
struct Level {
    /// `None` for a directory that is closed until the scan returns to it.
    dir: Option<Dir>,
    /// Where the directory is read on.
    position: i64,
    identity: Identity,
}

/// Tells directories apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: (u32, u32),
    inode: u64,
}

impl Scan {
    /// Opens the top of a tree, or the file that `path` names. `None` if it does not exist.
    ///
    /// # Errors
    /// The error of the file system, with the path.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        let mut scan =
            Scan { path: path.to_owned(), levels: Vec::new(), used: UsedSpace::default(), linked: HashSet::new() };
        match scan.top() {
            Ok(()) => Ok(Some(scan)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(with_path(path, error)),
        }
    }

    fn top(&mut self) -> Result<(), Errno> {
        let dir = match openat(CWD, &self.path, OPEN_DIR, Mode::empty()) {
            // A link at the top is counted, and not followed.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let path = CString::new(self.path.as_os_str().as_encoded_bytes()).map_err(|_| Errno::INVAL)?;
                let found = facts(CWD, &path)?;
                self.count(&found);
                return Ok(());
            }
            dir => dir?,
        };
        let found = facts(&dir, c"")?;
        if is_mount_point(&found) {
            let space = fstatvfs(&dir)?;
            let bytes = space.f_blocks.saturating_sub(space.f_bfree).saturating_mul(space.f_frsize);
            self.used = UsedSpace::new(bytes, space.f_files.saturating_sub(space.f_ffree));
            return Ok(());
        }
        self.enter(dir, &found)
    }

    /// Counts at most `entries` entries. Returns whether the scan is done.
    ///
    /// # Errors
    /// The error of the file system, with the path. A directory that may not be read is no error and counts without its
    /// content, so that a pod cannot end its own measurement.
    pub(super) fn step(&mut self, entries: usize) -> io::Result<bool> {
        let mut left = entries;
        while let Some(level) = self.levels.last_mut() {
            let Some(dir) = level.dir.as_mut() else {
                self.leave();
                continue;
            };
            if left == 0 {
                return Ok(false);
            }
            let name = match dir.read() {
                Some(Ok(entry)) => {
                    level.position = entry.offset();
                    entry.file_name().to_owned()
                }
                // The directory was removed while it was read.
                None | Some(Err(Errno::NOENT)) => {
                    self.leave();
                    continue;
                }
                Some(Err(error)) => return Err(with_path(&self.path, error)),
            };
            if [&b"."[..], b".."].contains(&name.as_bytes()) {
                continue;
            }
            left -= 1;
            match self.entry(&name) {
                // The entry was removed or replaced after its directory was read.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => {}
                // Another mount does not belong to the tree.
                Err(Errno::XDEV) => {}
                Err(Errno::ACCESS | Errno::PERM) => {
                    tracing::debug!(path = %self.path.display(), "a directory may not be read and counts without its content");
                }
                Err(error) => return Err(with_path(&self.path, error)),
            }
        }
        Ok(true)
    }

    /// The space of the entries that are counted so far.
    pub(super) fn used(&self) -> UsedSpace {
        self.used
    }

    /// Counts one entry of the current directory, and enters it if it is a directory.
    fn entry(&mut self, name: &CStr) -> Result<(), Errno> {
        let Some(dir) = self.levels.last().and_then(|level| level.dir.as_ref()) else { return Ok(()) };
        let dir = dir.fd()?;
        let found = facts(dir, name)?;
        if is_mount_point(&found) {
            return Ok(());
        }
        if !is_directory(&found) {
            self.count(&found);
            return Ok(());
        }
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        match openat2(dir, name, OPEN_DIR, Mode::empty(), inside) {
            Ok(below) => {
                let found = facts(&below, c"")?;
                self.enter(below, &found)
            }
            Err(error) => {
                self.count(&found);
                Err(error)
            }
        }
    }

    /// Counts a directory and makes it the current one.
    fn enter(&mut self, dir: OwnedFd, found: &Statx) -> Result<(), Errno> {
        self.count(found);
        self.levels.push(Level { dir: Some(Dir::new(dir)?), position: 0, identity: Identity::of(found) });
        if let Some(far) = self.levels.len().checked_sub(OPEN_LEVELS + 1) {
            self.levels[far].dir = None;
        }
        Ok(())
    }

    /// Leaves the current directory, and opens its parent again if that was closed. If a container moved the directory, the parent
    /// cannot be found, and is left too.
    fn leave(&mut self) {
        let mut below = self.levels.pop().and_then(|level| level.dir);
        while let Some(level) = self.levels.last_mut() {
            if level.dir.is_some() {
                return;
            }
            level.dir = below.take().and_then(|below| level.reopen(&below).ok());
            if level.dir.is_some() {
                return;
            }
            tracing::debug!(path = %self.path.display(), "a directory was moved during the scan and is counted in part");
            self.levels.pop();
        }
    }

    fn count(&mut self, found: &Statx) {
        if !is_directory(found) && found.stx_nlink > 1 && !self.linked.insert(found.stx_ino) {
            return;
        }
        self.used = self.used + UsedSpace::new(found.stx_blocks.saturating_mul(BLOCK), 1);
    }
}

impl Level {
    /// Opens the directory again as the parent of its child, at the position where it was closed.
    fn reopen(&self, below: &Dir) -> Result<Dir, Errno> {
        let dir = openat(below.fd()?, c"..", OPEN_DIR, Mode::empty())?;
        if Identity::of(&facts(&dir, c"")?) != self.identity {
            return Err(Errno::STALE);
        }
        let mut dir = Dir::new(dir)?;
        dir.seek(self.position)?;
        Ok(dir)
    }
}

impl Identity {
    fn of(found: &Statx) -> Self {
        Identity { device: (found.stx_dev_major, found.stx_dev_minor), inode: found.stx_ino }
    }
}

/// The facts of an entry of a directory, or of the directory itself if the name is empty.
fn facts(dir: impl AsFd, name: &CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    statx(dir, name, flags, StatxFlags::BASIC_STATS)
}

fn is_directory(found: &Statx) -> bool {
    FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory
}

fn is_mount_point(found: &Statx) -> bool {
    found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
}
