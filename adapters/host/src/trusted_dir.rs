//! Checks directories whose content the agent trusts: records, which say what is run, and the directories of pods.
//!
//! A user who owns such a directory, or who may write to it, can put any record into it, and the agent would act on that record
//! with its own rights. A change of owner or mode does not help afterwards, because the content stays. So the agent refuses the
//! directory and does not repair it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use super::mounts;

/// Why the agent does not use a directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UntrustedDirectory {
    /// The system refused to check the file or directory.
    #[error("cannot check {path}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path leads to a link or a file.
    #[error("{path} is not a directory, so its content must not be trusted: move it away", path = .0.display())]
    NotDirectory(PathBuf),
    /// The directory, or a file in it, belongs to another user.
    #[error("{path} belongs to user {owner} and not to user {user}, so its content must not be trusted: move it away, or choose \
        another root directory", path = .path.display())]
    Owner {
        /// The file or directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Other users can write to the directory.
    #[error("other users can write to {path} (mode {mode:04o}), so its content must not be trusted: move it away, or, if no other \
        user has changed it, remove their write permission (chmod go-w)", path = .path.display())]
    Mode {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A directory or link above the root directory belongs to a user who is neither root nor the user of this process.
    #[error("{path} belongs to user {owner}, who can replace the root directory below it: choose another root directory",
        path = .path.display())]
    OwnerAbove {
        /// The directory or link.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Other users can write to a directory above the root directory.
    #[error("other users can write to {path} (mode {mode:04o}) and replace the root directory below it: remove their write \
        permission (chmod go-w), set the sticky bit (chmod +t), or choose another root directory", path = .path.display())]
    ModeAbove {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

impl UntrustedDirectory {
    fn io(path: &Path, error: impl Into<io::Error>) -> Self {
        UntrustedDirectory::Io { path: path.to_owned(), source: error.into() }
    }
}

impl From<UntrustedDirectory> for io::Error {
    fn from(error: UntrustedDirectory) -> Self {
        match error {
            UntrustedDirectory::Io { source, .. } => source,
            error => io::Error::new(io::ErrorKind::PermissionDenied, error),
        }
    }
}

/// Opens a directory that belongs to this process's user and that no other user can write to. The path's last name may not be a
/// link.
pub fn open(path: &Path) -> Result<OwnedFd, UntrustedDirectory> {
    open_at(CWD, path.as_os_str(), path)
}

/// Checks a directory as [`open`] does, and the directories below it down to `depth`. Every file in the directories above that
/// depth must belong to this process's user or to root. Each level needs one file descriptor.
pub fn check_tree(path: &Path, depth: usize) -> Result<(), UntrustedDirectory> {
    check_below(open(path)?, path, depth)
}

/// Checks the files in a directory, and the directory as [`open`] does. Each file must belong to this process's user or to root.
/// Directories in it are not checked.
pub fn check_files(path: &Path) -> Result<(), UntrustedDirectory> {
    for_each(open(path)?, path, |_, _, path, stat| if is_dir(stat) { Ok(()) } else { check_file(path, stat) })
}

fn check_below(dir: OwnedFd, path: &Path, depth: usize) -> Result<(), UntrustedDirectory> {
    if depth == 0 {
        return Ok(());
    }
    for_each(dir, path, |dir, name, path, stat| match (is_dir(stat), depth) {
        (false, _) => check_file(path, stat),
        (true, 1) => check_dir(path, stat),
        (true, _) => check_below(open_at(dir, name, path)?, path, depth - 1),
    })
}

/// Runs a check on each entry of a directory, with the directory, the entry's name and the entry's path.
fn for_each(
    dir: OwnedFd,
    path: &Path,
    check: impl Fn(BorrowedFd<'_>, &OsStr, &Path, &Stat) -> Result<(), UntrustedDirectory>,
) -> Result<(), UntrustedDirectory> {
    let failed = |error| UntrustedDirectory::io(path, error);
    let mut entries = Dir::new(dir).map_err(failed)?;
    while let Some(entry) = entries.read() {
        let entry = entry.map_err(failed)?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let (dir, path) = (entries.fd().map_err(failed)?, path.join(name));
        match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => check(dir, name, &path, &stat)?,
            // Another process has removed or renamed it.
            Err(Errno::NOENT) => {}
            Err(error) => return Err(UntrustedDirectory::io(&path, error)),
        }
    }
    Ok(())
}

/// Checks everything above a directory: the directories and links of the path as it is written, and the directories above the
/// directory that it leads to. Each must belong to root or to this process's user. Only these users may write to it, unless it is
/// sticky: then others cannot replace what is not theirs. An `emptyDir` of the pod of this process may have any mode, because only the
/// containers of the pod reach it.
pub fn check_above(path: &Path) -> Result<(), UntrustedDirectory> {
    let written = std::path::absolute(path).map_err(|error| UntrustedDirectory::io(path, error))?;
    let real = path.canonicalize().map_err(|error| UntrustedDirectory::io(path, error))?;
    let last_is_link = written.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
    let links = written.ancestors().skip(usize::from(!last_is_link));
    for above in links.chain(real.ancestors().skip(1)) {
        let meta = above.symlink_metadata().map_err(|error| UntrustedDirectory::io(above, error))?;
        let user = rustix::process::geteuid().as_raw();
        if meta.uid() != user && meta.uid() != 0 {
            return Err(UntrustedDirectory::OwnerAbove { path: above.to_owned(), owner: meta.uid() });
        }
        let ids = Ids { user, group: rustix::process::getegid().as_raw() };
        let is_open = meta.is_dir() && others_can_replace_entries(ids, meta.uid(), meta.gid(), meta.mode());
        if is_open && !is_empty_dir(above) {
            return Err(UntrustedDirectory::ModeAbove { path: above.to_owned(), mode: meta.mode() & 0o7777 });
        }
    }
    Ok(())
}

/// Whether an `emptyDir` is mounted at a directory. The kubelet lets every user write to an `emptyDir`, without the sticky bit.
pub(super) fn is_empty_dir(path: &Path) -> bool {
    mounts::exactly_at(path).is_ok_and(|mounted| mounted.is_some_and(|mounted| mounted.is_empty_dir()))
}

/// The user and the group of a process.
#[derive(Clone, Copy)]
struct Ids {
    user: u32,
    group: u32,
}

/// Whether users other than root and the process's own can replace the entries of a directory.
fn others_can_replace_entries(ids: Ids, owner: u32, group: u32, mode: u32) -> bool {
    // Many distributions give each user a private group with the user's number, and a umask that lets this group write.
    let private_group = ids.user != 0 && owner == ids.user && group == ids.group && group == ids.user;
    let others = if private_group { 0o002 } else { 0o022 };
    mode & 0o1000 == 0 && mode & others != 0
}

/// Opens a directory by its name in `parent`, as [`open`] does.
fn open_at(parent: impl AsFd, name: &OsStr, path: &Path) -> Result<OwnedFd, UntrustedDirectory> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match openat(&parent, name, flags, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(UntrustedDirectory::NotDirectory(path.to_owned())),
        Err(error) => {
            // The directory may be closed to this process because it belongs to another user.
            if let Ok(stat) = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
                check_dir(path, &stat)?;
            }
            return Err(UntrustedDirectory::io(path, error));
        }
        Ok(dir) => dir,
    };
    check_dir(path, &fstat(&dir).map_err(|error| UntrustedDirectory::io(path, error))?)?;
    Ok(dir)
}

fn check_dir(path: &Path, stat: &Stat) -> Result<(), UntrustedDirectory> {
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        return Err(UntrustedDirectory::Owner { path: path.to_owned(), owner: stat.st_uid, user });
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o022 != 0 {
        return Err(UntrustedDirectory::Mode { path: path.to_owned(), mode });
    }
    Ok(())
}

fn check_file(path: &Path, stat: &Stat) -> Result<(), UntrustedDirectory> {
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid == user || stat.st_uid == 0 {
        return Ok(());
    }
    Err(UntrustedDirectory::Owner { path: path.to_owned(), owner: stat.st_uid, user })
}

fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use rustix::mount::{UnmountFlags, mount_bind, unmount};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn directories_down_to_the_depth_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        for (name, depth) in [("", 0), ("a", 1), ("a/b", 2)] {
            let path = dir.path().join(name);
            for mode in [0o777, 0o1777, 0o720] {
                set_mode(&path, mode);
                let error = check_tree(dir.path(), depth).unwrap_err();
                assert!(matches!(&error, UntrustedDirectory::Mode { path: found, .. } if *found == path), "{error}");
                assert!(error.to_string().contains("must not be trusted: move it away"), "{error}");
                if depth > 0 {
                    check_tree(dir.path(), depth - 1).unwrap();
                }
            }
            set_mode(&path, 0o751);
        }
        set_mode(&dir.path().join("a/b/c"), 0o777);
        check_tree(dir.path(), 2).unwrap();
    }

    #[test]
    fn links_and_files_of_other_users_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        open(&real).unwrap();
        assert!(matches!(open(&link), Err(UntrustedDirectory::NotDirectory(_))));
        fs::write(real.join("file"), "").unwrap();
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give files to other users");
            return;
        }
        for name in ["real/file", "real"] {
            chown(dir.path().join(name), Some(65534), None).unwrap();
            for found in [check_tree(dir.path(), 2), check_files(&real)] {
                let error = found.unwrap_err();
                assert!(matches!(error, UntrustedDirectory::Owner { owner: 65534, user: 0, .. }), "{name}: {error}");
            }
            check_files(dir.path()).unwrap();
        }
    }

    #[test]
    fn directories_above_that_others_can_change_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (above, path, link) = (dir.path().join("a"), dir.path().join("a/b/root"), dir.path().join("link"));
        fs::create_dir_all(&path).unwrap();
        symlink(&path, &link).unwrap();
        for (mode, ok) in [(0o755, true), (0o1777, true), (0o1775, true), (0o777, false), (0o757, false)] {
            set_mode(&above, mode);
            for path in [&path, &link] {
                let found = check_above(path);
                assert_eq!(found.is_ok(), ok, "{mode:o} {}: {found:?}", path.display());
            }
        }
        set_mode(&above, 0o755);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
            check_above(&path).unwrap();
            assert!(matches!(check_above(&link), Err(UntrustedDirectory::OwnerAbove { owner: 65534, .. })));
            chown(&above, Some(65534), None).unwrap();
            assert!(matches!(check_above(&path), Err(UntrustedDirectory::OwnerAbove { owner: 65534, .. })));
        }
    }

    #[test]
    fn root_directory_in_an_empty_dir_of_the_pod_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = dir.path().join("pods/u/volumes");
        let (mount, path) = (dir.path().join("mount"), dir.path().join("mount/root"));
        fs::create_dir(&mount).unwrap();
        for (plugin, expected) in [("kubernetes.io~empty-dir", true), ("kubernetes.io~host-path", false)] {
            let volume = volumes.join(plugin).join("v");
            fs::create_dir_all(volume.join("root")).unwrap();
            set_mode(&volume, 0o777);
            if let Err(error) = mount_bind(&volume, &mount) {
                eprintln!("skipped: this process may not mount: {error}");
                return;
            }
            let found = check_above(&path);
            unmount(&mount, UnmountFlags::DETACH).unwrap();
            assert_eq!(found.is_ok(), expected, "{plugin}: {found:?}");
            // On the node, the volume is a directory like any other.
            assert!(check_above(&volume.join("root")).is_err());
        }
    }

    #[test]
    fn only_a_private_group_may_write_above_the_root_directory() {
        let ids = |user, group| Ids { user, group };
        for (ids, owner, group, mode, can) in [
            (ids(1000, 1000), 1000, 1000, 0o775, false),
            (ids(1000, 1000), 1000, 1000, 0o777, true),
            (ids(1000, 100), 1000, 100, 0o775, true),
            (ids(1000, 1000), 0, 1000, 0o775, true),
            (ids(1000, 1000), 1000, 27, 0o775, true),
            (ids(0, 0), 0, 0, 0o775, true),
            (ids(0, 0), 0, 0, 0o755, false),
        ] {
            assert_eq!(others_can_replace_entries(ids, owner, group, mode), can, "{owner} {group} {mode:o}");
        }
    }
}
