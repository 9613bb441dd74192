use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

use podwright_ports::UsedSpace;
use tempfile::TempDir;

use super::scan::Scan;
use super::tree::REST;
use super::*;

/// Measures without rests.
fn measure(path: &Path) -> UsedSpace {
    let Some(mut scan) = Scan::open(path).unwrap() else { return UsedSpace::default() };
    while !scan.step(7).unwrap() {}
    scan.used()
}

/// The numbers of du(1): allocated bytes and inodes on one file system.
fn du(path: &Path) -> UsedSpace {
    let number = |args: &[&str]| {
        let out = Command::new("du").args(args).arg("-sx").arg(path).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    UsedSpace::new(number(&["--block-size=512"]) * 512, number(&["--inodes"]))
}

fn write(path: &Path, bytes: usize) {
    fs::write(path, vec![1; bytes]).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn a_tree_measures_as_du_measures_it() {
    let root = TempDir::new().unwrap();
    let at = |name: &str| root.path().join(name);
    fs::create_dir_all(at("a/b/c")).unwrap();
    write(&at("a/big"), 300_000);
    write(&at("a/b/small"), 1);
    // A sparse file uses the blocks that were written.
    let sparse = File::create(at("sparse")).unwrap();
    sparse.write_at(&[1; 4096], 1 << 30).unwrap();
    sparse.sync_all().unwrap();
    // A hard link uses no space of its own, and a link is not followed.
    fs::hard_link(at("a/big"), at("a/b/again")).unwrap();
    symlink("/usr", at("a/usr")).unwrap();
    symlink("/nowhere", at("dangling")).unwrap();
    rustix::fs::mknodat(CWD, at("fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let used = measure(root.path());
    assert_eq!(used, du(root.path()));
    assert!((300_000..600_000).contains(&used.bytes), "{used:?}");
    assert_eq!(measure(&at("a/big")), UsedSpace::new(fs::metadata(at("a/big")).unwrap().blocks() * 512, 1));
    assert_eq!(measure(&at("a/usr")).inodes, 1, "a link at the top is not followed");
    assert_eq!(measure(&at("missing")), UsedSpace::default());
}

#[test]
fn a_scan_does_not_cross_mount_points() {
    let root = TempDir::new().unwrap();
    let (dir, other) = (root.path().join("dir"), root.path().join("other"));
    fs::create_dir_all(dir.join("at")).unwrap();
    fs::create_dir(&other).unwrap();
    let alone = measure(&dir);
    write(&other.join("file"), 200_000);
    // A bind mount is on the same device, and a tmpfs is not.
    for args in [["--bind", other.to_str().unwrap()], ["-t", "tmpfs"]] {
        let mut mount = Command::new("mount");
        mount.args(args);
        if args[0] == "-t" {
            mount.arg("tmpfs");
        }
        if !mount.arg(dir.join("at")).status().unwrap().success() {
            eprintln!("this process may not mount: skipped");
            return;
        }
        write(&dir.join("at/more"), 100_000);
        let (below, at) = (measure(&dir), measure(&dir.join("at")));
        assert!(Command::new("umount").arg(dir.join("at")).status().unwrap().success());
        assert_eq!((below.bytes, below.inodes), (alone.bytes - 4096, alone.inodes - 1), "{args:?}");
        assert!(at.bytes >= 100_000, "a file system at the top is measured as a whole: {at:?}");
    }
}

#[test]
fn a_tree_deeper_than_the_limit_of_open_files_is_measured() {
    let root = TempDir::new().unwrap();
    let deep = (0..500).fold(root.path().to_owned(), |path, _| path.join("d"));
    fs::create_dir_all(&deep).unwrap();
    // Siblings beside the path are counted after the scan has returned to their directories.
    for dir in deep.ancestors().take(500) {
        for name in ["x", "y", "z"] {
            fs::write(dir.join(name), "").unwrap();
        }
    }
    let before = open_files();
    let mut scan = Scan::open(root.path()).unwrap().unwrap();
    let mut most = 0;
    while !scan.step(1).unwrap() {
        most = most.max(open_files() - before);
    }
    assert_eq!(scan.used(), du(root.path()));
    assert_eq!(scan.used().inodes, 501 + 1500);
    assert!(most < 100, "{most} open files");
}

fn open_files() -> i64 {
    fs::read_dir("/proc/self/fd").unwrap().count() as i64
}

#[test]
fn a_scan_survives_a_tree_that_changes() {
    const DEPTH: u64 = 150;
    const FILES: u64 = 10;
    let root = TempDir::new().unwrap();
    let top = root.path().join("top");
    // The names differ, so that each directory has entries before and after the one that leads down.
    let level = |depth: u64| (0..depth).fold(top.clone(), |path, depth| path.join(format!("d{depth}")));
    fs::create_dir_all(level(DEPTH)).unwrap();
    for dir in level(DEPTH).ancestors().take(DEPTH as usize + 1) {
        (0..FILES).for_each(|file| fs::write(dir.join(file.to_string()), "").unwrap());
    }
    // A scan that took the moved directory's new parent for the old one would count these files.
    (0..3000).for_each(|name| fs::write(root.path().join(format!("other{name}")), "").unwrap());
    let all = (DEPTH + 1) * (FILES + 1);
    assert_eq!(measure(&top).inodes, all);
    // A directory is moved at each depth that the scan reaches.
    for entries in (1..all as usize).step_by(97) {
        let mut scan = Scan::open(&top).unwrap().unwrap();
        assert!(!scan.step(entries).unwrap(), "{entries}");
        let away = root.path().join("away");
        fs::rename(level(70), &away).unwrap();
        while !scan.step(100).unwrap() {}
        assert!(scan.used().inodes <= all, "{entries}: {:?}", scan.used());
        fs::rename(&away, level(70)).unwrap();
    }
    let mut scan = Scan::open(&top).unwrap().unwrap();
    assert!(!scan.step(100).unwrap());
    fs::remove_dir_all(&top).unwrap();
    while !scan.step(100).unwrap() {}
}

#[tokio::test(start_paused = true)]
async fn a_scan_rests_between_its_steps() {
    let root = TempDir::new().unwrap();
    for name in 0..2500 {
        fs::write(root.path().join(name.to_string()), "").unwrap();
    }
    let (start, work) = (tokio::time::Instant::now(), Instant::now());
    let used = of_tree(root.path().to_owned()).await.unwrap();
    assert_eq!(used.inodes, 2501);
    // Time is paused, so only the rests count.
    let (rests, work) = (start.elapsed(), work.elapsed());
    assert!(rests > Duration::ZERO && rests <= work * REST, "{rests:?} for {work:?} of work");
    assert_eq!(of_tree(root.path().join("missing")).await.unwrap(), UsedSpace::default());
}

#[test]
fn space_of_a_file_system_is_that_of_df() {
    let root = TempDir::new().unwrap();
    let space = of_file_system(root.path()).unwrap();
    let args = ["--block-size=1", "--output=size", root.path().to_str().unwrap()];
    let out = Command::new("df").args(args).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(text.lines().nth(1).unwrap().trim(), space.capacity.to_string());
    assert!(space.available > 0 && space.available <= space.capacity);
    assert!(space.inodes_free <= space.inodes);
    assert_eq!(space.device, fs::metadata(root.path()).unwrap().dev());
    let error = of_file_system(&root.path().join("missing")).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
}
