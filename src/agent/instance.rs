//! Identifies the agent across its restarts.

use std::fs;
use std::io;
use std::path::Path;

use podwright_host::record::{self, Durability};

/// The file below the agent's root directory that keeps the identity.
const FILE: &str = "instance";
/// A random UUID of the kernel.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";

/// The identity of the agent with this root directory. The first agent chooses it at random. Blocking.
///
/// # Errors
/// The system's error, with the path of the file.
pub(crate) fn of(root: &Path) -> io::Result<String> {
    let named = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let file = root.join(FILE);
    if let Ok(instance) = record::read::<String>(&file) {
        return Ok(instance);
    }
    let random = Path::new(RANDOM);
    let instance = fs::read_to_string(random).map_err(|error| named(random, error))?.trim().to_owned();
    record::write(&file, &instance, Durability::Disk).map_err(|error| named(&file, error))?;
    Ok(instance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_keeps_its_identity_and_another_root_has_another_one() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let instance = of(one.path()).unwrap();
        assert_eq!(of(one.path()).unwrap(), instance);
        assert_ne!(of(other.path()).unwrap(), instance);
        fs::write(one.path().join(FILE), "damaged").unwrap();
        assert_ne!(of(one.path()).unwrap(), instance);
        assert!(of(Path::new("/nowhere/at-all")).unwrap_err().to_string().contains("/nowhere/at-all/instance"));
    }
}
