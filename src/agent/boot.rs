//! Finds out whether the machine rebooted since the last agent ran.

use std::fs;
use std::io;
use std::path::Path;

use podwright_host::record::{self, Durability};

/// The kernel's ID of the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The file below the agent's root directory that keeps the boot ID of the last run.
const SAVED_BOOT_ID: &str = "boot";

/// How the current boot compares with the boot in which the last agent ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BootChange {
    /// No agent has used this root directory before.
    First,
    /// The last agent ran in the current boot.
    Same,
    /// The last agent ran before the current boot.
    New,
}

/// Compares the current boot ID with the one saved below `root`. In a new boot, removes the files below `root` that are of one boot only.
/// Then saves the current boot ID. Blocking.
///
/// # Errors
/// The system's error, with the path of the file.
pub(crate) fn compare(root: &Path, of_one_boot: &[&str]) -> io::Result<BootChange> {
    compare_with(Path::new(BOOT_ID), root, of_one_boot)
}

fn compare_with(boot_id: &Path, root: &Path, of_one_boot: &[&str]) -> io::Result<BootChange> {
    let named = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let now = fs::read_to_string(boot_id).map_err(|error| named(boot_id, error))?;
    let saved = root.join(SAVED_BOOT_ID);
    let boot = match record::read::<String>(&saved) {
        Ok(last) if last == now.trim() => return Ok(BootChange::Same),
        Ok(_) => BootChange::New,
        Err(error) if error.is_missing() => BootChange::First,
        // A damaged file was most likely cut short when the machine went down.
        Err(_) => BootChange::New,
    };
    if boot == BootChange::New {
        // An agent that dies before the boot ID is saved leaves the rest to the next one.
        of_one_boot.iter().for_each(|name| remove(&root.join(name)));
    }
    record::write(&saved, &now.trim(), Durability::Disk).map_err(|error| named(&saved, error))?;
    Ok(boot)
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot remove a file of the last boot of the machine: remove it by hand");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_boot_id_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let id = dir.path().join("boot_id");
        let boots = |text: &str| {
            fs::write(&id, text).unwrap();
            compare_with(&id, dir.path(), &["facts"]).unwrap()
        };
        assert_eq!(
            ["a\n", "a\n", "b\n", "b\n"].map(boots),
            [BootChange::First, BootChange::Same, BootChange::New, BootChange::Same]
        );
        fs::write(dir.path().join(SAVED_BOOT_ID), "podwr").unwrap();
        assert_eq!(["b\n", "b\n"].map(boots), [BootChange::New, BootChange::Same]);
        assert!(compare(dir.path(), &[]).is_ok());
    }

    #[test]
    fn files_of_one_boot_are_removed_in_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let id = dir.path().join("boot_id");
        let is_kept = |text: &str| {
            fs::write(&id, text).unwrap();
            fs::write(dir.path().join("facts"), text).unwrap();
            fs::write(dir.path().join("other"), text).unwrap();
            compare_with(&id, dir.path(), &["facts", "absent"]).unwrap();
            ["facts", "other"].map(|name| dir.path().join(name).exists())
        };
        assert_eq!(["a", "a", "b", "b"].map(is_kept), [[true, true], [true, true], [false, true], [true, true]]);
    }

    #[test]
    fn an_unwritable_boot_file_is_named_in_the_error() {
        let error = compare(Path::new("/nowhere/at-all"), &[]).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at-all/boot"), "{error}");
    }
}
