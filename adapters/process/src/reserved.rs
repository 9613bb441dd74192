//! Space on disk that is allocated before it is needed, so that a full disk cannot prevent the write of a record.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use serde::Serialize;

use super::files::remove_file;
use super::record::{self, Durability};

/// A file with allocated space, which becomes a record.
#[derive(Debug)]
pub(super) struct ReservedSpace {
    file: File,
    path: PathBuf,
}

impl ReservedSpace {
    /// Allocates `bytes` in a new file. A file that an earlier start left at the path is replaced.
    pub(super) fn new(path: PathBuf, bytes: u32) -> io::Result<Self> {
        remove_file(&path)?;
        let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path)?;
        allocate(&file, bytes).inspect_err(|_| {
            let _ = remove_file(&path);
        })?;
        Ok(ReservedSpace { file, path })
    }

    /// Writes a record into the space and gives the file the record's path.
    pub(super) fn write<T: Serialize>(self, to: &Path, record: &T, durability: Durability) -> io::Result<()> {
        let bytes = record::encode(record)?;
        self.file.write_all_at(&bytes, 0)?;
        self.file.set_len(bytes.len() as u64)?;
        let on_disk = durability == Durability::Disk;
        // A record that is not on disk yet is better than none: its checksum detects a torn file.
        let synced = if on_disk { self.file.sync_data() } else { Ok(()) };
        std::fs::rename(&self.path, to)?;
        synced?;
        if on_disk { record::sync_parent(to) } else { Ok(()) }
    }
}

fn allocate(mut file: &File, bytes: u32) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes.into()) {
        // Not every file system can allocate space without writing it.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            file.write_all(&vec![0; bytes as usize])?;
            file.sync_data()
        }
        allocated => Ok(allocated?),
    }
}

#[cfg(test)]
mod tests {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    use super::*;
    use crate::record::ExitRecord;

    // Requires the right to mount.
    #[test]
    fn record_in_reserved_space_is_written_on_a_full_disk() {
        let dir = tempfile::tempdir().unwrap();
        if mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), Some(c"size=256k")).is_err() {
            eprintln!("skipped: this process may not mount");
            return;
        }
        let exit = ExitRecord::start_error("\u{1}".repeat(4096));
        let (path, later) = (dir.path().join("exit"), dir.path().join("later"));
        let space = ReservedSpace::new(dir.path().join("exit-reserved"), 32 << 10).unwrap();
        let mut fill = File::create(dir.path().join("fill")).unwrap();
        while fill.write_all(&[1; 4096]).is_ok() {}
        assert!(record::write(&later, &exit, Durability::Disk).is_err(), "the disk is full");
        let written = space.write(&path, &exit, Durability::Disk);
        let read = record::read::<ExitRecord>(&path);
        assert!(ReservedSpace::new(later, 32 << 10).is_err());
        drop(fill);
        unmount(dir.path(), UnmountFlags::empty()).unwrap();
        written.unwrap();
        assert_eq!(read.unwrap(), exit);
    }
}
