//! hostPath volumes: nothing is made here but what the type asks for, and nothing is ever removed.

use std::fs::{self, DirBuilder, FileType, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::HostPathVolumeSource;
use podwright_actors::ports::StorageError;

/// Checks, and for the types that say so makes, the path (core/v1 `HostPathType`).
pub(super) fn set_up(volume: &str, source: &HostPathVolumeSource) -> Result<PathBuf, StorageError> {
    let path = Path::new(&source.path);
    let kind = source.type_.as_deref().unwrap_or_default();
    let named = match kind {
        "" => format!("hostPath {}", path.display()),
        kind => format!("hostPath {} of type {kind}", path.display()),
    };
    let refused = |reason: String| StorageError::Volume { volume: volume.to_owned(), reason };
    let meta = match fs::metadata(path) {
        Ok(meta) => Some(meta),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(_) if kind.is_empty() => None,
        Err(error) => return Err(refused(format!("{named} cannot be checked: {error}"))),
    };
    let made = |result: io::Result<()>| result.map_err(|error| refused(format!("{named} cannot be made: {error}")));
    let is = |what: &str, check: fn(&FileType) -> bool, meta: Option<&Metadata>| match meta {
        Some(meta) if check(&meta.file_type()) => Ok(()),
        Some(_) => Err(refused(format!("{named} is not a {what}: correct its path or type"))),
        None => Err(refused(format!("{named} does not exist: make the {what} first"))),
    };
    match (kind, &meta) {
        ("", _) => {}
        ("DirectoryOrCreate", None) => made(DirBuilder::new().recursive(true).mode(0o755).create(path))?,
        ("FileOrCreate", None) => {
            let made_file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path);
            made(made_file.map(drop))?;
        }
        ("DirectoryOrCreate" | "Directory", meta) => is("directory", FileType::is_dir, meta.as_ref())?,
        ("FileOrCreate" | "File", meta) => is("file", FileType::is_file, meta.as_ref())?,
        ("Socket", meta) => is("socket", FileType::is_socket, meta.as_ref())?,
        ("CharDevice", meta) => is("character device", FileType::is_char_device, meta.as_ref())?,
        ("BlockDevice", meta) => is("block device", FileType::is_block_device, meta.as_ref())?,
        (_, _) => return Err(refused(format!("{named} cannot be had: there is no such type: correct it"))),
    }
    Ok(path.to_owned())
}
