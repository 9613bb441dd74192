//! Which sockets of plugins the agent trusts. The process that serves a driver's socket gets the claims of pods, and names the
//! devices that their containers get. So only root and the user of the agent may put a socket there.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// The largest number of links that a path may lead through (`MAXSYMLINKS` of Linux).
const MAX_LINKS: usize = 40;

/// Why a file is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Distrust {
    /// Another user owns the file.
    #[error("it belongs to user {0}")]
    Owner(u32),
    /// Another user may change the directory.
    #[error("other users can write to it (mode {0:04o})")]
    Mode(u32),
    /// The last part of the path is a symbolic link, or a file that is not a socket.
    #[error("it is not a socket")]
    NotSocket,
    /// A process of another user serves the socket.
    #[error("a process of user {0} serves it")]
    Peer(u32),
    /// The path leads through too many links.
    #[error("its path has too many links")]
    Links,
}

/// Why a socket is not connected to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UntrustedSocket {
    /// Another user may have put the socket there.
    #[error("{path} cannot be trusted, because {why}: make its owner root or the user of the agent, and let no other user write to \
        its directory (chmod go-w)", path = .path.display())]
    Untrusted {
        /// The socket, or a directory above it.
        path: PathBuf,
        /// Why it is not trusted.
        why: Distrust,
    },
    /// The system cannot report who could have put the socket there.
    #[error("cannot check {path}", path = .path.display())]
    Check {
        /// The socket, or a directory above it.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a file is not trusted: a user other than root and the agent's could have put it there or, if it is a directory, could put
/// files into it. Any user may have write permission for a socket, which only lets that user connect to the plugin.
pub(super) fn distrust(meta: &Metadata, user: u32) -> Option<Distrust> {
    let mode = meta.mode() & 0o7777;
    if meta.uid() != 0 && meta.uid() != user {
        Some(Distrust::Owner(meta.uid()))
    } else if meta.is_dir() && mode & 0o022 != 0 {
        Some(Distrust::Mode(mode))
    } else {
        None
    }
}

/// Checks that nobody but root and the user of the agent can put another socket at this absolute path. Links to directories are
/// followed, and each part that they lead through is checked. A directory like `/tmp`, in which users can only remove their own
/// files, may be above the directory of the socket. The group of the agent may write to the directories.
///
/// # Errors
/// [`UntrustedSocket`].
pub(super) fn check_socket(path: &Path, user: u32) -> Result<(), UntrustedSocket> {
    let group = rustix::process::getegid().as_raw();
    let untrusted = |path: &Path, why| UntrustedSocket::Untrusted { path: path.to_owned(), why };
    let mut left: Vec<OsString> = parts(path);
    let mut found = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = left.pop() {
        if part == ".." {
            found.pop();
            continue;
        }
        let next = found.join(part);
        let checked = |source| UntrustedSocket::Check { path: next.clone(), source };
        let meta = fs::symlink_metadata(&next).map_err(checked)?;
        let is_last = left.is_empty();
        if meta.is_symlink() && !is_last {
            links += 1;
            if links > MAX_LINKS {
                return Err(untrusted(path, Distrust::Links));
            }
            if let Some(why) = distrust(&meta, user) {
                return Err(untrusted(&next, why));
            }
            let target = fs::read_link(&next).map_err(checked)?;
            if target.is_absolute() {
                found = PathBuf::from("/");
            }
            left.extend(parts(&target));
            continue;
        }
        if is_last && !meta.file_type().is_socket() {
            return Err(untrusted(&next, Distrust::NotSocket));
        }
        let is_parent = left.len() == 1;
        let is_sticky = meta.is_dir() && meta.mode() & 0o1000 != 0;
        // Many systems have a group for each user, and directories that it can write to.
        let is_of_group = meta.mode() & 0o002 == 0 && (meta.gid() == 0 || meta.gid() == group);
        match distrust(&meta, user) {
            Some(Distrust::Mode(_)) if is_of_group || (is_sticky && !is_parent) => {}
            Some(why) => return Err(untrusted(&next, why)),
            None => {}
        }
        found = next;
    }
    Ok(())
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.rev().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn socket_is_trusted_if_only_root_and_the_agent_can_replace_it() {
        let root = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let path = |name: &str| root.path().join(name);
        let set_mode = |name: &str, mode| fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        let check = |name: &str| check_socket(&path(name), user).map_err(|error| error.to_string());
        fs::create_dir_all(path("plugins/gpu")).unwrap();
        let _socket = UnixListener::bind(path("plugins/gpu/dra.sock")).unwrap();
        assert_eq!(check("plugins/gpu/dra.sock"), Ok(()));
        symlink(path("plugins"), path("linked")).unwrap();
        assert_eq!(check("linked/gpu/../gpu/dra.sock"), Ok(()), "a link of the administrator to a directory");
        symlink("dra.sock", path("plugins/gpu/link.sock")).unwrap();
        fs::write(path("plugins/gpu/file"), "").unwrap();
        symlink("loop", path("loop")).unwrap();
        for (name, expected) in [
            ("plugins/gpu/link.sock", "it is not a socket"),
            ("plugins/gpu/file", "it is not a socket"),
            ("plugins/gpu/none.sock", "cannot check"),
            ("loop/dra.sock", "too many links"),
        ] {
            let error = check(name).unwrap_err();
            assert!(error.contains(expected) && error.contains(root.path().to_str().unwrap()), "{error}");
        }
        set_mode("plugins/gpu", 0o777);
        let error = check("linked/gpu/dra.sock").unwrap_err();
        assert!(error.contains("other users can write to it (mode 0777)") && error.contains("chmod go-w"), "{error}");
        set_mode("plugins/gpu", 0o1777);
        assert!(check("plugins/gpu/dra.sock").is_err(), "another user can put sockets there");
        set_mode("plugins/gpu", 0o755);
        set_mode("plugins", 0o1777);
        assert_eq!(check("plugins/gpu/dra.sock"), Ok(()));
        set_mode("plugins", 0o777);
        assert!(check("plugins/gpu/dra.sock").is_err(), "another user can replace the directory");
        set_mode("plugins", 0o755);
        // Only root can give files away.
        if user == 0 {
            chown(path("plugins/gpu/dra.sock"), Some(4711), None).unwrap();
            assert!(check("plugins/gpu/dra.sock").unwrap_err().contains("belongs to user 4711"));
            assert!(check_socket(&path("plugins/gpu/dra.sock"), 4711).is_ok());
        }
    }
}
