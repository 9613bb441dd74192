//! Unix sockets at paths of any length, for the agent's own user only.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// The most bytes that the path of a socket has: `sun_path` without the final zero (`unix(7)`).
const MAX_PATH_BYTES: usize = 107;
/// How many connections wait until they are accepted.
const BACKLOG: u32 = 1024;

/// A path of a socket that the system accepts. A longer path is reached through its open directory, which stays open as long
/// as this value exists.
pub struct ShortPath {
    path: PathBuf,
    _dir: Option<File>,
}

impl ShortPath {
    /// Shortens a path if that is necessary. Blocking.
    ///
    /// # Errors
    /// The system's error if the directory of a long path cannot be opened.
    pub fn new(path: &Path) -> io::Result<Self> {
        if path.as_os_str().as_bytes().len() <= MAX_PATH_BYTES {
            return Ok(ShortPath { path: path.to_owned(), _dir: None });
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from(io::ErrorKind::InvalidFilename));
        };
        let dir = File::open(parent)?;
        let path = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
        Ok(ShortPath { path, _dir: Some(dir) })
    }

    /// The path for the system.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Listens on a socket that only this process's user can connect to. It replaces the socket of an earlier agent, so the caller
/// must own the directory alone. Blocking.
///
/// # Errors
/// The system's error.
pub(super) fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(ShortPath::new(path)?.path())?;
    // Until `listen`, nobody can connect. So there is no time in which the socket has a wider mode.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)
}

/// Whether the client is a process of this process's user or of root. The mode of the socket already ensures it, unless
/// somebody changed the mode.
pub(super) fn is_own_user(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_at_a_long_path_is_private_and_replaces_an_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        fs::create_dir(&deep).unwrap();
        for path in [dir.path().join("s"), deep.join("s")] {
            fs::write(&path, "left by an earlier agent").unwrap();
            let listener = listen(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let short = ShortPath::new(&path).unwrap();
            let (client, accepted) = tokio::join!(UnixStream::connect(short.path()), listener.accept());
            assert!(client.is_ok() && is_own_user(&accepted.unwrap().0));
        }
    }
}
