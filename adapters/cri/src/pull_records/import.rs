//! Copies the records of a kubelet whose pods the agent adopts. Without them every pod could use the images that the kubelet pulled with
//! the secrets of some pods.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use podwright_host::record::{self, Durability};

use super::{MAX_RECORD, is_record};

/// Copies the records below the kubelet's root directory that the agent does not have, and returns their number. A kubelet that kept no
/// records has none to copy.
///
/// # Errors
/// The error of the file system. Some records may be copied.
pub(super) fn copy(kubelet: &Path, pulling: &Path, pulled: &Path) -> io::Result<usize> {
    let from = kubelet.join("image_manager");
    Ok(copy_files(&from.join("pulling"), pulling)? + copy_files(&from.join("pulled"), pulled)?)
}

fn copy_files(from: &Path, to: &Path) -> io::Result<usize> {
    let entries = match fs::read_dir(from) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut copied = 0;
    for entry in entries {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if !is_record(&entry) || target.symlink_metadata().is_ok() {
            continue;
        }
        // A record is copied as it is. One that is not valid gives no pod access to its image.
        let bytes = match record::bytes_up_to(&entry.path(), MAX_RECORD) {
            Ok(bytes) => bytes,
            Err(error) if error.is_missing() => continue,
            Err(error) => return Err(io::Error::other(error)),
        };
        DirBuilder::new().recursive(true).mode(0o700).create(to)?;
        record::replace(&target, &bytes, Durability::Disk)?;
        copied += 1;
    }
    Ok(copied)
}
