//! Opens regular files in directories that containers and other programs may change.
//!
//! Another program may put a symbolic link, a FIFO, a device or a directory at any name, at any time. So a lookup goes from an
//! open directory to the names below it without following a link, and only a regular file is opened. The type is checked before
//! the file is opened, because opening a FIFO may block and opening a device may have effects.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

/// Opens the directory `below` under `root`. Links in the path of `root` itself are followed.
pub fn open_dir(root: &Path, below: &Path) -> io::Result<OwnedFd> {
    let root = openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(beneath(&root, below, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?)
}

/// Opens a directory at a path below an open directory.
pub(crate) fn dir_beneath(dir: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    Ok(beneath(dir, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?)
}

/// Opens a regular file for reading.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] if it is not a regular file; otherwise the system's error.
pub fn open(dir: impl AsFd, path: &Path) -> io::Result<File> {
    let found = beneath(&dir, path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
    if !is_regular(&found)? {
        return Err(not_regular());
    }
    reopen(&found, OFlags::RDONLY)
}

/// Reads a regular file of at most `limit` bytes in a directory whose content may be hostile. A link leads to a file in the
/// directory, also an absolute one (upstream uses `securejoin`).
///
/// # Errors
/// [`ErrorKind::InvalidInput`] if it is not a regular file, [`ErrorKind::FileTooLarge`] if it is larger; otherwise the system's
/// error.
pub(crate) fn read_in_root(root: &Path, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let root = openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let found = resolve(&root, path, OFlags::PATH, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)?;
    if !is_regular(&found)? {
        return Err(not_regular());
    }
    let mut bytes = Vec::new();
    reopen(&found, OFlags::RDONLY)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

/// Creates a file for appending.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if the name exists, even as a broken link; otherwise the system's error.
pub(crate) fn create(dir: impl AsFd, path: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
    Ok(File::from(beneath(&dir, path, flags, Mode::from_raw_mode(mode))?))
}

/// The error for a file that is not a regular file.
pub(crate) fn not_regular() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "it is not a regular file: remove it")
}

fn is_regular(file: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(file)?.st_mode) == FileType::RegularFile)
}

/// Opens the file of a descriptor that was opened as a path only.
fn reopen(found: &OwnedFd, flags: OFlags) -> io::Result<File> {
    let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
    Ok(File::from(openat(CWD, itself, flags | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?))
}

fn beneath(dir: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    resolve(dir, path, flags, mode, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

fn resolve(dir: impl AsFd, path: &Path, flags: OFlags, mode: Mode, inside: ResolveFlags) -> Result<OwnedFd, Errno> {
    for _ in 0..TRIES {
        match openat2(&dir, path, flags | OFlags::CLOEXEC, mode, inside) {
            // Another process renamed a file during the lookup, so the kernel could not decide whether the result is beneath.
            Err(Errno::AGAIN) => {}
            found => return found,
        }
    }
    Err(Errno::AGAIN)
}

/// How often a lookup is repeated that was disturbed by renames.
const TRIES: usize = 100;

/// Opens a file for appending, and creates it if it is missing. A link, FIFO or device at its name is replaced by a new file.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] if a directory has the name; otherwise the system's error.
pub(crate) fn append(dir: impl AsFd, path: &Path, mode: u32) -> io::Result<File> {
    use rustix::fs::{AtFlags, unlinkat};
    for _ in 0..TRIES {
        match create(&dir, path, mode) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return created,
        }
        match beneath(&dir, path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(found) if is_regular(&found)? => return reopen(&found, OFlags::WRONLY | OFlags::APPEND),
            Ok(_) => match unlinkat(&dir, path, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR | Errno::PERM) => return Err(not_regular()),
                Err(error) => return Err(error.into()),
            },
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::AGAIN.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use podwright_fixtures::hostile_files::{clear, plants};

    use super::*;

    fn secret() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        (dir, secret)
    }

    #[test]
    fn only_regular_files_are_opened() {
        let (dir, secret) = secret();
        let (opened, path) = (open_dir(dir.path(), Path::new(".")).unwrap(), dir.path().join("a"));
        for (what, plant) in plants(&secret) {
            plant(&path);
            let error = open(&opened, Path::new("a")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{what}");
            assert_eq!(create(&opened, Path::new("a"), 0o600).unwrap_err().kind(), ErrorKind::AlreadyExists, "{what}");
            clear(&path);
        }
        fs::write(&path, "text").unwrap();
        assert_eq!(io::read_to_string(open(&opened, Path::new("a")).unwrap()).unwrap(), "text");
    }

    #[test]
    fn a_link_in_a_volume_leads_to_a_file_of_the_volume() {
        let (dir, secret) = secret();
        let (volume, file) = (dir.path().join("volume"), Path::new("file"));
        fs::create_dir(&volume).unwrap();
        let read = |path: &str| read_in_root(&volume, Path::new(path), 6);
        fs::write(volume.join(file), "inside").unwrap();
        for (name, to) in [("a", "/file"), ("b", "../../file"), ("c", "file")] {
            symlink(to, volume.join(name)).unwrap();
            assert_eq!(read(name).unwrap(), b"inside", "{to}");
        }
        symlink(&secret, volume.join("d")).unwrap();
        assert_eq!(read("d").unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(volume.join("long"), "1234567").unwrap();
        assert_eq!(read("long").unwrap_err().kind(), ErrorKind::FileTooLarge);
        for (what, plant) in plants(&secret) {
            plant(&volume.join("x"));
            assert!(read("x").is_err(), "{what}");
            clear(&volume.join("x"));
        }
    }

    #[test]
    fn links_below_the_root_are_not_followed() {
        let (dir, secret) = secret();
        let elsewhere = secret.parent().unwrap();
        symlink(elsewhere, dir.path().join("pod")).unwrap();
        assert!(open_dir(dir.path(), Path::new("pod")).is_err());
        assert!(open_dir(dir.path(), Path::new("..")).is_err());
        let root = open_dir(dir.path(), Path::new(".")).unwrap();
        assert!(open(&root, Path::new("pod/secret")).is_err());
        // The root itself may be a link: some nodes have their logs on another disk.
        assert!(open_dir(&dir.path().join("pod"), Path::new(".")).is_ok());
    }

    #[test]
    fn append_replaces_whatever_is_not_a_regular_file() {
        use std::io::Write;
        let (dir, secret) = secret();
        let (opened, path) = (open_dir(dir.path(), Path::new(".")).unwrap(), dir.path().join("a"));
        for (what, plant) in plants(&secret) {
            plant(&path);
            let file = append(&opened, Path::new("a"), 0o600);
            if what == "directory" {
                assert_eq!(file.unwrap_err().kind(), ErrorKind::InvalidInput);
                clear(&path);
                continue;
            }
            file.unwrap().write_all(b"one ").unwrap();
            append(&opened, Path::new("a"), 0o600).unwrap().write_all(b"two").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "one two", "{what}");
            clear(&path);
        }
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    }
}
