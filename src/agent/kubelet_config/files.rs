//! Reads the files of a configuration.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use podwright_host::trusted_file::{self, UntrustedFile};
use podwright_model::text::reason;

use super::{ConfigFault, Layer, document};

/// The size limit of a file in bytes. The whole configuration of a node has a few kilobytes.
const MAX_BYTES: u64 = 1 << 20;
/// How many directories may be nested in the directory of drop-in files.
const MAX_DEPTH: usize = 16;
/// The end of the name of a drop-in file (upstream `mergeKubeletConfigurations`, kubelet 1.36).
const DROP_IN: &str = ".conf";

/// Why a configuration cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error("cannot read the configuration {path} ({why}): correct {flag}, or make it readable", path = .path.display(), why = reason(.error))]
    Read { path: PathBuf, flag: &'static str, error: io::Error },
    #[error("the configuration {path} is not a regular file: correct {flag}", path = .path.display())]
    NotRegular { path: PathBuf, flag: &'static str },
    #[error("the configuration {path} has more than 1 MiB: correct {flag}", path = .path.display())]
    TooLarge { path: PathBuf, flag: &'static str },
    #[error("the configuration of {flag} decides what runs here, but {error}")]
    Untrusted { flag: &'static str, error: UntrustedFile },
    #[error("the directory {path} is nested too deeply: move its files up", path = .0.display())]
    TooDeep(PathBuf),
    #[error("{}", lines(.0))]
    Faults(Vec<ConfigFault>),
}

/// The faults, one in a line.
pub(crate) fn lines(faults: &[ConfigFault]) -> String {
    faults.iter().map(ConfigFault::to_string).collect::<Vec<_>>().join("\n")
}

/// Reads the main file and the drop-in files below a directory. The layer of the main file comes first, and is empty without a file.
/// Then follow those of the drop-in files in the lexical order of their paths. Blocking.
///
/// # Errors
/// [`FilesError`] if a file cannot be read or used, or if users other than its owner can change it.
pub(crate) fn read(file: Option<&Path>, directory: Option<&Path>) -> Result<Vec<Layer>, FilesError> {
    let mut files = Vec::new();
    if let Some(directory) = directory {
        drop_ins(directory, 0, &mut files)?;
    }
    let main = match file {
        Some(file) => layer(file, "--config")?,
        None => Layer::new(),
    };
    let drop_ins = files.iter().map(|file| layer(file, "--config-dir"));
    std::iter::once(Ok(main)).chain(drop_ins).collect()
}

fn layer(path: &Path, flag: &'static str) -> Result<Layer, FilesError> {
    let text = bytes(path, flag)?;
    document::parse(&Arc::from(path.display().to_string()), &text).map_err(FilesError::Faults)
}

fn bytes(path: &Path, flag: &'static str) -> Result<Vec<u8>, FilesError> {
    let unreadable = |error| FilesError::Read { path: path.to_owned(), flag, error };
    // Opening a FIFO would block.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(FilesError::NotRegular { path: path.to_owned(), flag });
    }
    trusted_file::check(path).map_err(|error| FilesError::Untrusted { flag, error })?;
    let mut bytes = Vec::new();
    File::open(path).map_err(unreadable)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(FilesError::TooLarge { path: path.to_owned(), flag });
    }
    Ok(bytes)
}

/// Collects the drop-in files of a directory and of the directories in it. Links to directories are not followed.
fn drop_ins(directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), FilesError> {
    if depth > MAX_DEPTH {
        return Err(FilesError::TooDeep(directory.to_owned()));
    }
    let flag = "--config-dir";
    let unreadable = |error| FilesError::Read { path: directory.to_owned(), flag, error };
    trusted_file::check_itself(directory).map_err(|error| FilesError::Untrusted { flag, error })?;
    let entries = fs::read_dir(directory).map_err(unreadable)?;
    let mut entries = entries.collect::<io::Result<Vec<_>>>().map_err(unreadable)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if entry.file_type().map_err(unreadable)?.is_dir() {
            drop_ins(&entry.path(), depth + 1, files)?;
        } else if entry.file_name().as_encoded_bytes().ends_with(DROP_IN.as_bytes()) {
            files.push(entry.path());
        }
    }
    Ok(())
}
