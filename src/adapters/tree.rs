//! Removing what containers left: links are never followed, mounts never entered.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

/// Removes a file or a directory with all that is in it. One that is gone is fine. Blocking.
///
/// # Errors
/// If something is mounted in it, before anything is removed; and as the system says.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let work = || {
        let meta = fs::symlink_metadata(path)?;
        let parent = path.parent().map(fs::symlink_metadata).transpose()?;
        prepare(path, parent.map_or(meta.dev(), |parent| parent.dev()))?;
        if meta.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
    };
    match work() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Refuses a tree with something mounted in it, and makes its directories writable: a container may have locked its own.
fn prepare(path: &Path, device: u64) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if meta.dev() != device || is_mount(path)? {
        return Err(io::Error::other(format!("something is mounted at {}: unmount it", path.display())));
    }
    if !meta.is_dir() {
        return Ok(());
    }
    let mode = meta.permissions().mode();
    if mode & 0o700 != 0o700 {
        fs::set_permissions(path, Permissions::from_mode(mode | 0o700))?;
    }
    for entry in fs::read_dir(path)? {
        prepare(&entry?.path(), device)?;
    }
    Ok(())
}

/// Whether something is mounted here, by a mount of the same device too. Kernels before 5.8 do not tell.
fn is_mount(path: &Path) -> io::Result<bool> {
    let stat = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty())?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Gid, Uid, geteuid};

    use super::*;

    #[test]
    fn a_tree_that_its_owner_locked_is_removed() {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), Permissions::from_mode(0o777)).unwrap();
        let dir = root.path().join("dir");
        let work = || {
            if geteuid().is_root() {
                // Root sees no locks. The change is this thread's alone.
                rustix::thread::set_thread_gid(Gid::from_raw(65534)).unwrap();
                rustix::thread::set_thread_uid(Uid::from_raw(65534)).unwrap();
            }
            fs::create_dir_all(dir.join("locked/in")).unwrap();
            fs::set_permissions(dir.join("locked"), Permissions::from_mode(0o000)).unwrap();
            remove(&dir).unwrap();
            remove(&dir).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap());
        assert!(!dir.exists());
    }

    #[test]
    fn what_is_mounted_in_a_tree_is_not_touched() {
        let root = tempfile::tempdir().unwrap();
        let (dir, other) = (root.path().join("dir"), root.path().join("other"));
        fs::create_dir_all(dir.join("at")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "kept").unwrap();
        let mount = Command::new("mount").arg("--bind").args([&other, &dir.join("at")]).output();
        if !mount.is_ok_and(|output| output.status.success()) {
            // Not root, or root of a container.
            return;
        }
        let refused = remove(&dir);
        let kept = fs::exists(other.join("file")).unwrap();
        assert!(Command::new("umount").arg(dir.join("at")).status().unwrap().success());
        assert!(kept && refused.unwrap_err().to_string().contains("unmount it"));
        remove(&dir).unwrap();
        assert!(!dir.exists());
    }
}
