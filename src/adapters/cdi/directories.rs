//! Reads the specifications of the directories.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

use super::document::{Format, MAX_BYTES, parse};
use super::error::{SpecError, SpecFault};
use super::resolve::{Spec, Specs};
use crate::adapters::trusted_dir::{self, UntrustedDirectory};

/// How many files of one directory are read. A DRA driver writes a file for each claim of the node.
const MAX_FILES: usize = 10_000;

/// Reads the specifications of directories, the earlier directory first. A directory that does not exist has none. A directory or a
/// file that cannot be used, or that a user other than root and the agent's can change, becomes a fault, and the others are used.
pub fn read(directories: &[PathBuf]) -> Specs {
    let mut specs = Specs { directories: directories.to_vec(), ..Specs::default() };
    for (index, directory) in directories.iter().enumerate() {
        let files = match files(directory) {
            Ok(files) => files,
            Err(SpecError::Io(error)) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => {
                specs.faults.push(SpecFault { path: directory.clone(), error });
                continue;
            }
        };
        for (path, format) in files {
            match read_file(&path, format, index) {
                Ok(spec) => specs.specs.push(spec),
                // The driver has removed or renamed the file.
                Err(SpecError::Io(error)) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => specs.faults.push(SpecFault { path, error }),
            }
        }
    }
    specs
}

/// The files of a directory that may be specifications, sorted by name.
fn files(directory: &Path) -> Result<Vec<(PathBuf, Format)>, SpecError> {
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

fn read_file(path: &Path, format: Format, directory: usize) -> Result<Spec, SpecError> {
    // Opening a FIFO for reading must not wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::empty()).map_err(io::Error::from).map_err(SpecError::Io)?;
    let stat = fstat(&file).map_err(io::Error::from).map_err(SpecError::Io)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(SpecError::NotRegular);
    }
    check(path, stat.st_uid, stat.st_mode)?;
    let mut bytes = Vec::new();
    File::from(file).take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(SpecError::Io)?;
    let content = parse(&bytes, format)?;
    Ok(Spec { path: path.to_owned(), directory, kind: content.kind, devices: content.devices, edits: content.edits })
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
