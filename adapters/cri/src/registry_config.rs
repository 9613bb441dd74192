//! The node's registry logins: a file that is read again when it changes.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_host::trusted_file;

use super::credentials::{DockerConfigFormat, Keyring, parse};

/// The largest accepted file, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// A file of logins: a Docker `config.json`, or the older `.dockercfg`. The file name decides which.
pub(super) struct RegistryConfig {
    path: PathBuf,
    last: Mutex<NodeLogins>,
}

/// The content of the file at the last read.
#[derive(Clone, Default)]
pub(super) struct NodeLogins {
    stamp: Option<FileStamp>,
    /// The logins of the last valid file.
    pub(super) keyring: Arc<Keyring>,
    /// Why the present file cannot be used.
    pub(super) problem: Option<String>,
}

/// Identifies one version of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl RegistryConfig {
    /// The logins in the file at `path`. Does not read the file.
    pub(super) fn new(path: PathBuf) -> Self {
        RegistryConfig { path, last: Mutex::default() }
    }

    /// The present logins. Reads the file if it has changed. If the file is not valid, the logins of the last valid file apply. If
    /// the file was removed, there are no logins. Blocks.
    pub(super) fn current(&self) -> NodeLogins {
        let mut last = self.last.lock();
        let problem = match self.read_if_changed(last.stamp) {
            Ok(None) => return last.clone(),
            Ok(Some((stamp, bytes))) => {
                last.stamp = Some(stamp);
                match parse(&bytes, format(&self.path)) {
                    Ok(logins) => {
                        let mut keyring = Keyring::default();
                        keyring.add(logins);
                        last.keyring = Arc::new(keyring);
                        None
                    }
                    Err(error) => Some(error.to_string()),
                }
            }
            Err(error) => {
                last.stamp = None;
                if error.kind() == ErrorKind::NotFound {
                    last.keyring = Arc::default();
                }
                Some(format!("{error}: correct the file, or --registry-config"))
            }
        };
        let problem = problem.map(|problem| format!("registry logins: {}: {problem}", self.path.display()));
        if last.problem != problem {
            match &problem {
                Some(problem) => tracing::warn!(problem, "cannot read the registry logins of the node"),
                None => tracing::info!(path = %self.path.display(), "read the registry logins of the node"),
            }
        }
        last.problem = problem;
        last.clone()
    }

    /// The content of the file. `None` if it is the same version as `before`.
    fn read_if_changed(&self, before: Option<FileStamp>) -> io::Result<Option<(FileStamp, Vec<u8>)>> {
        let file = File::open(&self.path)?;
        let meta = file.metadata()?;
        let stamp = FileStamp { inode: meta.ino(), size: meta.len(), changed: (meta.ctime(), meta.ctime_nsec()) };
        if before == Some(stamp) {
            return Ok(None);
        }
        if !meta.is_file() || meta.len() > MAX_SIZE {
            return Err(io::Error::other("not a regular file of at most 1 MiB"));
        }
        // Whoever can change the file can make the node send its logins to another registry.
        trusted_file::check(&self.path).map_err(io::Error::other)?;
        let mut bytes = Vec::new();
        file.take(MAX_SIZE).read_to_end(&mut bytes)?;
        Ok(Some((stamp, bytes)))
    }
}

fn format(path: &Path) -> DockerConfigFormat {
    let is_old = path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".dockercfg"));
    if is_old { DockerConfigFormat::DockerCfg } else { DockerConfigFormat::ConfigJson }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn registry_config_is_read_when_it_changes_and_valid_logins_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let config = RegistryConfig::new(path.clone());
        let missing = config.current();
        assert!(missing.problem.unwrap().contains("correct the file, or --registry-config"));
        assert_eq!(*missing.keyring, Keyring::default());

        let put = |text: &str| fs::write(&path, text).unwrap();
        put(r#"{"auths": {"r.example": {"auth": "YTpi"}}}"#);
        let good = config.current();
        assert_eq!((good.keyring.of("r.example/a").len(), good.problem), (1, None));
        put(r#"{"auths": {"r.example": {"auth": "????"}}}"#);
        let bad = config.current();
        assert_eq!(bad.keyring, good.keyring);
        assert!(bad.problem.as_ref().unwrap().contains("config.json: registry \"r.example\": "), "{:?}", bad.problem);
        assert_eq!(config.current().problem, bad.problem, "the problem stays until the file changes");
        put(r#"{"auths": {"r.example": {"auth": "YTpi"}, "r.example/a": {"auth": "YTpi"}}}"#);
        let mended = config.current();
        assert_eq!((mended.keyring.of("r.example/a").len(), mended.problem), (2, None));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o606)).unwrap();
        let open = config.current();
        assert!(open.problem.unwrap().contains("other users can write to"));
        assert_eq!(open.keyring.of("r.example/a").len(), 2, "the earlier logins stay");
        fs::remove_file(&path).unwrap();
        assert_eq!(*config.current().keyring, Keyring::default(), "the logins of a removed file are not used");
    }

    #[test]
    fn the_dockercfg_format_is_recognized_by_the_file_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".dockercfg");
        fs::write(&path, r#"{"r.example": {"auth": "YTpi"}}"#).unwrap();
        assert_eq!(RegistryConfig::new(path).current().keyring.of("r.example/a").len(), 1);
    }
}
