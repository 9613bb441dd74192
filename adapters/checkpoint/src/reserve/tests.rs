use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use podwright_fixtures::hostile_files::{clear, plants};
use podwright_ports::{Checkpoint, CheckpointWriter};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::super::ClaimCheckpoint;
use super::super::FileCheckpoint;
use super::*;

/// Records of 1 KiB each.
fn records(count: usize) -> Vec<Arc<str>> {
    vec![Arc::from("x".repeat(1000)); count]
}

fn hidden(path: &Path) -> PathBuf {
    ReservedFile::new(path.to_owned()).hidden()
}

/// The allocated bytes of a file.
fn allocated(path: &Path) -> u64 {
    512 * fs::metadata(path).unwrap().blocks()
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// A directory in which space can be reserved. `None` if the file system of temporary files cannot reserve space.
fn directory() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir().unwrap();
    let probe = File::create(dir.path().join("probe")).unwrap();
    if allocate(&probe, STEP).is_err() {
        eprintln!("skipped: the file system of temporary files cannot reserve space");
        return None;
    }
    Some(dir)
}

/// The writer and the path of a journal of final statuses.
fn journal(dir: &Path) -> (Box<dyn CheckpointWriter>, PathBuf) {
    let path = dir.join("journal");
    (FileCheckpoint::new(path.clone()).open().unwrap().writer, path)
}

// The rest of the space is for lines, and the next save has its own: that of an agent that restarts on the full disk.
#[tokio::test]
async fn save_takes_the_reserved_space_and_both_files_have_space_after_it() {
    let Some(dir) = directory() else { return };
    let (writer, path) = journal(dir.path());
    for count in [1, 100, 600, 2] {
        let reserved = inode(&hidden(&path));
        writer.save(records(count)).await.unwrap();
        assert_eq!(inode(&path), reserved, "{count}");
        let twice = (2 * fs::metadata(&path).unwrap().len()).max(STEP);
        for file in [&path, &hidden(&path)] {
            assert!(allocated(file) >= twice, "{count}: {} of {twice} in {}", allocated(file), file.display());
        }
        assert_eq!(fs::metadata(hidden(&path)).unwrap().len(), 0);
    }
}

#[tokio::test]
async fn append_reserves_the_space_that_is_lacking() {
    let Some(dir) = directory() else { return };
    let (writer, path) = journal(dir.path());
    writer.save(records(1)).await.unwrap();
    // A directory in the place of the hidden file is in the way, as a full disk is.
    fs::remove_file(hidden(&path)).unwrap();
    fs::create_dir(hidden(&path)).unwrap();
    writer.append(records(1)).await.unwrap();
    writer.save(records(1)).await.unwrap_err();
    fs::remove_dir(hidden(&path)).unwrap();
    writer.append(records(1)).await.unwrap();
    assert!(allocated(&hidden(&path)) >= STEP);

    // The file grows, and so does the next save.
    writer.append(records(600)).await.unwrap();
    assert!(allocated(&hidden(&path)) >= 1200 << 10);
    drop(writer);
    fs::remove_file(hidden(&path)).unwrap();
    journal(dir.path());
    assert!(allocated(&hidden(&path)) >= 1200 << 10, "an agent that starts");
}

#[tokio::test]
async fn next_save_of_claims_has_space_for_those_in_the_journal() {
    let Some(dir) = directory() else { return };
    let claims = dir.path().join("dra_manager_state");
    let lines = dir.path().join("dra_manager_state.journal");
    let store = ClaimCheckpoint::new(dir.path().to_owned());
    let writer = store.open().unwrap().writer;
    for file in [&claims, &lines, &hidden(&claims), &hidden(&lines)] {
        assert!(allocated(file) >= STEP, "{}", file.display());
    }
    writer.append(vec![format!(r#"{{"ClaimName":"{}"}}"#, "x".repeat(600 << 10)).into()]).await.unwrap();
    assert!(allocated(&hidden(&claims)) >= 1200 << 10);
    let reserved = [&claims, &lines].map(|file| inode(&hidden(file)));
    writer.save(vec![r#"{"ClaimName":"cam"}"#.into()]).await.unwrap();
    assert_eq!([&claims, &lines].map(|file| inode(file)), reserved);
    for file in [&claims, &lines, &hidden(&claims), &hidden(&lines)] {
        assert!(allocated(file) >= STEP, "{}", file.display());
    }
}

/// The rest of a write into the space that was cut off.
#[test]
fn interrupted_use_of_the_space_is_repeated() {
    let Some(dir) = directory() else { return };
    let file = ReservedFile::new(dir.path().join("journal"));
    file.reserve(0);
    let reserved = OpenOptions::new().write(true).open(file.hidden()).unwrap();
    reserved.write_all_at(b"a longer content than the next one", 0).unwrap();
    file.save(b"short").unwrap();
    assert_eq!(fs::read(&file.path).unwrap(), b"short");
    assert!(allocated(&file.path) >= STEP, "there is space for lines");
}

#[test]
fn hidden_file_of_another_program_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (file, other) = (ReservedFile::new(dir.path().join("journal")), dir.path().join("other"));
    fs::write(&other, "other").unwrap();
    for (what, plant) in plants(&other) {
        plant(&file.hidden());
        let saved = file.save(b"record");
        if what == "directory" {
            saved.unwrap_err();
            assert!(file.hidden().is_dir());
            clear(&file.hidden());
            continue;
        }
        saved.unwrap();
        assert_eq!(fs::read(&file.path).unwrap(), b"record", "{what}");
        assert!(fs::symlink_metadata(&file.path).unwrap().is_file(), "{what}");
        clear(&file.path);
        clear(&file.hidden());
    }
    let set_mode = |mode| fs::set_permissions(&other, Permissions::from_mode(mode)).unwrap();
    set_mode(0o600);
    fs::hard_link(&other, file.hidden()).unwrap();
    file.save(b"record").unwrap();
    assert_eq!(fs::read(&other).unwrap(), b"other");

    // Others could change the record after it was written.
    set_mode(0o622);
    fs::rename(&other, file.hidden()).unwrap();
    file.save(b"record").unwrap();
    assert_eq!(fs::metadata(&file.path).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn only_files_whose_writes_free_the_disk_have_space() {
    let dir = tempfile::tempdir().unwrap();
    for (name, new, has_space) in [
        ("journal", FileCheckpoint::new as fn(PathBuf) -> FileCheckpoint, true),
        ("allocations", FileCheckpoint::of_allocations, false),
        ("run_facts", FileCheckpoint::of_run_facts, false),
        ("shutdown_times", FileCheckpoint::of_shutdown_times, false),
    ] {
        let path = dir.path().join(name);
        new(path.clone()).open().unwrap();
        assert_eq!(hidden(&path).exists(), has_space, "{name}");
    }
}

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

    /// Takes all free space. The file that has it is at the path.
    fn fill(&self) -> PathBuf {
        let path = self.path("fill");
        let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

// Requires the right to mount.
#[tokio::test]
async fn final_statuses_are_written_on_a_full_disk() {
    let Some(disk) = SmallDisk::new() else { return };
    let (mut writer, path) = journal(disk.0.path());
    let others = FileCheckpoint::of_allocations(disk.path("allocations")).open().unwrap().writer;
    writer.save(records(1)).await.unwrap();
    let fill = disk.fill();
    others.save(records(1)).await.unwrap_err();
    // The first write of each agent is a save.
    for agent in 1..=5 {
        writer.save(records(10 * agent)).await.unwrap();
        for _ in 0..10 {
            writer.append(records(1)).await.unwrap();
        }
        let opened = FileCheckpoint::new(path.clone()).open().unwrap();
        assert_eq!(opened.records.len(), 10 * agent + 10);
        writer = opened.writer;
    }
    // A save that is too large takes no space from the next one.
    for _ in 0..2 {
        writer.save(records(900)).await.unwrap_err();
    }
    assert_eq!(FileCheckpoint::new(path.clone()).open().unwrap().records.len(), 60, "nothing was replaced");
    let (writer, _) = journal(disk.0.path());
    writer.save(records(1)).await.unwrap();

    // The hidden file lost its space to another program, and the disk has room for a while.
    fs::remove_file(hidden(&path)).unwrap();
    disk.fill();
    writer.append(records(1)).await.unwrap();
    writer.save(records(1)).await.unwrap_err();
    OpenOptions::new().write(true).open(&fill).unwrap().set_len(512 << 10).unwrap();
    writer.append(records(1)).await.unwrap();
    disk.fill();
    writer.save(records(1)).await.unwrap();
}

// A pod whose devices are not released is not cleaned up, so its files would stay on the full disk.
#[tokio::test]
async fn claims_are_written_on_a_full_disk() {
    let Some(disk) = SmallDisk::new() else { return };
    let store = ClaimCheckpoint::new(disk.0.path().to_owned());
    let mut writer = store.open().unwrap().writer;
    disk.fill();
    let claim = || Arc::from(r#"{"ClaimName":"cam","Namespace":"shop"}"#);
    for agent in 1..=5 {
        writer.save(vec![claim(); agent]).await.unwrap();
        for _ in 0..100 {
            writer.append(vec![claim()]).await.unwrap();
        }
        let opened = store.open().unwrap();
        assert_eq!(opened.records.len(), agent + 100);
        writer = opened.writer;
    }
}
