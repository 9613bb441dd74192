//! File systems that tests mount.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A file system of 1 MiB in a directory. It is unmounted when this is dropped.
pub(crate) struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// `None` if this process may not mount.
    pub(crate) fn new(dir: &'a Path) -> Option<Self> {
        if let Err(error) = mount("tmpfs", dir, "tmpfs", MountFlags::empty(), Some(c"size=1m,mode=755")) {
            eprintln!("skipped: this process may not mount: {error}");
            return None;
        }
        Some(SmallDisk(dir))
    }

    /// Fills the file system with one file.
    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.0.join("fill");
        let mut file = File::create(&path).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, UnmountFlags::DETACH);
    }
}

/// Unmounts everything below a directory, such as the volumes in memory of an agent that was killed. Files in use do not prevent it.
pub(crate) fn unmount_below(dir: &Path) {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // The paths of these directories have no characters that the table escapes.
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    let mut below: Vec<&Path> = points.filter(|point| point.starts_with(&dir) && *point != dir).collect();
    // A later mount may be on top of an earlier one.
    below.reverse();
    for point in below {
        let _ = unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
}
