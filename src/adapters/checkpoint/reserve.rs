//! Space on disk that is allocated before it is needed, so that a full disk does not prevent a save.
//!
//! The end of a pod frees the files of the pod. If a full disk kept the agent from recording that end, the disk would stay full. So the
//! space for one save belongs to an empty, hidden file beside the file. A save for which the disk has no room goes there, and the hidden
//! file gets the name of the file. The rest of the space is behind the end of the file then, and the next lines are appended into it.
//! The first save after that for which the disk has room reserves space again.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, fallocate};

use super::super::record::{self, Durability};

/// The space for one file: some hundred final statuses or claims.
const BYTES: u64 = 256 << 10;

/// Reserves space for a file that is about to be written for the first time by this agent. A failure is logged.
pub(super) fn reserve_at_start(path: &Path) {
    if let Err(error) = reserve(path) {
        tracing::warn!(
            path = %path.display(),
            %error,
            "cannot reserve space for the file, so the agent cannot write it while the disk is full"
        );
    }
}

/// Allocates the space, unless an earlier call has.
fn reserve(path: &Path) -> io::Result<()> {
    // The hidden file stays empty: a file with a length would look like a torn one.
    Ok(fallocate(open(path, true)?, FallocateFlags::KEEP_SIZE, 0, BYTES)?)
}

/// Replaces a file atomically by these bytes, which survive a loss of power. On a full disk, they take the reserved space.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    record::replace(path, bytes, Durability::Disk).or_else(|error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => replace_by_reserved(path, bytes).map_err(|_| error),
        _ => Err(error),
    })?;
    // The bytes are on disk. A full disk has no space to reserve.
    let _ = reserve(path);
    Ok(())
}

/// The same for a file to which lines are appended on a full disk, and which cannot be replaced again there: the file takes the reserved
/// space also if the disk has room, so that there is space behind its end.
pub(super) fn begin(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_by_reserved(path, bytes).or_else(|_| record::replace(path, bytes, Durability::Disk))?;
    let _ = reserve(path);
    Ok(())
}

fn replace_by_reserved(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = open(path, false)?;
    file.write_all_at(bytes, 0)?;
    file.sync_data()?;
    fs::rename(hidden(path), path)?;
    record::sync_parent(path)
}

/// Opens the hidden file, which is empty.
fn open(path: &Path, create: bool) -> io::Result<File> {
    // A link is not followed, and a FIFO does not block.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    let file = options.write(true).create(create).truncate(false).mode(0o600).custom_flags(flags).open(hidden(path))?;
    // A write into it was interrupted. To truncate an empty file would give its space back.
    if file.metadata()?.len() > 0 {
        file.set_len(0)?;
    }
    Ok(file)
}

/// The hidden file of a file.
fn hidden(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".reserved");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use podwright_actors::ports::Checkpoint;
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    #[cfg(feature = "dra")]
    use super::super::ClaimCheckpoint;
    use super::super::FileCheckpoint;
    use super::*;

    /// A file system of 2 MiB, which is unmounted when this is dropped.
    struct SmallDisk(tempfile::TempDir);

    impl SmallDisk {
        /// `None` if this process may not mount.
        fn new() -> Option<Self> {
            let dir = tempfile::tempdir().unwrap();
            if mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), Some(c"size=2m")).is_err() {
                eprintln!("skipped: this process may not mount");
                return None;
            }
            Some(SmallDisk(dir))
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Fills the file system with one file.
        fn fill(&self) -> PathBuf {
            let path = self.path("fill");
            let mut file = File::create(&path).unwrap();
            while file.write_all(&[1; 4096]).is_ok() {}
            path
        }
    }

    impl Drop for SmallDisk {
        fn drop(&mut self) {
            let _ = unmount(self.0.path(), UnmountFlags::DETACH);
        }
    }

    /// Records of 1 KiB each.
    fn records(count: usize) -> Vec<Arc<str>> {
        vec![Arc::from("x".repeat(1024)); count]
    }

    // Requires the right to mount.
    #[tokio::test]
    async fn final_statuses_are_written_on_a_full_disk() {
        let Some(disk) = SmallDisk::new() else { return };
        let store = FileCheckpoint::new(disk.path("journal"));
        let others = FileCheckpoint::of_allocations(disk.path("allocations"));
        let (writer, of_others) = (store.open().unwrap().writer, others.open().unwrap().writer);
        let fill = disk.fill();
        of_others.save(records(1)).await.unwrap_err();
        writer.save(records(10)).await.unwrap();
        for _ in 0..100 {
            writer.append(records(1)).await.unwrap();
        }
        // The space is used, and the disk is still full.
        writer.save(records(1)).await.unwrap_err();
        let opened = store.open().unwrap();
        assert_eq!(opened.records.len(), 110, "a save that fails replaces nothing");

        fs::remove_file(&fill).unwrap();
        opened.writer.save(records(20)).await.unwrap();
        disk.fill();
        opened.writer.save(records(30)).await.unwrap();
        assert_eq!(store.open().unwrap().records.len(), 30, "space was reserved again");
    }

    #[tokio::test]
    async fn space_of_an_earlier_agent_is_used() {
        let Some(disk) = SmallDisk::new() else { return };
        let store = FileCheckpoint::new(disk.path("journal"));
        drop(store.open().unwrap());
        disk.fill();
        let writer = store.open().unwrap().writer;
        writer.save(records(10)).await.unwrap();
        assert_eq!(store.open().unwrap().records.len(), 10);
    }

    // A pod whose devices are not released is not cleaned up, so its files would stay on the full disk.
    #[cfg(feature = "dra")]
    #[tokio::test]
    async fn claims_are_written_on_a_full_disk() {
        let Some(disk) = SmallDisk::new() else { return };
        let store = ClaimCheckpoint::new(disk.0.path().to_owned());
        let writer = store.open().unwrap().writer;
        disk.fill();
        let claim = || Arc::from(r#"{"ClaimName":"cam","Namespace":"shop"}"#);
        writer.save(vec![claim()]).await.unwrap();
        for _ in 0..100 {
            writer.append(vec![claim()]).await.unwrap();
        }
        assert_eq!(store.open().unwrap().records.len(), 101);
    }

    /// The rest of a write into the space that was cut off.
    #[test]
    fn interrupted_use_of_the_space_is_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        fs::write(hidden(&path), "a longer content than the next one").unwrap();
        replace_by_reserved(&path, b"short").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"short");
        assert!(!hidden(&path).exists());
    }
}
