//! Lists the files of the directories, and reads one file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::cache::FileVersion;
use super::document::{Content, Format, MAX_BYTES, parse};
use super::error::SpecError;
use super::resolve::Spec;
use crate::trusted_dir::{self, UntrustedDirectory};

/// The largest number of files in one directory. A DRA driver may write a file for each claim of the node.
const MAX_FILES: usize = 10_000;

/// The files of a directory that may be specifications, sorted by name.
pub(super) fn files(directory: &Path) -> Result<Vec<(PathBuf, Format)>, SpecError> {
    // An empty directory needs no check, but the check of a missing one would fail.
    let found = std::fs::metadata(directory).map_err(SpecError::Io)?;
    trusted_dir::check_above(directory).map_err(untrusted)?;
    check(directory, found.uid(), found.mode())?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(SpecError::Io)? {
        let path = entry.map_err(SpecError::Io)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Drivers write to a hidden file first, and rename it when it is complete.
        if let Some(format) = Format::of(&name).filter(|_| !name.starts_with('.')) {
            if files.len() == MAX_FILES {
                return Err(SpecError::TooManyFiles(MAX_FILES));
            }
            files.push((path, format));
        }
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(files)
}

/// Reads a file, and the version of the file that was read. A writer that changes the file meanwhile gives it another version.
pub(super) fn read_file(path: &Path, format: Format) -> Result<(Spec, FileVersion), SpecError> {
    // Opening a FIFO for reading must not wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::empty()).map_err(io::Error::from).map_err(SpecError::Io)?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(SpecError::Io)?;
    if !metadata.is_file() {
        return Err(SpecError::NotRegular);
    }
    check(path, metadata.uid(), metadata.mode())?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(SpecError::Io)?;
    let Content { kind, devices, edits } = parse(&bytes, format)?;
    let spec = Spec { path: path.to_owned(), directory: 0, kind, devices, edits };
    Ok((spec, FileVersion::of(&metadata)))
}

/// Checks that only root and the agent's user can change a file or directory.
fn check(path: &Path, owner: u32, mode: u32) -> Result<(), SpecError> {
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(SpecError::Owner { path: path.to_owned(), owner });
    }
    if mode & 0o022 != 0 {
        return Err(SpecError::Mode { path: path.to_owned(), mode: mode & 0o7777 });
    }
    Ok(())
}

fn untrusted(error: UntrustedDirectory) -> SpecError {
    match error {
        UntrustedDirectory::OwnerAbove { path, owner } | UntrustedDirectory::Owner { path, owner, .. } => {
            SpecError::Owner { path, owner }
        }
        UntrustedDirectory::ModeAbove { path, mode } | UntrustedDirectory::Mode { path, mode } => {
            SpecError::Mode { path, mode }
        }
        error => SpecError::Io(error.into()),
    }
}
