//! Reads the configuration: one file, or the files of a directory (kubelet 1.36).

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};

use super::config::{ConfigError, Provider, join, parse};
use super::trust::{self, UntrustedFile};

/// The largest file, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// The most files of a directory.
const MAX_FILES: usize = 1000;
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

/// Why the configuration of the plugins cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadConfigError {
    /// A file or directory cannot be read.
    #[error("cannot read {path}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The directory has no configuration.
    #[error("{path} has no file that ends with .json, .yaml or .yml: add one, or name a file", path = .0.display())]
    NoFiles(PathBuf),
    /// The directory has too many files.
    #[error("{path} has more than {MAX_FILES} files: name another directory", path = .0.display())]
    TooManyFiles(PathBuf),
    /// A file is too large.
    #[error("{path} has more than 1 MiB: name another file", path = .0.display())]
    TooLarge(PathBuf),
    /// Other users can change a file.
    #[error(transparent)]
    Untrusted(#[from] UntrustedFile),
    /// A file has a fault.
    #[error("{path}", path = .path.display())]
    Config {
        /// The file or directory.
        path: PathBuf,
        /// The fault.
        source: ConfigError,
    },
}

/// The plugins of a configuration, and the hash of its files.
pub(crate) struct Configuration {
    pub(crate) providers: Vec<Provider>,
    /// `sha256:` and the hash of all files, each after its length.
    pub(crate) hash: String,
}

/// Reads the configuration at a path. Blocks.
pub(crate) fn read(path: &Path) -> Result<Configuration, ReadConfigError> {
    let failed = |source| ReadConfigError::Io { path: path.to_owned(), source };
    let files = if std::fs::metadata(path).map_err(failed)?.is_dir() { list(path)? } else { vec![path.to_owned()] };
    let (mut hash, mut providers) = (Context::new(&SHA256), Vec::new());
    for file in files {
        let bytes = read_file(&file)?;
        hash.update(&(bytes.len() as u64).to_be_bytes());
        hash.update(&bytes);
        providers.push(parse(&bytes).map_err(|source| ReadConfigError::Config { path: file, source })?);
    }
    let providers = join(providers).map_err(|source| ReadConfigError::Config { path: path.to_owned(), source })?;
    let hash: String = hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Configuration { providers, hash: format!("sha256:{hash}") })
}

/// The files of a directory, sorted by name.
fn list(directory: &Path) -> Result<Vec<PathBuf>, ReadConfigError> {
    let failed = |source| ReadConfigError::Io { path: directory.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let is_configuration = path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|it| extension == *it));
        if !is_configuration || entry.file_type().map_err(failed)?.is_dir() {
            continue;
        }
        if files.len() == MAX_FILES {
            return Err(ReadConfigError::TooManyFiles(directory.to_owned()));
        }
        files.push(path);
    }
    files.sort();
    if files.is_empty() { Err(ReadConfigError::NoFiles(directory.to_owned())) } else { Ok(files) }
}

fn read_file(path: &Path) -> Result<Vec<u8>, ReadConfigError> {
    trust::check(path)?;
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|source| ReadConfigError::Io { path: path.to_owned(), source })?;
    if bytes.len() as u64 > MAX_BYTES { Err(ReadConfigError::TooLarge(path.to_owned())) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn config(name: &str) -> String {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: {name}\n  matchImages: [r.example]\n  \
             defaultCacheDuration: 1h\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n"
        )
    }

    fn names(configuration: &Configuration) -> Vec<&str> {
        configuration.providers.iter().map(|provider| provider.name.as_str()).collect()
    }

    /// Writes a file that only its owner may change, whatever the umask is.
    fn put(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    }

    fn fault(path: &Path) -> ReadConfigError {
        read(path).err().expect("the configuration has a fault")
    }

    #[test]
    fn the_files_of_a_directory_are_read_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(fault(dir.path()), ReadConfigError::NoFiles(_)));
        for (file, name) in [("b.yml", "second"), ("a.yaml", "first"), ("c.conf", "ignored")] {
            put(&dir.path().join(file), &config(name));
        }
        fs::create_dir(dir.path().join("d.json")).unwrap();
        assert_eq!(names(&read(dir.path()).unwrap()), ["first", "second"]);
        let one = read(&dir.path().join("c.conf")).unwrap();
        assert_eq!(names(&one), ["ignored"], "a file may have any name");

        put(&dir.path().join("c.json"), &config("first"));
        let twice = fault(dir.path());
        assert!(
            matches!(&twice, ReadConfigError::Config { path, source: ConfigError::Twice(_) } if path == dir.path())
        );
    }

    // The hash is that of a kubelet: the length of each file in 8 bytes, most significant first, and its bytes.
    #[test]
    fn the_hash_of_a_configuration_is_that_of_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (config("a"), config("b"));
        put(&dir.path().join("a.yaml"), &a);
        put(&dir.path().join("b.yaml"), &b);
        let bytes: Vec<u8> = [&a, &b]
            .into_iter()
            .flat_map(|text| [&(text.len() as u64).to_be_bytes()[..], text.as_bytes()].concat())
            .collect();
        let digest = ring::digest::digest(&SHA256, &bytes);
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(read(dir.path()).unwrap().hash, format!("sha256:{hex}"));
    }

    #[test]
    fn a_file_that_others_can_change_or_that_is_too_large_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        put(&file, &config("a"));
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(fault(&file), ReadConfigError::Untrusted(UntrustedFile::Mode { mode: 0o666, .. })));
        put(&file, &"# \n".repeat(1 << 19));
        assert!(matches!(fault(&file), ReadConfigError::TooLarge(_)));
        put(&file, "kind: [");
        let error = fault(&file);
        assert!(matches!(&error, ReadConfigError::Config { path, .. } if *path == file), "{error}");
        assert!(matches!(fault(&dir.path().join("absent")), ReadConfigError::Io { .. }));
    }
}
