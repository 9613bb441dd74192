//! Measures the disk space of directory trees and file systems.
//!
//! A tree is scanned in small steps on blocking threads. Between two steps the scan rests for three times as long as the step
//! took, so that a scan takes at most a quarter of one CPU and of the disk's time, however many files a pod has. The files of
//! a pod change during the scan: an entry that is gone counts nothing.

mod scan;
mod tree;

use std::io;
use std::path::Path;

use podwright_ports::FileSystemSpace;
use rustix::fs::{CWD, Mode, OFlags, fstat, fstatvfs, openat};
use rustix::io::Errno;

pub use tree::{blocking, of_tree};

/// The space of the file system that holds `path`. Blocks.
///
/// # Errors
/// The error of the file system, with the path.
pub fn of_file_system(path: &Path) -> io::Result<FileSystemSpace> {
    let measure = || -> Result<FileSystemSpace, Errno> {
        let fd = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let (stat, space) = (fstat(&fd)?, fstatvfs(&fd)?);
        Ok(FileSystemSpace {
            device: stat.st_dev,
            capacity: space.f_blocks.saturating_mul(space.f_frsize),
            available: space.f_bavail.saturating_mul(space.f_frsize),
            inodes: space.f_files,
            inodes_free: space.f_ffree,
        })
    };
    measure().map_err(|error| with_path(path, error))
}

fn with_path(path: &Path, error: Errno) -> io::Error {
    io::Error::new(io::Error::from(error).kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
