use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::{RenameFlags, mkdirat, renameat_with};
use rustix::process::{Gid, Uid, geteuid};

use super::*;

#[test]
fn tree_without_owner_permissions_is_removed() {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), Permissions::from_mode(0o777)).unwrap();
    let dir = root.path().join("dir");
    let work = || {
        if geteuid().is_root() {
            // Permissions do not restrict root. The change affects this thread only.
            rustix::thread::set_thread_gid(Gid::from_raw(65534)).unwrap();
            rustix::thread::set_thread_uid(Uid::from_raw(65534)).unwrap();
        }
        fs::create_dir_all(dir.join("locked/in")).unwrap();
        fs::write(dir.join("locked/in/file"), "").unwrap();
        fs::set_permissions(dir.join("locked"), Permissions::from_mode(0o000)).unwrap();
        remove(&dir).unwrap();
        remove(&dir).unwrap();
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    assert!(!dir.exists());
}

#[test]
fn mounts_in_a_tree_are_not_touched() {
    let root = tempfile::tempdir().unwrap();
    let (dir, other) = (root.path().join("dir"), root.path().join("other"));
    fs::create_dir_all(dir.join("at")).unwrap();
    fs::write(dir.join("a"), "").unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), "kept").unwrap();
    // A bind mount is on the same device, and a tmpfs is not.
    for args in [["--bind", other.to_str().unwrap()], ["-t", "tmpfs"]] {
        let mut mount = Command::new("mount");
        mount.args(args).args((args[0] == "-t").then_some("tmpfs")).arg(dir.join("at"));
        if !mount.output().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: not allowed to mount");
            return;
        }
        fs::write(dir.join("at/new"), "kept").unwrap();
        let refused = [remove(&dir), remove(&dir.join("at"))];
        // Even without a check of the mount table, the kernel refuses to enter the mount.
        let open = openat(CWD, &dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let into = unlink_or_open(&open, &c"at".to_owned(), Path::new("at"));
        let kept = fs::exists(dir.join("at/new")).unwrap() && fs::exists(dir.join("a")).unwrap();
        assert!(Command::new("umount").arg(dir.join("at")).status().unwrap().success());
        assert!(
            kept && refused
                .into_iter()
                .chain([into.map(drop)])
                .all(|it| it.unwrap_err().to_string().contains("unmount it"))
        );
    }
    assert!(fs::exists(other.join("file")).unwrap());
    remove(&dir).unwrap();
    assert!(!dir.exists());
}

#[test]
fn deep_tree_is_removed_with_few_open_files() {
    let root = tempfile::tempdir().unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut dir = openat(CWD, root.path(), flags, Mode::empty()).unwrap();
    for _ in 0..3000 {
        mkdirat(&dir, "deep", Mode::from_raw_mode(0o700)).unwrap();
        dir = openat(&dir, "deep", flags, Mode::empty()).unwrap();
    }
    remove(&root.path().join("deep")).unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

/// How often the directory and the link are swapped.
const SWAPS: u32 = 10_000;

// A running container swaps a directory for a link to a directory outside the tree.
#[test]
fn directory_swapped_for_a_link_is_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let precious = root.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "").unwrap();
    let dir = root.path().join("dir");
    let (swaps, ended) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                if renameat_with(CWD, dir.join("d"), CWD, dir.join("link"), RenameFlags::EXCHANGE).is_ok() {
                    swaps.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        while swaps.load(Ordering::Relaxed) < SWAPS {
            fs::create_dir_all(dir.join("d")).unwrap_or_default();
            let _ = symlink(&precious, dir.join("link"));
            let _ = fs::write(dir.join("d/file"), "");
            let _ = remove(&dir);
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(precious.join("file").exists());
}
