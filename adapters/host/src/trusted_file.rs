//! Checks the files and directories that flags name, and whose content decides what the agent runs or whom it trusts: kubeconfigs and
//! the files that they name, manifests, authorities and logins.
//!
//! The owner is the operator's choice, because a directory of manifests may be the checkout of a person. But no other user may be able to
//! change the content. A group with the number of the owner is the owner's private group, which many distributions make.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

use super::trusted_dir::is_empty_dir;

/// Users other than its owner can change a file or a directory, so its content is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("other users can write to {path} (mode {mode:04o}): remove their write permission (chmod go-w), or use a copy that only its owner \
    can change", path = .path.display())]
pub struct UntrustedFile {
    /// The file, or the directory.
    pub path: PathBuf,
    /// Its mode.
    pub mode: u32,
}

/// Checks that only its owner can change a file, and that only the owner of its directory can replace it. In a directory with the sticky
/// bit, as `/tmp`, no other user can. Links are followed, and nobody else may be able to replace the link itself either. Blocking.
///
/// # Errors
/// [`UntrustedFile`]. A file that does not exist, or that cannot be examined, is no error: whoever reads it reports that.
pub fn check(path: &Path) -> Result<(), UntrustedFile> {
    check_itself(path)?;
    if let Some(directory) = path.canonicalize().ok().as_deref().and_then(Path::parent) {
        refuse_if_replaceable(directory)?;
    }
    // The parent of a name alone is the empty path.
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The entries of a ConfigMap are links in a directory that every user could write to, if it was not mounted read-only.
    if path.is_symlink() && !is_read_only(directory) {
        refuse_if_replaceable(directory)?;
    }
    Ok(())
}

/// Refuses a directory in which other users than its owner can replace files.
fn refuse_if_replaceable(directory: &Path) -> Result<(), UntrustedFile> {
    match fs::metadata(directory) {
        Ok(meta) if meta.mode() & 0o1000 == 0 => refuse_if_open(directory, &meta),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn is_read_only(directory: &Path) -> bool {
    rustix::fs::statvfs(directory).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Checks that only its owner can change a file, or a directory: only its owner can add and replace files. Links are followed. Blocking.
///
/// # Errors
/// As for [`check`].
pub fn check_itself(path: &Path) -> Result<(), UntrustedFile> {
    fs::metadata(path).map_or(Ok(()), |meta| refuse_if_open(path, &meta))
}

fn refuse_if_open(path: &Path, meta: &Metadata) -> Result<(), UntrustedFile> {
    // Only the containers of the agent's own pod reach an `emptyDir`.
    if !others_can_write(meta.uid(), meta.gid(), meta.mode()) || (meta.is_dir() && is_empty_dir(path)) {
        return Ok(());
    }
    Err(UntrustedFile { path: path.to_owned(), mode: meta.mode() & 0o7777 })
}

fn others_can_write(owner: u32, group: u32, mode: u32) -> bool {
    let others = if group == owner { 0o002 } else { 0o022 };
    mode & others != 0
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_the_owner_and_the_private_group_may_write() {
        for (owner, group, mode, expected) in [
            (1000, 1000, 0o664, false),
            (0, 0, 0o664, false),
            (1000, 100, 0o664, true),
            (0, 27, 0o660, true),
            (1000, 1000, 0o666, true),
            (0, 27, 0o640, false),
            (0, 0, 0o602, true),
        ] {
            assert_eq!(others_can_write(owner, group, mode), expected, "{owner} {group} {mode:o}");
        }
    }

    #[test]
    fn a_file_that_others_can_change_or_replace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, file, link) = (dir.path().join("a"), dir.path().join("a/file"), dir.path().join("link"));
        fs::create_dir(&inner).unwrap();
        fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        for (directory, mode, refused) in [
            (0o755, 0o644, None),
            (0o755, 0o400, None),
            (0o1777, 0o644, None),
            (0o755, 0o646, Some((&file, 0o646))),
            (0o757, 0o644, Some((&inner, 0o757))),
        ] {
            set_mode(&inner, directory);
            set_mode(&file, mode);
            let expected = refused.map(|(path, mode)| UntrustedFile { path: path.canonicalize().unwrap(), mode });
            let found = |path| {
                check(path).map_err(|refused| UntrustedFile { path: refused.path.canonicalize().unwrap(), ..refused })
            };
            assert_eq!(found(&file).err(), expected, "{directory:o} {mode:o}");
            assert_eq!(found(&link).err(), expected, "{directory:o} {mode:o}");
        }
        let error = check(&file).unwrap_err().to_string();
        set_mode(&inner, 0o755);
        assert_eq!(check(&link), Ok(()));
        set_mode(dir.path(), 0o777);
        assert_eq!(check(&file), Ok(()));
        assert_eq!(
            check(&link),
            Err(UntrustedFile { path: dir.path().to_owned(), mode: 0o777 }),
            "others can replace the link"
        );
        assert!(error.contains("(mode 0757): remove their write permission (chmod go-w)"), "{error}");
        set_mode(&inner, 0o1777);
        assert!(check_itself(&inner).is_err(), "others can add files");
        assert_eq!(check(&dir.path().join("none")), Ok(()), "whoever reads the file reports that it is missing");
    }
}
