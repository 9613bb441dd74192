//! The node's own logins: a file that is read again when it changes.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::credentials::{Format, Keyring, parse};

/// More is no file of logins.
const MAX_SIZE: u64 = 1 << 20;

/// A file of logins, `config.json` of docker or `.dockercfg` of old, told apart by name.
pub(super) struct RegistryConfig {
    path: PathBuf,
    read: Mutex<ReadConfig>,
}

/// What the file held when it was last looked at.
#[derive(Clone, Default)]
pub(super) struct ReadConfig {
    stamp: Option<Stamp>,
    /// The logins that were last good.
    pub(super) keyring: Arc<Keyring>,
    /// Why the file cannot be used as it is now.
    pub(super) problem: Option<String>,
}

/// What differs when a file was changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl RegistryConfig {
    /// Not read yet.
    pub(super) fn new(path: PathBuf) -> Self {
        RegistryConfig { path, read: Mutex::default() }
    }

    /// What it holds now. A file that is bad leaves what was good before; one that is gone takes its logins with it.
    /// Blocks.
    pub(super) fn look(&self) -> ReadConfig {
        let mut read = self.read.lock();
        let problem = match self.read_changed(read.stamp) {
            Ok(None) => return read.clone(),
            Ok(Some((stamp, bytes))) => {
                read.stamp = Some(stamp);
                match parse(&bytes, format(&self.path)) {
                    Ok(logins) => {
                        let mut keyring = Keyring::default();
                        keyring.add(logins);
                        read.keyring = Arc::new(keyring);
                        None
                    }
                    Err(error) => Some(error.to_string()),
                }
            }
            Err(error) => {
                read.stamp = None;
                if error.kind() == ErrorKind::NotFound {
                    read.keyring = Arc::default();
                }
                Some(format!("{error}: correct it, or --registry-config"))
            }
        };
        let problem = problem.map(|problem| format!("logins at registries: {}: {problem}", self.path.display()));
        if read.problem != problem {
            match &problem {
                Some(problem) => tracing::warn!("{problem}"),
                None => tracing::info!(path = %self.path.display(), "logins at registries read"),
            }
        }
        read.problem = problem;
        read.clone()
    }

    /// What the file holds, unless it is the one that was read before.
    fn read_changed(&self, before: Option<Stamp>) -> io::Result<Option<(Stamp, Vec<u8>)>> {
        let file = File::open(&self.path)?;
        let meta = file.metadata()?;
        let stamp = Stamp { inode: meta.ino(), size: meta.len(), changed: (meta.ctime(), meta.ctime_nsec()) };
        if before == Some(stamp) {
            return Ok(None);
        }
        if !meta.is_file() || meta.len() > MAX_SIZE {
            return Err(io::Error::other("this is no file of at most 1 MiB"));
        }
        let mut bytes = Vec::new();
        file.take(MAX_SIZE).read_to_end(&mut bytes)?;
        Ok(Some((stamp, bytes)))
    }
}

fn format(path: &Path) -> Format {
    let is_old = path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".dockercfg"));
    if is_old { Format::DockerCfg } else { Format::ConfigJson }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_file_is_read_again_when_it_changes_and_its_last_good_logins_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let config = RegistryConfig::new(path.clone());
        let missing = config.look();
        assert!(missing.problem.unwrap().contains("correct it, or --registry-config"));
        assert_eq!(*missing.keyring, Keyring::default());

        let put = |text: &str| fs::write(&path, text).unwrap();
        put(r#"{"auths": {"r.example": {"auth": "YTpi"}}}"#);
        let good = config.look();
        assert_eq!((good.keyring.of("r.example/a").len(), good.problem), (1, None));
        put(r#"{"auths": {"r.example": {"auth": "????"}}}"#);
        let bad = config.look();
        assert_eq!(bad.keyring, good.keyring);
        assert!(bad.problem.as_ref().unwrap().contains("config.json: registry \"r.example\": "), "{:?}", bad.problem);
        assert_eq!(config.look().problem, bad.problem, "it stays bad without being read");
        put(r#"{"auths": {"r.example": {"auth": "YTpi"}, "r.example/a": {"auth": "YTpi"}}}"#);
        let mended = config.look();
        assert_eq!((mended.keyring.of("r.example/a").len(), mended.problem), (2, None));
        fs::remove_file(&path).unwrap();
        assert_eq!(*config.look().keyring, Keyring::default(), "logins that were taken away are not used");
    }

    #[test]
    fn a_file_of_old_is_known_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".dockercfg");
        fs::write(&path, r#"{"r.example": {"auth": "YTpi"}}"#).unwrap();
        assert_eq!(RegistryConfig::new(path).look().keyring.of("r.example/a").len(), 1);
    }
}
