//! Gives the process that becomes a container's command its own view of the node's file system.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, fstat, openat, openat2, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_remount};
use rustix::thread::UnshareFlags;

use super::super::record::{Confinement, Processes, RunRecord, View, ViewMount};
use super::namespaces::{self, unshare};
use crate::adapters::sub_path::SubPathError;
use crate::adapters::{mounts, sub_path};

/// Enters a new mount namespace in which the container's view holds. The process must have one thread only.
///
/// # Errors
/// The reason. The container must not run, because it would see more than its view.
pub(super) fn enter(run: &RunRecord) -> Result<(), String> {
    let Confinement { view, processes, .. } = &run.confinement;
    let Some(view) = view else { return Ok(()) };
    let set_up = || {
        unshare_mounts()?;
        set_up(view, &run.rootfs)?;
        if *processes == Processes::Node { Ok(()) } else { namespaces::mount_proc() }
    };
    set_up().map_err(|error| format!("cannot set up the file system of the container: {error}"))
}

/// Moves this process into a mount namespace of its own.
pub(super) fn unshare_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    // Mounts of the node that come and go later do so here too. Mounts of the container stay in its namespace.
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}

/// A path of the container and what is mounted there.
type Bind<'a> = (&'a Path, OwnedFd);

fn set_up(view: &View, rootfs: &Path) -> io::Result<()> {
    // What the container may see is opened before the directory that contains it is covered.
    let mut binds: Vec<Bind<'_>> = vec![(rootfs, open(rootfs).map_err(|error| named(rootfs, error))?)];
    for one in &view.mounts {
        match source(one) {
            Ok(source) => binds.push((&one.at, source)),
            // The volume does not exist, so the link in the container's root directory leads nowhere.
            Err(error) if error.kind() == io::ErrorKind::NotFound && one.sub_path.as_os_str().is_empty() => {}
            Err(error) => return Err(named(&one.at, error)),
        }
    }
    binds.sort_by_key(|(at, _)| *at);
    let root = view.root();
    cover(root, &binds)?;
    for (at, source) in &binds {
        // A mount at `/` would have no effect, because the process keeps its old root.
        if *at != Path::new("/") {
            bind(at, source).map_err(|error| named(at, error))?;
        }
    }
    let rules: Vec<(&Path, bool)> = view.mounts.iter().map(|one| (one.at.as_path(), one.read_only)).collect();
    for mounted in mounts::below(Path::new("/"))? {
        let at = &mounted.at;
        let is_device = DEVICES.iter().any(|dir| at.starts_with(dir));
        let of_root = view.read_only_root && !is_device;
        // Mounts that another mount covers cannot be reached, and need no change.
        if is_read_only(at, &rules, of_root) && fs::symlink_metadata(at).is_ok() {
            remount_read_only(at)?;
        }
    }
    Ok(())
}

fn named(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

/// Opens the file or directory to mount. Links in the volume are followed only within the volume.
fn source(one: &ViewMount) -> io::Result<OwnedFd> {
    match one.sub_path.as_os_str().is_empty() {
        true => Ok(open(&one.volume)?),
        false => sub_path::open(&one.volume, &one.sub_path)
            .map_err(|(SubPathError::Create(error) | SubPathError::Prepare(error))| error),
    }
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Covers the agent's root directory with an empty one that has only the paths of `binds`.
fn cover(root: &Path, binds: &[Bind<'_>]) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("podwright", root, "tmpfs", flags, Some(c"mode=0711,size=64k")).map_err(|error| named(root, error))?;
    for (at, source) in binds.iter().filter(|(at, _)| at.starts_with(root)) {
        make_target(at, source).map_err(|error| named(at, error))?;
    }
    remount_read_only(root)
}

/// Creates a file or directory on which another one can be mounted.
fn make_target(at: &Path, source: &OwnedFd) -> io::Result<()> {
    let make_dir = |dir| DirBuilder::new().recursive(true).mode(0o711).create(dir);
    if FileType::from_raw_mode(fstat(source)?.st_mode) == FileType::Directory {
        return make_dir(at);
    }
    make_dir(at.parent().unwrap_or(at))?;
    File::options().create(true).truncate(false).write(true).open(at).map(drop)
}

/// Mounts an open file or directory. A link in the path is an error: a container could have put it into a volume, and the mount
/// would cover another path of this container.
fn bind(at: &Path, source: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let target = openat2(CWD, at, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let path = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    mount_bind_recursive(path(source), path(&target))
}

/// Whether a mount must be read-only: by the innermost rule for its path, or else as the root is.
fn is_read_only(at: &Path, rules: &[(&Path, bool)], of_root: bool) -> bool {
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
        let rules = [("/v", true), ("/v/sub", false), ("/w", false)].map(|(path, ro)| (Path::new(path), ro));
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
