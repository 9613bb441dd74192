//! Space on disk that is allocated before it is needed, so that a full disk does not prevent a write.
//!
//! The end of a pod frees the files of the pod. If a full disk kept the agent from recording that end, the disk would stay full. So an
//! empty, hidden file beside the file owns the space for a save:
//!
//! ```text
//!  save:    bytes --> hidden file --> rename to the file, which owns the rest of the space behind its end, for the next lines
//!                                       |
//!                                       +--> the space of the replaced file is free, and a new hidden file takes it at once
//!  append:  lines --> file, then the hidden file grows with the file
//! ```
//!
//! Both files own space then, and so any number of saves succeeds on a full disk, one after each start of an agent. If another program
//! takes the free space before the hidden file does, the next write for which the disk has room reserves it again.

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use podwright_host::record;
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::retry_on_intr;
use rustix::process::geteuid;

/// The space is a multiple of this: some hundred final statuses or claims.
const STEP: u64 = 256 << 10;

/// A file that is written also on a full disk.
#[derive(Debug)]
pub(super) struct ReservedFile {
    path: PathBuf,
    /// Whether the last try to reserve space failed. That was logged.
    lacks_space: AtomicBool,
}

impl ReservedFile {
    /// The file at a path. Its space is not reserved yet.
    pub(super) fn new(path: PathBuf) -> Self {
        ReservedFile { path, lacks_space: AtomicBool::new(false) }
    }

    /// The bytes in the file.
    pub(super) fn size(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    /// Reserves the space for a save of this number of bytes and for as many appended ones. The first failure is logged, and so is the
    /// first success after it.
    pub(super) fn reserve(&self, bytes: u64) {
        let reserved = self.open().and_then(|file| allocate(&file, space(bytes)));
        let lacked = self.lacks_space.swap(reserved.is_err(), Ordering::Relaxed);
        match reserved {
            Err(error) if !lacked => tracing::warn!(
                path = %self.path.display(),
                %error,
                "cannot reserve space for the file, so the agent may be unable to write it while the disk is full"
            ),
            Ok(()) if lacked => tracing::info!(path = %self.path.display(), "space for the file is reserved again"),
            Ok(()) | Err(_) => {}
        }
    }

    /// Replaces the file atomically by these bytes, which survive a loss of power, and reserves space for the next save.
    pub(super) fn save(&self, bytes: &[u8]) -> io::Result<()> {
        let (file, length) = (self.open()?, bytes.len() as u64);
        // To truncate the file before the write would give its space back. A write that fails leaves the space to the next save.
        file.write_all_at(bytes, 0)?;
        if file.metadata()?.len() > length {
            file.set_len(length)?;
        }
        // The space for appended lines. The file is valid without it.
        let _ = allocate(&file, space(length));
        file.sync_data()?;
        fs::rename(self.hidden(), &self.path)?;
        // Another program may want the space of the replaced file.
        self.reserve(length);
        record::sync_parent(&self.path)
    }

    /// Opens the hidden file. It is empty, unless a write into it was interrupted.
    fn open(&self) -> io::Result<File> {
        let path = self.hidden();
        // A link is not followed, and a FIFO does not block.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        match OpenOptions::new().write(true).custom_flags(flags).open(&path) {
            Ok(file) if is_private(&file.metadata()?) => return Ok(file),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            // Another program has put something there, such as a link.
            Ok(_) | Err(_) => fs::remove_file(&path)?,
        }
        OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path)
    }

    fn hidden(&self) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(self.path.file_name().unwrap_or_default());
        name.push(".reserved");
        self.path.with_file_name(name)
    }
}

/// The space that is reserved for a file with this number of bytes.
fn space(bytes: u64) -> u64 {
    (2 * bytes).max(1).next_multiple_of(STEP)
}

/// Whether only this process's user can read and write a regular file, which has no other name.
fn is_private(file: &Metadata) -> bool {
    file.is_file() && file.uid() == geteuid().as_raw() && file.nlink() == 1 && file.mode() & 0o077 == 0
}

/// Allocates space in a file up to this number of bytes, and keeps its length: a hidden file with a length would look like a torn one.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    let is_allocated = || file.metadata().map(|metadata| 512 * metadata.blocks() >= bytes);
    // On a full disk, some file systems refuse to allocate what is allocated.
    if is_allocated()? {
        return Ok(());
    }
    retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes))?;
    // ZFS reports success without an allocation.
    if is_allocated()? {
        Ok(())
    } else {
        Err(io::Error::new(ErrorKind::Unsupported, "the file system does not allocate space before a write"))
    }
}
