//! Measures the disk space of directory trees and file systems.
//!
//! A tree is scanned in small steps on blocking threads. Between two steps the scan rests for three times as long as the step
//! took, so that a scan takes at most a quarter of one CPU and of the disk's time, however many files a pod has. The files of
//! a pod change during the scan: an entry that is gone counts nothing.

mod scan;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use podwright_actors::ports::{FileSystemSpace, UsedSpace};
use rustix::fs::{CWD, Mode, OFlags, fstat, fstatvfs, openat};
use rustix::io::Errno;

pub(super) use scan::Scan;

/// The number of entries that one step reads: about a millisecond of work if the directories are cached.
const ENTRIES_PER_STEP: usize = 1000;
/// A scan rests for this many times the time that its step took.
const REST: u32 = 3;
/// The longest rest, so that one slow step does not stop a scan for minutes.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// The disk space of the tree at `path`, without file systems that are mounted in it; none if the path does not exist. A file
/// system that is mounted at the path itself is measured as a whole.
///
/// Cancel safe: a scan whose future is dropped ends with its current step.
///
/// # Errors
/// The error of the file system, with the path.
pub(super) async fn of_tree(path: PathBuf) -> io::Result<UsedSpace> {
    let at = path.clone();
    let mut scan = match blocking(move || Scan::open(&at)).await? {
        Some(scan) => scan,
        None => return Ok(UsedSpace::default()),
    };
    loop {
        let start = Instant::now();
        let (next, is_done) = blocking(move || {
            let is_done = scan.step(ENTRIES_PER_STEP)?;
            Ok((scan, is_done))
        })
        .await?;
        if is_done {
            return Ok(next.used());
        }
        scan = next;
        tokio::time::sleep((start.elapsed() * REST).min(LONGEST_REST)).await;
    }
}

/// The space of the file system that holds `path`. Blocks.
///
/// # Errors
/// The error of the file system, with the path.
pub(super) fn of_file_system(path: &Path) -> io::Result<FileSystemSpace> {
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

/// Runs work that blocks on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn with_path(path: &Path, error: Errno) -> io::Error {
    io::Error::new(io::Error::from(error).kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
