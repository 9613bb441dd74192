//! A container that swaps a directory of its volume and a link out of the volume.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;

/// A volume, and next to it a secret that no container may reach.
pub(in crate::adapters) struct TestVolume {
    root: TempDir,
}

impl TestVolume {
    pub(in crate::adapters) fn new() -> Self {
        let test = TestVolume { root: tempfile::tempdir().unwrap() };
        for dir in [test.volume(), test.secret()] {
            fs::create_dir(dir).unwrap();
        }
        // The mode of a tmpfs whose files belong to the group of the pod.
        fs::set_permissions(test.volume(), fs::Permissions::from_mode(0o3777)).unwrap();
        fs::write(test.secret().join("file"), "secret").unwrap();
        test
    }

    pub(in crate::adapters) fn volume(&self) -> PathBuf {
        self.root.path().join("volume")
    }

    pub(in crate::adapters) fn secret(&self) -> PathBuf {
        self.root.path().join("secret")
    }

    /// The directory of both.
    pub(in crate::adapters) fn root(&self) -> &Path {
        self.root.path()
    }
}

/// How many times `work` runs at least, and how many times the directory and the link are swapped at least during these
/// runs.
const ROUNDS: u32 = 2_000;
const SWAPS: u32 = 20_000;

/// Repeats `work` while another thread swaps a directory of the volume and a link out of it as fast as it can.
pub(in crate::adapters) fn under_attack(test: &TestVolume, work: impl Fn()) {
    let (volume, swaps, ended) = (test.volume(), AtomicU32::new(0), AtomicBool::new(false));
    fs::create_dir_all(volume.join("dir")).unwrap();
    symlink(test.secret(), volume.join("link")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                renameat_with(CWD, volume.join("dir"), CWD, volume.join("link"), RenameFlags::EXCHANGE).unwrap();
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _end = EndOnDrop(&ended);
        let mut rounds = 0;
        while rounds < ROUNDS || swaps.load(Ordering::Relaxed) < SWAPS {
            work();
            rounds += 1;
        }
    });
}

/// Ends the attack when the attacked thread returns or panics, because the scope waits for both threads.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
