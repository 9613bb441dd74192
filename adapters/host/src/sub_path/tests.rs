use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};

use podwright_fixtures::hostile_files::{TestVolume, under_attack};

use super::*;
use crate::mounts;

/// The path, relative to the volume, of the file or directory that `open` opens.
fn opened(test: &TestVolume, sub: &str) -> io::Result<PathBuf> {
    let found = open(&test.volume(), Path::new(sub)).map_err(io::Error::other)?;
    let at = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    Ok(at.strip_prefix(fs::canonicalize(test.volume())?).expect("it is in the volume").to_owned())
}

#[test]
fn sub_path_creates_directories_and_follows_links_inside_only() {
    let test = TestVolume::create();
    let volume = test.volume();
    fs::write(volume.join("file"), "kept").unwrap();
    symlink(test.secret(), volume.join("out")).unwrap();
    symlink("../secret", volume.join("up")).unwrap();
    symlink("/", volume.join("root")).unwrap();
    symlink("a/b", volume.join("in")).unwrap();
    symlink("nowhere", volume.join("dangling")).unwrap();

    for (sub, at) in [(".", ""), ("a/b", "a/b"), ("a/./c/", "a/c"), ("file", "file"), ("in", "a/b"), ("in/d", "a/b/d")]
    {
        assert_eq!(opened(&test, sub).unwrap(), Path::new(at), "{sub}");
    }
    for dir in ["a", "a/b", "a/c", "a/b/d"] {
        assert_eq!(fs::metadata(volume.join(dir)).unwrap().permissions().mode() & 0o7777, 0o3777, "{dir}");
    }
    assert_eq!(fs::read_to_string(volume.join("file")).unwrap(), "kept");
    for sub in
        ["out", "out/new", "up", "up/file", "root/etc", "file/new", "dangling", "dangling/x", "../secret", "/etc"]
    {
        let error = opened(&test, sub).unwrap_err().to_string();
        assert!(error.starts_with(&format!("subPath {sub}")), "{error}");
    }
    let refused = opened(&test, "out").unwrap_err().to_string();
    assert!(refused.contains("leads out of the volume: remove the link"), "{refused}");
    assert_eq!(fs::read_dir(test.secret()).unwrap().count(), 1);
}

#[test]
fn sub_path_swapped_for_a_link_does_not_leave_the_volume() {
    let test = TestVolume::create();
    let names = std::cell::Cell::new(0);
    under_attack(&test, || {
        names.set(names.get() + 1);
        // `opened` asserts that the result is in the volume.
        let _ = opened(&test, "dir");
        let _ = opened(&test, &format!("dir/new-{}/x", names.get() % 50));
    });
    assert_eq!(fs::read_dir(test.secret()).unwrap().count(), 1, "nothing was made outside");
}

#[test]
fn bind_mounts_the_file_that_was_checked() {
    let test = TestVolume::create();
    let at = test.root().join("places/v/c/0");
    fs::write(test.volume().join("file"), "plain").unwrap();
    match bind(&test.volume(), Path::new("file"), &at) {
        Err(SubPathError::Prepare(error)) if error.kind() == ErrorKind::PermissionDenied => {
            eprintln!("skipped: not allowed to mount");
            return;
        }
        bound => bound.unwrap(),
    }
    assert_eq!(fs::read_to_string(&at).unwrap(), "plain");
    // The container replaced the file: its next run gets the new one.
    fs::write(test.volume().join("other"), "other").unwrap();
    fs::rename(test.volume().join("other"), test.volume().join("file")).unwrap();
    for _ in 0..2 {
        bind(&test.volume(), Path::new("file"), &at).unwrap();
        assert_eq!(fs::read_to_string(&at).unwrap(), "other");
        assert_eq!(mounts::below(&test.root().join("places")).unwrap().len(), 1);
    }
    under_attack(&test, || {
        if bind(&test.volume(), Path::new("dir"), &at).is_ok() {
            assert!(!at.join("file").exists(), "the container must not reach the secret");
        }
    });
    for mounted in mounts::below(&test.root().join("places")).unwrap() {
        mounts::unmount(&mounted.at).unwrap();
    }
}

// The details could describe files of the node to anyone who may read the pod's status.
#[test]
fn failing_sub_path_has_the_text_of_a_kubelet() {
    let test = TestVolume::create();
    fs::write(test.volume().join("file"), "").unwrap();
    symlink(test.secret(), test.volume().join("out")).unwrap();
    symlink("nowhere", test.volume().join("dangling")).unwrap();
    let prepare = "failed to prepare subPath for volumeMount \"v\" of container \"a\"";
    let create = "failed to create subPath directory for volumeMount \"v\" of container \"a\"";
    for (sub, text) in [("out/x", prepare), ("out", prepare), ("file/x", prepare), ("dangling/x", create)] {
        let error = open(&test.volume(), Path::new(sub)).unwrap_err();
        assert_eq!(error.of_container("uid", "a", "v"), RuntimeError::config(text), "{sub}");
    }
}
