//! Whether the machine was started anew since the agent ran last.

use std::fs;
use std::io;
use std::path::Path;

use crate::adapters::record::{self, Durability};

/// Where the kernel names this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Where the agent keeps the name of the last one, below its root.
const KEPT: &str = "boot";

/// What is known of the last boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Boot {
    /// No agent ran here before.
    First,
    /// An agent ran since the machine was started.
    Same,
    /// None did, but before.
    Another,
}

/// Compares this boot with the one that is kept below `root`, and keeps this one. Blocking.
///
/// # Errors
/// The system's, with the file.
pub(crate) fn look(root: &Path) -> io::Result<Boot> {
    look_at(Path::new(BOOT_ID), root)
}

fn look_at(boot_id: &Path, root: &Path) -> io::Result<Boot> {
    let named = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let now = fs::read_to_string(boot_id).map_err(|error| named(boot_id, error))?;
    let kept = root.join(KEPT);
    let boot = match record::read::<String>(&kept) {
        Ok(last) if last == now.trim() => return Ok(Boot::Same),
        Ok(_) => Boot::Another,
        // One that is damaged was written before the machine went down.
        Err(error) if error.is_missing() => Boot::First,
        Err(_) => Boot::Another,
    };
    record::write(&kept, &now.trim(), Durability::Disk).map_err(|error| named(&kept, error))?;
    Ok(boot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_another_one_once() {
        let dir = tempfile::tempdir().unwrap();
        let id = dir.path().join("boot_id");
        let boots = |text: &str| {
            fs::write(&id, text).unwrap();
            look_at(&id, dir.path()).unwrap()
        };
        assert_eq!(["a\n", "a\n", "b\n", "b\n"].map(boots), [Boot::First, Boot::Same, Boot::Another, Boot::Same]);
        fs::write(dir.path().join(KEPT), "podwr").unwrap();
        assert_eq!(["b\n", "b\n"].map(boots), [Boot::Another, Boot::Same]);
        assert!(look(dir.path()).is_ok());
    }

    #[test]
    fn a_root_that_cannot_be_written_is_named() {
        let error = look(Path::new("/nowhere/at-all")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at-all/boot"), "{error}");
    }
}
