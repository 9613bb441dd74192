//! The file of a Unix socket.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The file of a socket. When dropped, it removes the file, unless another process has replaced the file in the meantime.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// The file of a socket that this process has bound. Blocking.
    ///
    /// # Errors
    /// The system's error if the file does not exist.
    pub fn new(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(SocketFile { path: path.to_owned(), device: found.dev(), inode: found.ino() })
    }

    /// Whether the path has no file any more, so that no client can connect. Blocking.
    pub fn is_removed(&self) -> bool {
        fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Removes the socket of an earlier process, so that the path can be bound. Blocking.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the file is not a socket, otherwise the system's error.
    pub fn remove_old(path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => fs::remove_file(path),
            Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file is not a socket")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours =
            fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode));
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the socket");
        }
    }
}
