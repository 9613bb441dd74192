//! One metadata file on the node.
//!
//! Containers have mounted the file, and a rename would not reach them. So a change rewrites it in place. If the driver is killed
//! during a rewrite, the file has parts of both contents. Therefore a second file beside it holds the new content until the rewrite has
//! ended, and the next access completes a rewrite that was interrupted.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::{ClaimMetadata, ReadMetadataError};

/// What exists at the path of a file.
pub(super) enum Stored {
    Missing,
    Content(ClaimMetadata),
    /// A file that is not valid metadata. Its claim cannot be read from it.
    Unreadable(ReadMetadataError),
}

/// Completes a rewrite that was interrupted, then reads the file.
pub(super) fn read(path: &Path) -> io::Result<Stored> {
    let pending = path.with_extension("new");
    match fs::read_to_string(&pending) {
        Ok(text) => {
            // A loss of power may have damaged this file too.
            if ClaimMetadata::parse(&text).is_ok() {
                overwrite(path, &text).or_else(ignore_missing)?;
            }
            fs::remove_file(&pending)?;
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => fs::remove_file(&pending)?,
        // There is no rewrite, or the path cannot be read. The next read reports such an error.
        Err(_) => {}
    }
    Ok(match ClaimMetadata::read(path) {
        Ok(content) => Stored::Content(content),
        Err(ReadMetadataError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Stored::Missing,
        Err(error) => Stored::Unreadable(error),
    })
}

/// Replaces a file with a rename, so that readers see either the old or the new content.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("tmp");
    fs::write(&new, text)?;
    fs::rename(new, path)
}

/// Rewrites a file in place, so that it keeps its inode. A reader may see incomplete content meanwhile, and must read again.
pub(super) fn rewrite(path: &Path, text: &str) -> io::Result<()> {
    let pending = path.with_extension("new");
    replace(&pending, text)?;
    overwrite(path, text)?;
    fs::remove_file(pending)
}

fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}

/// Treats a missing file as success.
pub(super) fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
