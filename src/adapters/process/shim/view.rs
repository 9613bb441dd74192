//! Gives the process that becomes a container's command its own view of the node's file system.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, openat, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_remount};
use rustix::thread::UnshareFlags;

use super::super::record::View;
use crate::adapters::mounts;

/// Enters a new mount namespace in which the container's view holds. The process must have one thread only.
///
/// # Errors
/// The reason, with the field that needs the view.
pub(super) fn enter(view: Option<&View>) -> Result<(), String> {
    let Some(view) = view else { return Ok(()) };
    match (unshare(), &view.required) {
        (Ok(()), _) => {}
        // The view only keeps other pods' files out of sight. The files' modes still protect them.
        (Err(_), None) => return Ok(()),
        (Err(error), Some(field)) => {
            return Err(format!(
                "cannot apply `{field}`, because this node does not let the agent create a mount namespace ({error}): \
                 remove it, or run the agent as root"
            ));
        }
    }
    set_up(view).map_err(|error| format!("cannot set up the file system of the container: {error}"))
}

fn unshare() -> io::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let flags = if is_root { UnshareFlags::NEWNS } else { UnshareFlags::NEWNS | UnshareFlags::NEWUSER };
    #[expect(deprecated, reason = "the replacement is `unsafe` because of the flag FILES, which is not set here")]
    rustix::thread::unshare(flags)?;
    if !is_root {
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    // Mounts of the node that come and go later do so here too. Mounts of the container stay in its namespace.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(())
}

fn set_up(view: &View) -> io::Result<()> {
    let named = |path: &Path, error: Errno| io::Error::other(format!("{}: {error}", path.display()));
    let pod = openat(CWD, &view.pod, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| named(&view.pod, error))?;
    for hidden in [&view.pods, &view.records] {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("podwright", hidden, "tmpfs", flags, Some(c"mode=0751,size=64k"))
            .map_err(|error| named(hidden, error))?;
    }
    DirBuilder::new().mode(0o711).create(&view.pod)?;
    mount_bind_recursive(format!("/proc/self/fd/{}", pod.as_raw_fd()), &view.pod)
        .map_err(|error| named(&view.pod, error))?;
    for hidden in [&view.pods, &view.records] {
        remount_read_only(hidden)?;
    }
    let mut rules = Vec::new();
    for (path, read_only) in &view.rules {
        // A path that does not exist is a link that leads nowhere.
        let Ok(path) = fs::canonicalize(path) else { continue };
        mount_bind_recursive(&path, &path).map_err(|error| named(&path, error))?;
        rules.push((path, *read_only));
    }
    for mounted in mounts::below(Path::new("/"))? {
        let at = &mounted.at;
        let is_device = DEVICES.iter().any(|dir| at.starts_with(dir));
        let of_root = view.read_only_root && !is_device;
        // Mounts that another mount covers cannot be reached, and need no change.
        if is_read_only(at, &rules, of_root)
            && *at != view.pods
            && *at != view.records
            && fs::symlink_metadata(at).is_ok()
        {
            remount_read_only(at)?;
        }
    }
    Ok(())
}

/// Whether a mount must be read-only: by the innermost rule for its path, or else as the root is.
fn is_read_only(at: &Path, rules: &[(PathBuf, bool)], of_root: bool) -> bool {
    let innermost =
        rules.iter().filter(|(path, _)| at.starts_with(path)).max_by_key(|(path, _)| path.as_os_str().len());
    innermost.map_or(of_root, |(_, read_only)| *read_only)
}

/// Makes the mount at a path read-only and keeps its other flags, which a user namespace may not clear.
fn remount_read_only(at: &Path) -> io::Result<()> {
    let failed = |error: Errno| io::Error::other(format!("{}: {error}", at.display()));
    let found = statvfs(at).map_err(failed)?.f_flag;
    let kept = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let flags =
        kept.iter().filter(|(flag, _)| found.contains(*flag)).fold(MountFlags::empty(), |all, (_, one)| all | *one);
    mount_remount(at, MountFlags::BIND | MountFlags::RDONLY | flags, c"").map_err(failed)
}

/// The directories that stay as they are if the root is read-only: devices, processes and kernel settings have their own
/// permissions, and a container of a container runtime may write to its `/dev` too.
const DEVICES: [&str; 3] = ["/dev", "/proc", "/sys"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_rule_decides_whether_a_mount_is_read_only() {
        let rules = [("/v", true), ("/v/sub", false), ("/w", false)].map(|(path, ro)| (PathBuf::from(path), ro));
        for (at, of_root, expected) in [
            ("/v", false, true),
            ("/v/x", false, true),
            ("/v/sub", false, false),
            ("/v/sub/x", true, false),
            ("/w", true, false),
            ("/", true, true),
            ("/", false, false),
            ("/vv", false, false),
        ] {
            assert_eq!(is_read_only(Path::new(at), &rules, of_root), expected, "{at}");
        }
    }
}
