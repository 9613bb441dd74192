//! The directory with the logs of a container.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::Dir;

use crate::regular;

/// The directory with the logs of a container. Containers and other programs may change everything below `root`, for example
/// log collectors that mount it. Links below `root` are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDir {
    root: PathBuf,
    below: PathBuf,
}

impl LogDir {
    /// The directory `below`, a relative path, of `root`.
    pub fn new(root: impl Into<PathBuf>, below: impl Into<PathBuf>) -> Self {
        LogDir { root: root.into(), below: below.into() }
    }

    /// The path of the directory.
    pub fn path(&self) -> PathBuf {
        self.root.join(&self.below)
    }

    /// Removes the directory if it is empty. Blocks.
    pub fn remove_if_empty(&self) -> io::Result<()> {
        use rustix::fs::{AtFlags, unlinkat};
        use rustix::io::Errno;
        let (Some(above), Some(name)) = (self.below.parent(), self.below.file_name()) else { return Ok(()) };
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        match unlinkat(regular::open_dir(&self.root, above)?, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the directory. Blocks.
    pub fn open(&self) -> io::Result<OpenLogDir> {
        Ok(OpenLogDir { fd: regular::open_dir(&self.root, &self.below)? })
    }
}

/// An open [`LogDir`]. All calls block.
#[derive(Debug)]
pub struct OpenLogDir {
    fd: OwnedFd,
}

impl OpenLogDir {
    /// The names in the directory. Names that are not UTF-8 are left out.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            match entry?.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }

    /// Opens a log file for reading.
    pub fn file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        regular::open(&self.fd, Path::new(name.as_ref()))
    }
}

impl OpenLogDir {
    /// Opens a log file for appending. A link, FIFO or device at its name is replaced by a new file.
    pub fn append(&self, name: &str, mode: u32) -> io::Result<File> {
        regular::append(&self.fd, Path::new(name), mode)
    }
}

impl OpenLogDir {
    /// Removes a file, or a directory that another program put there. Succeeds if the name is missing.
    pub(super) fn remove_tree(&self, name: &str) -> io::Result<()> {
        use std::os::fd::AsRawFd;

        use rustix::fs::{AtFlags, unlinkat};
        use rustix::io::Errno;
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {
                // This path leads to the open directory, even if the directory was renamed or replaced since.
                let itself = PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()));
                crate::tree::remove(&itself.join(name))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The facts about a regular file that readers and rotation need.
pub(super) struct LogFileFacts {
    /// The size in bytes.
    pub(super) size: u64,
    /// The device and the inode.
    pub(super) identity: (u64, u64),
    pub(super) modified: std::time::SystemTime,
}

/// The calls of readers and rotation.
impl OpenLogDir {
    /// The facts about a log file, without opening it.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if it is not a regular file; otherwise the system's error.
    pub(super) fn facts(&self, name: &str) -> io::Result<LogFileFacts> {
        use rustix::fs::{AtFlags, FileType, statat};
        let stat = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(regular::not_regular());
        }
        let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        let since = std::time::Duration::new(u64::try_from(stat.st_mtime).unwrap_or(0), nanos);
        Ok(LogFileFacts {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            identity: (stat.st_dev, stat.st_ino),
            modified: std::time::UNIX_EPOCH + since,
        })
    }

    /// Begins to watch the directory for new files. Must be called in a tokio runtime.
    pub(super) fn watch(&self) -> io::Result<crate::dir_watch::DirWatch> {
        use std::os::fd::AsRawFd;
        // This path leads to the open directory, even if the directory was renamed or replaced since.
        crate::dir_watch::DirWatch::new(Path::new(&format!("/proc/self/fd/{}", self.fd.as_raw_fd())))
    }

    pub(super) fn create(&self, name: &str, mode: u32) -> io::Result<File> {
        regular::create(&self.fd, Path::new(name), mode)
    }

    /// Removes a file. Succeeds if it is missing.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        use rustix::fs::{AtFlags, unlinkat};
        use rustix::io::Errno;
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Renames a file and replaces the file that has the new name.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Renames a file.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if the new name exists.
    pub(super) fn rename_to_new(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat_with(&self.fd, from, &self.fd, to, rustix::fs::RenameFlags::NOREPLACE)?)
    }
}
