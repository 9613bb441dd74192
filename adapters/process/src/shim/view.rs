//! Gives the process that becomes a container's command its own view of the node's file system.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use podwright_host::sub_path::SubPathError;
use podwright_host::{mounts, sub_path};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxAttributes, StatxFlags, fstat, openat,
    openat2, statvfs, statx,
};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change, mount_remount,
    move_mount, open_tree, unmount,
};
use rustix::thread::UnshareFlags;

use super::super::record::{Confinement, Processes, Propagation, RunRecord, View, ViewMount};
use super::namespaces::{self, unshare};

/// Enters a new mount namespace that has the container's view of the file system. The process must have one thread only.
///
/// # Errors
/// The reason. The container must not run, because it would see more than its view.
pub(super) fn enter(run: &RunRecord) -> Result<(), String> {
    let Confinement { view, processes, .. } = &run.confinement;
    let Some(view) = view else { return Ok(()) };
    set_up(view, &run.rootfs, *processes == Processes::Own)
        .map_err(|error| format!("cannot set up the file system of the container: {error}"))
}

/// Moves this process into a mount namespace of its own.
pub(super) fn unshare_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    leave_peers()
}

/// Makes later mounts and unmounts of the node apply to this namespace too. Mounts of the container stay in its namespace.
fn leave_peers() -> io::Result<()> {
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}

/// A path of the container, with a copy of the mounts for that path.
struct Bind<'a> {
    at: &'a Path,
    propagation: Propagation,
    /// A copy of the mounts at and below the path.
    tree: OwnedFd,
}

fn set_up(view: &View, rootfs: &Path, own_processes: bool) -> io::Result<()> {
    let root = view.root();
    // A mount at `/` would have no effect, because the process keeps its old root.
    let mounts: Vec<&ViewMount> = view.mounts.iter().filter(|one| one.at != Path::new("/")).collect();
    refuse_mounts_in_shared_ones(&mounts, root)?;
    // The agent removes such containers of older agents before they start.
    if let Some(one) = view.sub_path_in_volume() {
        return Err(io::Error::other(format!("{} is not a mount point of the agent", one.at.display())));
    }
    unshare(UnshareFlags::NEWNS)?;
    let mut binds: Vec<Bind<'_>> = Vec::new();
    // Only a copy of a mount that is still shared with the node stays shared with it.
    let (shared, others): (Vec<_>, Vec<_>) =
        mounts.into_iter().partition(|one| one.propagation == Propagation::Bidirectional);
    add(&mut binds, shared)?;
    leave_peers()?;
    // The mounts that the container may see are copied before the directory that contains them is covered. A directory above the agent's root
    // is copied with the cover, and so is a `subPath` of a directory of the node, which may be above the root too.
    let is_inner = |one: &&ViewMount| match one.sub_path.as_os_str().is_empty() {
        true => !root.starts_with(&one.at) || one.at == root,
        false => one.volume.starts_with(root),
    };
    let (inner, outer): (Vec<_>, Vec<_>) = others.into_iter().partition(is_inner);
    binds.push(Bind {
        at: rootfs,
        propagation: Propagation::None,
        tree: copy(&open(rootfs)?).map_err(|error| named(rootfs, error))?,
    });
    add(&mut binds, inner)?;
    let has_proc = binds.iter().any(|bind| bind.at == Path::new(PROC));
    detach_below(root)?;
    let of_sub_paths = outer.iter().filter(|one| one.at.starts_with(root));
    let of_sub_paths =
        of_sub_paths.map(|one| source(one).map_err(|error| named(&one.at, error)).map(|file| (&*one.at, file)));
    cover(root, &binds, &of_sub_paths.collect::<io::Result<Vec<_>>>()?)?;
    add(&mut binds, outer)?;
    // A requested mount in `/proc` must not be covered.
    if own_processes {
        namespaces::mount_proc()?;
    }
    binds.sort_by_key(|bind| bind.at);
    for bind in &binds {
        attach(bind).map_err(|error| named(bind.at, error))?;
    }
    let own_proc = own_processes && !has_proc;
    if isolates_root(view) {
        isolate(&binds)?;
    }
    make_read_only(view, rootfs, own_proc)
}

/// Copies the sources of mounts.
fn add<'a>(binds: &mut Vec<Bind<'a>>, mounts: Vec<&'a ViewMount>) -> io::Result<()> {
    for one in mounts {
        match source(one).and_then(|source| Ok(copy(&source)?)) {
            Ok(tree) => binds.push(Bind { at: &one.at, propagation: one.propagation, tree }),
            // The volume does not exist, so the link in the container's root directory leads nowhere.
            Err(error) if error.kind() == io::ErrorKind::NotFound && one.sub_path.as_os_str().is_empty() => {}
            Err(error) => return Err(named(&one.at, error)),
        }
    }
    Ok(())
}

/// Refuses a mount in a mount that the container shares with the node: it would appear on the node.
fn refuse_mounts_in_shared_ones(mounts: &[&ViewMount], root: &Path) -> io::Result<()> {
    let shared = mounts.iter().filter(|one| one.propagation == Propagation::Bidirectional);
    for outer in shared {
        let inner = mounts.iter().map(|one| one.at.as_path()).find(|at| *at != outer.at && at.starts_with(&outer.at));
        // Which directory of the volume a `subPath` is may change until it is mounted.
        if let Some(inner) = inner.or_else(|| Some(root).filter(|root| root.starts_with(outer.shown()))) {
            return Err(io::Error::other(format!(
                "{} has `mountPropagation: Bidirectional` and contains {}, which is a mount of its own in the container: use \
                 another directory, or remove `mountPropagation`",
                outer.at.display(),
                inner.display()
            )));
        }
    }
    Ok(())
}

/// Unmounts everything below the agent's root directory, so that the container finds no volumes of other pods in its list of mounts.
/// A user namespace keeps the mounts that it got from the node.
fn detach_below(root: &Path) -> io::Result<()> {
    for mounted in mounts::below(root)?.into_iter().filter(|mounted| mounted.at != root) {
        let _ = unmount(&mounted.at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
    Ok(())
}

/// Whether mounts of the node that come later must not appear in the container. They would be writable, whatever the root is.
fn isolates_root(view: &View) -> bool {
    let of_root = view.mounts.iter().find(|one| one.at == Path::new("/"));
    of_root.map_or(view.read_only_root, |root| root.propagation == Propagation::None)
}

/// Keeps later mounts of the node out of the container, except in the mounts that request them.
fn isolate(binds: &[Bind<'_>]) -> io::Result<()> {
    let shared = |at: &Path| {
        let inner = binds.iter().filter(|bind| at.starts_with(bind.at)).max_by_key(|bind| bind.at.as_os_str().len());
        inner.is_some_and(|bind| bind.propagation != Propagation::None)
    };
    // A mount may appear between the list and the change of its outer mount, but not after that change.
    for _ in 0..2 {
        for mounted in mounts::below(Path::new("/"))?.iter().rev().filter(|mounted| !shared(&mounted.at)) {
            if is_mount(&mounted.at) {
                mount_change(&mounted.at, MountPropagationFlags::PRIVATE).map_err(|error| named(&mounted.at, error))?;
            }
        }
    }
    Ok(())
}

/// Makes the mounts read-only that must be.
fn make_read_only(view: &View, rootfs: &Path, own_proc: bool) -> io::Result<()> {
    let mut rules: Vec<(&Path, bool)> = view.mounts.iter().map(|one| (one.at.as_path(), one.read_only)).collect();
    // A volume above the agent's root directory does not decide about the container's own root.
    rules.push((rootfs, view.read_only_root));
    if own_proc {
        rules.push((Path::new(PROC), false));
    }
    for mounted in mounts::below(Path::new("/"))? {
        let at = &mounted.at;
        let is_device = DEVICES.iter().any(|dir| at.starts_with(dir));
        let of_root = view.read_only_root && !is_device;
        // Mounts that another mount covers cannot be reached, and need no change.
        if is_read_only(at, &rules, of_root) && is_mount(at) {
            remount_read_only(at)?;
        }
    }
    Ok(())
}

/// Whether a mount can be reached by its path. True if the kernel cannot answer (Linux before 5.8).
fn is_mount(at: &Path) -> bool {
    statx(CWD, at, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, StatxFlags::empty()).is_ok_and(|found| {
        !found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
            || found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
    })
}

fn named(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

/// Opens the file or directory to mount. A whole volume is mounted over itself: what its path without links leads to now. Links in the
/// volume are followed only within the volume.
fn source(one: &ViewMount) -> io::Result<OwnedFd> {
    match one.sub_path.as_os_str().is_empty() {
        true => Ok(open_without_links(&one.at)?),
        false => sub_path::open(&one.volume, &one.sub_path)
            .map_err(|(SubPathError::Create(error) | SubPathError::Prepare(error))| error),
    }
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

fn open_without_links(path: &Path) -> Result<OwnedFd, Errno> {
    openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Copies the mounts at an open file or directory and below it.
fn copy(source: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(source, "", flags | OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::AT_EMPTY_PATH)
}

/// Covers the agent's root directory with an empty one that has only the paths of `binds`, and those of mounts that are copied later: each
/// with what is mounted there.
fn cover(root: &Path, binds: &[Bind<'_>], later: &[(&Path, OwnedFd)]) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("podwright", root, "tmpfs", flags, Some(c"mode=0711,size=64k")).map_err(|error| named(root, error))?;
    let now = binds.iter().filter(|bind| bind.at.starts_with(root)).map(|bind| (bind.at, &bind.tree));
    for (at, file) in now.chain(later.iter().map(|(at, file)| (*at, file))) {
        make_target(at, file).map_err(|error| named(at, error))?;
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

/// Mounts a copy at its path. A link in the path is an error: a container could have put it into a volume, and the mount would cover
/// another path of this container.
fn attach(bind: &Bind<'_>) -> Result<(), Errno> {
    let target = open_without_links(bind.at)?;
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(bind.tree.as_fd(), "", target.as_fd(), "", both)?;
    match bind.propagation {
        // Later mounts of the node would be writable, also in a read-only mount.
        Propagation::None => mount_change(bind.at, MountPropagationFlags::PRIVATE | MountPropagationFlags::REC),
        Propagation::HostToContainer | Propagation::Bidirectional => Ok(()),
    }
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

/// The path where the file system of processes is mounted.
const PROC: &str = "/proc";

/// The directories that stay as they are if the root is read-only: devices, processes and kernel settings have their own
/// permissions, and a container of a container runtime may write to its `/dev` too.
const DEVICES: [&str; 3] = ["/dev", PROC, "/sys"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_in_a_mount_that_is_shared_with_the_node_is_refused() {
        let mount = |at: &str, propagation| ViewMount { at: at.into(), propagation, ..ViewMount::default() };
        let (shared, own) = (mount("/a", Propagation::Bidirectional), Propagation::None);
        let refused = |other: &ViewMount, root| refuse_mounts_in_shared_ones(&[&shared, other], Path::new(root)).err();
        assert!(refused(&mount("/ab", own), "/root").is_none());
        assert!(refused(&mount("/a/b", own), "/root").unwrap().to_string().contains("/a/b"));
        assert!(refused(&mount("/b", own), "/a/root").unwrap().to_string().contains("/a/root"));
        let sub_path =
            ViewMount { volume: "/b".into(), sub_path: "x".into(), ..mount("/b/root/0", Propagation::Bidirectional) };
        assert!(refuse_mounts_in_shared_ones(&[&sub_path], Path::new("/b/root")).is_err());
    }

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
