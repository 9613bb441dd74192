//! The directory of a pod whose containers reach their files by path.
//!
//! Containers without a mount namespace reach their volumes by path. If they run as other users than the agent, they must be
//! able to pass the pod's directory, and no other local user may. So such a directory belongs to a group of its own and has
//! mode 0710. All containers of the pod are in that group, whatever users they run as, and nothing else is. Below the
//! directory, volumes have the modes that Kubernetes gives them: 0777, or 2777 with the group `fsGroup`.
//!
//! The directory itself records its group, so the group is free again when the directory is removed.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FlockOperation, Gid, Mode, fchmod, fchown, flock, fstat};

use super::trusted_dir;

/// The groups that the agent gives to pods. systemd's table of users and groups lists them as unused ("UIDs and GIDs",
/// systemd 257), and the Kubernetes API permits them.
pub const RANGE: Range<u32> = 0x7000_0000..0x7ffd_0000;

/// Creates the directory `uid` in `pods`, which exists, and returns the group whose members may pass it. A directory that
/// exists keeps its group, so containers that run already keep their access.
///
/// # Errors
/// The system's error, or an error that names the directory if another user owns it or may write to it. The caller must be root:
/// only root may give a directory to another group.
pub fn make(pods: &Path, uid: &str) -> io::Result<u32> {
    let dir = pods.join(uid);
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Two pods must not get one group, so a group is chosen under a lock.
    let lock = File::open(pods)?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let opened = trusted_dir::open(&dir)?;
    let stat = fstat(&opened)?;
    let group = if RANGE.contains(&stat.st_gid) { stat.st_gid } else { unused(pods)? };
    if stat.st_gid != group {
        fchown(&opened, None, Some(Gid::from_raw(group)))?;
    }
    if stat.st_mode & 0o7777 != MODE {
        fchmod(&opened, Mode::from_raw_mode(MODE))?;
    }
    Ok(group)
}

/// The owner has full access. The group may enter the directory, but not list it.
const MODE: u32 = 0o710;

/// A group that no directory in `pods` has. It is random, so that the pods of two agents on one machine have different groups.
fn unused(pods: &Path) -> io::Result<u32> {
    use std::hash::{BuildHasher, RandomState};
    let entries = fs::read_dir(pods)?.collect::<io::Result<Vec<_>>>()?;
    let used: Vec<u32> = entries.iter().filter_map(|entry| Some(entry.metadata().ok()?.gid())).collect();
    let random = RandomState::new();
    (0u32..)
        .map(|attempt| RANGE.start + (random.hash_one(attempt) % u64::from(RANGE.end - RANGE.start)) as u32)
        .find(|group| !used.contains(group))
        .ok_or_else(|| io::Error::other("all groups for pods are used: remove pods"))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn every_pod_directory_has_a_group_of_its_own_and_keeps_it() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give directories to other groups");
            return;
        }
        let pods = tempfile::tempdir().unwrap();
        let groups: Vec<u32> = ["a", "b", "c"].iter().map(|uid| make(pods.path(), uid).unwrap()).collect();
        assert!(groups.iter().all(|group| RANGE.contains(group)), "{groups:?}");
        assert!(groups[0] != groups[1] && groups[1] != groups[2] && groups[0] != groups[2], "{groups:?}");
        fs::set_permissions(pods.path().join("a"), Permissions::from_mode(0o755)).unwrap();
        assert_eq!(make(pods.path(), "a").unwrap(), groups[0]);
        let meta = fs::metadata(pods.path().join("a")).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.gid()), (0o710, groups[0]));
        std::os::unix::fs::symlink("/etc", pods.path().join("link")).unwrap();
        make(pods.path(), "link").unwrap_err();
        for (mode, owner) in [(0o777, 0), (0o700, 65534)] {
            fs::set_permissions(pods.path().join("b"), Permissions::from_mode(mode)).unwrap();
            chown(pods.path().join("b"), Some(owner), None).unwrap();
            let error = make(pods.path(), "b").unwrap_err();
            assert!(error.to_string().contains("must not be trusted: move it away"), "{error}");
        }
    }
}
