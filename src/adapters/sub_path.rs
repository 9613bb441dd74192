//! Directories that a mount's `subPath` names and nobody made yet.

use std::fs;
use std::io;
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, fchmod, fstat, mkdirat, openat};
use rustix::io::Errno;

/// Makes what is missing of a mount's `subPath`, with the mode of the volume (upstream `SafeMakeDir`, kubelet 1.36). No
/// link is followed on the way: another container may have made it, to have directories made where only we may.
///
/// `path` is the whole path, `sub_path` its end below the volume. Blocking.
pub(super) fn make(path: &Path, sub_path: &Path) -> io::Result<()> {
    if sub_path.as_os_str().is_empty() || fs::exists(path)? {
        return Ok(());
    }
    let names = sub_path.components().filter(|part| matches!(part, Component::Normal(_)));
    let Some(volume) = path.ancestors().nth(names.clone().count()) else { return Ok(()) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let named = |error: Errno| io::Error::other(format!("subPath {}: {error}", sub_path.display()));
    let mut dir =
        openat(CWD, volume, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(named)?;
    let mode = Mode::from_raw_mode(fstat(&dir).map_err(named)?.st_mode);
    for name in names {
        let made = mkdirat(&dir, name.as_os_str(), mode);
        dir = openat(&dir, name.as_os_str(), flags, Mode::empty()).map_err(named)?;
        match made {
            // Past the process's mask.
            Ok(()) => fchmod(&dir, mode).map_err(named)?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(named(error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_missing_sub_path_is_made_with_the_volumes_mode_and_through_no_link() {
        let root = tempfile::tempdir().unwrap();
        let (volume, secret) = (root.path().join("volume"), root.path().join("secret"));
        for dir in [&volume, &secret] {
            fs::create_dir(dir).unwrap();
        }
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(volume.join("file"), "kept").unwrap();
        symlink(&secret, volume.join("way")).unwrap();
        let make = |sub: &str| super::make(&volume.join(sub), Path::new(sub));

        for sub in ["", "a/b", "a/b", "a/./c/", "file", "way"] {
            make(sub).unwrap();
        }
        for dir in ["a", "a/b", "a/c"] {
            assert_eq!(fs::metadata(volume.join(dir)).unwrap().permissions().mode() & 0o7777, 0o777, "{dir}");
        }
        assert_eq!(fs::read_to_string(volume.join("file")).unwrap(), "kept");
        for sub in ["way/new", "file/new", "way/new/below"] {
            assert!(make(sub).is_err(), "{sub}");
        }
        assert_eq!(fs::read_dir(&secret).unwrap().count(), 0);
    }
}
