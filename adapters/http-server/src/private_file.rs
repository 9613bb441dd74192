//! Files with secrets: only the agent's own user may read or change them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwright_model::text::reason;
use rustix::fs::OFlags;

/// The largest file that is read. A token, a link or a private key is much smaller.
const MAX_BYTES: u64 = 1 << 20;
/// The permissions that a file with a secret must not have: to be written by the group, and anything for other users.
const FORBIDDEN: u32 = 0o027;

/// Why a file with a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// The file cannot be read.
    #[error("cannot read {path} ({why})", path = .path.display(), why = reason(.error))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        error: io::Error,
    },
    /// The path names a directory, a FIFO or a device.
    #[error("{path} is not a regular file: name a file", path = .0.display())]
    NotAFile(PathBuf),
    /// The file is larger than any secret.
    #[error("{path} is larger than {MAX_BYTES} bytes: name another file", path = .0.display())]
    TooLarge(PathBuf),
    /// The file belongs to another user.
    #[error("{path} belongs to user {owner}: make it belong to user {user} (chown)", path = .path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// The user that owns it.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Other users can read or change the file.
    #[error("other users can read or change {path} (mode {mode:04o}): remove their permissions (chmod 600)",
        path = .path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file is no text in UTF-8.
    #[error("{path} is not text in UTF-8: write it again", path = .0.display())]
    NotText(PathBuf),
}

/// Reads a text file that belongs to this process's user or to root, and that other users can neither read nor change. The
/// group may read it. Blocking.
///
/// # Errors
/// [`PrivateFileError`] if the file cannot be read, or if other users can read or change it.
pub fn read_private(path: &Path) -> Result<String, PrivateFileError> {
    let read = |error| PrivateFileError::Read { path: path.to_owned(), error };
    // Without O_NONBLOCK, opening a FIFO would block.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(read)?;
    let metadata = file.metadata().map_err(read)?;
    if !metadata.is_file() {
        return Err(PrivateFileError::NotAFile(path.to_owned()));
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user && metadata.uid() != 0 {
        return Err(PrivateFileError::Owner { path: path.to_owned(), owner: metadata.uid(), user });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & FORBIDDEN != 0 {
        return Err(PrivateFileError::Mode { path: path.to_owned(), mode });
    }
    if metadata.len() > MAX_BYTES {
        return Err(PrivateFileError::TooLarge(path.to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(read)?;
    String::from_utf8(bytes).map_err(|_| PrivateFileError::NotText(path.to_owned()))
}

/// Writes a file that only this process's user can read, and replaces an older file at once. The directory must not be
/// writable for other users. Blocking.
///
/// # Errors
/// The system's error.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    // A file that an earlier agent left may have another mode.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_written_file_is_private_and_replaces_a_readable_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, "old").unwrap();
        fs::write(dir.path().join("secret.new"), "left over").unwrap();
        write_private(&path, "new").unwrap();
        assert_eq!(read_private(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_other_users_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, "x").unwrap();
        for (mode, good) in
            [(0o600, true), (0o400, true), (0o640, true), (0o644, false), (0o620, false), (0o601, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = read_private(&path);
            assert_eq!(read.is_ok(), good, "{mode:o}: {read:?}");
        }
        assert!(read_private(&path).unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn a_directory_or_fifo_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read_private(dir.path()), Err(PrivateFileError::NotAFile(_))));
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(matches!(read_private(&fifo), Err(PrivateFileError::NotAFile(_))));
        symlink("nowhere", dir.path().join("link")).unwrap();
        assert!(matches!(read_private(&dir.path().join("link")), Err(PrivateFileError::Read { .. })));
    }
}
