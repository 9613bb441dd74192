use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

use rustix::fs::{RenameFlags, renameat_with};
use tempfile::TempDir;

use super::*;
#[cfg(feature = "cri")]
use crate::adapters::mounts;

struct Place {
    root: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Place { root: tempfile::tempdir().unwrap() };
        for dir in [place.volume(), place.secret()] {
            fs::create_dir(dir).unwrap();
        }
        fs::set_permissions(place.volume(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(place.secret().join("file"), "secret").unwrap();
        place
    }

    fn volume(&self) -> PathBuf {
        self.root.path().join("volume")
    }

    fn secret(&self) -> PathBuf {
        self.root.path().join("secret")
    }

    /// Where what was opened is, below the volume.
    fn open(&self, sub: &str) -> io::Result<PathBuf> {
        let found = open(&self.volume(), Path::new(sub))?;
        let at = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
        Ok(at.strip_prefix(fs::canonicalize(self.volume())?).expect("it is in the volume").to_owned())
    }
}

#[test]
fn what_is_missing_is_made_with_the_volumes_mode_and_links_stay_inside() {
    let place = Place::new();
    let volume = place.volume();
    fs::write(volume.join("file"), "kept").unwrap();
    symlink(place.secret(), volume.join("out")).unwrap();
    symlink("../secret", volume.join("up")).unwrap();
    symlink("/", volume.join("root")).unwrap();
    symlink("a/b", volume.join("in")).unwrap();
    symlink("nowhere", volume.join("dangling")).unwrap();

    for (sub, at) in [(".", ""), ("a/b", "a/b"), ("a/./c/", "a/c"), ("file", "file"), ("in", "a/b"), ("in/d", "a/b/d")]
    {
        assert_eq!(place.open(sub).unwrap(), Path::new(at), "{sub}");
    }
    for dir in ["a", "a/b", "a/c", "a/b/d"] {
        assert_eq!(fs::metadata(volume.join(dir)).unwrap().permissions().mode() & 0o7777, 0o777, "{dir}");
    }
    assert_eq!(fs::read_to_string(volume.join("file")).unwrap(), "kept");
    for sub in
        ["out", "out/new", "up", "up/file", "root/etc", "file/new", "dangling", "dangling/x", "../secret", "/etc"]
    {
        let error = place.open(sub).unwrap_err().to_string();
        assert!(error.starts_with(&format!("subPath {sub}")), "{error}");
    }
    let refused = place.open("out").unwrap_err().to_string();
    assert!(refused.contains("leads out of the volume: remove the link"), "{refused}");
    assert_eq!(fs::read_dir(place.secret()).unwrap().count(), 1);
}

/// Swaps a directory of the volume and a link out of it, as fast as it can, while `work` is done again and again.
fn under_attack(place: &Place, work: impl Fn()) {
    let (volume, end) = (place.volume(), Instant::now() + Duration::from_secs(1));
    fs::create_dir_all(volume.join("dir")).unwrap();
    symlink(place.secret(), volume.join("link")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < end {
                renameat_with(CWD, volume.join("dir"), CWD, volume.join("link"), RenameFlags::EXCHANGE).unwrap();
            }
        });
        while Instant::now() < end {
            work();
        }
    });
}

#[test]
fn a_directory_that_becomes_a_link_at_any_moment_leads_nowhere() {
    let place = Place::new();
    let names = std::cell::Cell::new(0);
    under_attack(&place, || {
        names.set(names.get() + 1);
        // Sees for itself that it is in the volume.
        let _ = place.open("dir");
        let _ = place.open(&format!("dir/new-{}/x", names.get() % 50));
    });
    assert_eq!(fs::read_dir(place.secret()).unwrap().count(), 1, "nothing was made outside");
}

#[cfg(feature = "cri")]
#[test]
fn what_is_mounted_is_what_was_checked() {
    let place = Place::new();
    let at = place.root.path().join("places/v/c/0");
    fs::write(place.volume().join("file"), "plain").unwrap();
    match bind(&place.volume(), Path::new("file"), &at) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            eprintln!("skipped: not allowed to mount");
            return;
        }
        bound => bound.unwrap(),
    }
    assert_eq!(fs::read_to_string(&at).unwrap(), "plain");
    // The container put another file in its place: that is what its next run gets.
    fs::write(place.volume().join("other"), "other").unwrap();
    fs::rename(place.volume().join("other"), place.volume().join("file")).unwrap();
    for _ in 0..2 {
        bind(&place.volume(), Path::new("file"), &at).unwrap();
        assert_eq!(fs::read_to_string(&at).unwrap(), "other");
        assert_eq!(mounts::below(&place.root.path().join("places")).unwrap().len(), 1);
    }
    under_attack(&place, || {
        if bind(&place.volume(), Path::new("dir"), &at).is_ok() {
            assert!(!at.join("file").exists(), "the secret is not to be seen");
        }
    });
    for mounted in mounts::below(&place.root.path().join("places")).unwrap() {
        mounts::take_down(&mounted.at).unwrap();
    }
}
