//! Checks that only root and the user of the agent can change a file: a plugin runs with the rights of the agent, and its configuration
//! says with which arguments and variables.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use podwright_host::trusted_dir::{UntrustedDirectory, check_above};

/// Why the agent uses neither a plugin nor a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UntrustedFile {
    /// The file does not exist or cannot be read.
    #[error("cannot check {path}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The path leads to something else.
    #[error("{path} is not a regular file: replace it", path = .0.display())]
    NotRegular(PathBuf),
    /// The plugin may not be executed.
    #[error("{path} is not executable: make it executable (chmod +x)", path = .0.display())]
    NotExecutable(PathBuf),
    /// Another user owns the file, or a directory or link above it.
    #[error("{path} belongs to user {owner}, who can change what the agent executes: give it to root (chown root)",
        path = .path.display())]
    Owner {
        /// The file, directory or link.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Other users can write to the file, or to a directory above it.
    #[error("other users can write to {path} (mode {mode:04o}) and change what the agent executes: remove their write permission \
        (chmod go-w)", path = .path.display())]
    Mode {
        /// The file or directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

/// Checks a file, and all directories and links above it. Links are followed. Blocks.
pub(crate) fn check(path: &Path) -> Result<Metadata, UntrustedFile> {
    let failed = |source| UntrustedFile::Io { path: path.to_owned(), source };
    let found = std::fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        return Err(UntrustedFile::NotRegular(path.to_owned()));
    }
    check_above(path).map_err(|error| match error {
        UntrustedDirectory::OwnerAbove { path, owner } | UntrustedDirectory::Owner { path, owner, .. } => {
            UntrustedFile::Owner { path, owner }
        }
        UntrustedDirectory::ModeAbove { path, mode } | UntrustedDirectory::Mode { path, mode } => {
            UntrustedFile::Mode { path, mode }
        }
        error => UntrustedFile::Io { path: path.to_owned(), source: error.into() },
    })?;
    if found.uid() != 0 && found.uid() != rustix::process::geteuid().as_raw() {
        return Err(UntrustedFile::Owner { path: path.to_owned(), owner: found.uid() });
    }
    if found.mode() & 0o022 != 0 {
        return Err(UntrustedFile::Mode { path: path.to_owned(), mode: found.mode() & 0o7777 });
    }
    Ok(found)
}

/// Checks a plugin. Blocks.
pub(crate) fn check_plugin(path: &Path) -> Result<(), UntrustedFile> {
    if check(path)?.mode() & 0o111 == 0 { Err(UntrustedFile::NotExecutable(path.to_owned())) } else { Ok(()) }
}
