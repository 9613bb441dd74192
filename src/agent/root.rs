//! The agent's root directory: created, checked for write access, and locked against a second agent.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::error_text::reason;

/// The default root directory of an agent that runs as root.
const SYSTEM_ROOT: &str = "/var/lib/podwright";
/// The default manifest directory of an agent that runs as root: the kubelet's.
const SYSTEM_MANIFESTS: &str = "/etc/kubernetes/manifests";
/// The directory that holds `pods` and `containers`, where the kubelet keeps container logs.
const SYSTEM_LOGS: &str = "/var/log";

/// How long to wait for the lock of an agent that was killed: the kernel releases the lock once it has freed the memory of
/// the process.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between two attempts to take the lock.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// The agent's root directory. It stays locked until this value is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct RootDirectory {
    path: PathBuf,
    _lock: File,
}

/// Why the agent cannot use a root directory or a default directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RootError {
    #[error("cannot create the root directory {path} ({why}): choose another with --root", path = .path.display(),
        why = reason(.error))]
    Make { path: PathBuf, error: io::Error },
    #[error("the root directory {path} belongs to user {owner}, who could replace files of pods: make it belong to user \
        {user} (chown), or choose another with --root", path = .path.display())]
    Owner { path: PathBuf, owner: u32, user: u32 },
    #[error("other users can replace files in the root directory {path} (mode {mode:04o}): remove their write permission \
        (chmod go-w), or choose another with --root", path = .path.display())]
    Mode { path: PathBuf, mode: u32 },
    #[error("cannot write to the root directory {path} ({why}): make it writable, or choose another with --root",
        path = .path.display(), why = reason(.error))]
    Write { path: PathBuf, error: io::Error },
    #[error("the root directory {path} is in use by another agent: stop that agent, or choose another with --root",
        path = .0.display())]
    InUse(PathBuf),
    #[error("cannot derive {what} from the environment: set HOME or {variable}, or give {flag}")]
    NoDefault { what: &'static str, variable: &'static str, flag: &'static str },
}

impl RootDirectory {
    /// Creates the directory if it does not exist, and locks it. Waits up to one second for an agent that is ending.
    /// Blocking.
    ///
    /// The mode of a new directory is 0751, because containers that run as other users pass through it to their volumes. An
    /// existing directory must belong to this process's user, and no other user may write to it.
    ///
    /// # Errors
    /// [`RootError`] if the directory cannot be created or written to, if other users can write to it, or if another agent
    /// has locked it.
    pub(crate) fn lock(path: &Path) -> Result<Self, RootError> {
        let make = |error| RootError::Make { path: path.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o751).create(path).map_err(make)?;
        let path = fs::canonicalize(path).map_err(make)?;
        refuse_foreign_writers(&path)?;
        let write = |error| RootError::Write { path: path.clone(), error };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            // Whoever can open the file can lock it, and then no agent starts.
            .mode(0o600)
            .open(path.join("lock"))
            .map_err(write)?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(RootDirectory { path, _lock: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => pause(),
                Err(TryLockError::WouldBlock) => return Err(RootError::InUse(path)),
                Err(TryLockError::Error(error)) => return Err(write(error)),
            }
        }
    }

    /// The absolute path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The log directory of containers that a container runtime runs: `/var/log`, as on any node, or `log` below the root
    /// directory if that is not the default one.
    pub(crate) fn logs(&self) -> PathBuf {
        if self.path == Path::new(SYSTEM_ROOT) { SYSTEM_LOGS.into() } else { self.path.join("log") }
    }
}

/// Checks that only this process's user can write to a directory.
fn refuse_foreign_writers(path: &Path) -> Result<(), RootError> {
    let metadata = fs::metadata(path).map_err(|error| RootError::Make { path: path.to_owned(), error })?;
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return Err(RootError::Owner { path: path.to_owned(), owner: metadata.uid(), user });
    }
    let mode = metadata.mode() & 0o7777;
    if metadata.is_dir() && mode & 0o022 != 0 {
        return Err(RootError::Mode { path: path.to_owned(), mode });
    }
    Ok(())
}

/// A directory above `path` in which every user can rename what belongs to others, and so replace `path`. The sticky bit
/// prevents that.
pub(crate) fn replaceable_by_all(path: &Path) -> Option<&Path> {
    path.ancestors().skip(1).find(|ancestor| fs::metadata(ancestor).is_ok_and(|dir| dir.mode() & 0o1002 == 0o002))
}

#[expect(clippy::disallowed_methods, reason = "the root directory is locked before any async runtime starts")]
fn pause() {
    thread::sleep(LOCK_RETRY);
}

/// The directories that the agent uses if no flag names others.
#[derive(Clone, Debug)]
pub(crate) struct DefaultDirectories {
    is_superuser: bool,
    home: Option<PathBuf>,
    state_home: Option<PathBuf>,
    config_home: Option<PathBuf>,
}

impl DefaultDirectories {
    /// The defaults of this process, by its user and environment.
    pub(crate) fn of_process() -> Self {
        let path = |text: Option<OsString>| text.map(PathBuf::from).filter(|path| path.is_absolute());
        DefaultDirectories {
            is_superuser: rustix::process::geteuid().is_root(),
            home: path(std::env::var_os("HOME")),
            state_home: path(std::env::var_os("XDG_STATE_HOME")),
            config_home: path(std::env::var_os("XDG_CONFIG_HOME")),
        }
    }

    /// The defaults of a user other than root.
    #[cfg(test)]
    pub(crate) fn of_user(home: &Path) -> Self {
        DefaultDirectories { is_superuser: false, home: Some(home.to_owned()), state_home: None, config_home: None }
    }

    /// The default root directory.
    ///
    /// # Errors
    /// [`RootError::NoDefault`] for a user other than root without a home directory.
    pub(crate) fn root(&self) -> Result<PathBuf, RootError> {
        if self.is_superuser {
            return Ok(SYSTEM_ROOT.into());
        }
        let state = self.state_home.clone().or_else(|| Some(self.home.as_ref()?.join(".local/state")));
        state.map(|state| state.join("podwright")).ok_or(RootError::NoDefault {
            what: "the root directory",
            variable: "XDG_STATE_HOME",
            flag: "--root",
        })
    }

    /// The default manifest directory.
    ///
    /// # Errors
    /// [`RootError::NoDefault`] for a user other than root without a home directory.
    pub(crate) fn manifests(&self) -> Result<PathBuf, RootError> {
        if self.is_superuser {
            return Ok(SYSTEM_MANIFESTS.into());
        }
        let config = self.config_home.clone().or_else(|| Some(self.home.as_ref()?.join(".config")));
        config.map(|config| config.join("podwright/manifests")).ok_or(RootError::NoDefault {
            what: "the manifest directory",
            variable: "XDG_CONFIG_HOME",
            flag: "--manifests",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_second_agent_cannot_lock_the_same_root_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let first = RootDirectory::lock(&path).unwrap();
        let error = RootDirectory::lock(&path).unwrap_err();
        assert!(matches!(&error, RootError::InUse(locked) if locked == first.path()), "{error}");
        drop(first);
        RootDirectory::lock(&path).unwrap();
    }

    #[test]
    fn locking_the_root_directory_waits_for_an_ending_agent() {
        let dir = tempfile::tempdir().unwrap();
        let first = RootDirectory::lock(dir.path()).unwrap();
        let ends = thread::spawn(move || {
            (0..5).for_each(|_| pause());
            drop(first);
        });
        RootDirectory::lock(dir.path()).unwrap();
        ends.join().unwrap();
    }

    #[test]
    fn a_root_directory_that_is_a_file_is_named_in_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        let error = RootDirectory::lock(&path).unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }

    #[test]
    fn a_root_directory_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("root");
        drop(RootDirectory::lock(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o751);
        for mode in [0o777, 0o1777, 0o770, 0o775, 0o702] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = RootDirectory::lock(&path).unwrap_err();
            assert!(matches!(error, RootError::Mode { .. }) && error.to_string().contains("chmod go-w"), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        drop(RootDirectory::lock(&path).unwrap());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            let error = RootDirectory::lock(&path).unwrap_err();
            assert!(matches!(error, RootError::Owner { owner: 65534, .. }), "{error}");
        }
    }

    #[test]
    fn a_directory_above_that_every_user_can_change_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (above, path) = (dir.path().join("a"), dir.path().join("a/b/root"));
        fs::create_dir_all(&path).unwrap();
        for (mode, found) in [(0o755, None), (0o775, None), (0o1777, None), (0o777, Some(above.as_path()))] {
            fs::set_permissions(&above, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(replaceable_by_all(&path), found, "{mode:o}");
        }
    }

    #[test]
    fn default_directories_follow_user_and_environment() {
        let user = DefaultDirectories::of_user(Path::new("/home/u"));
        assert_eq!(user.root().unwrap(), Path::new("/home/u/.local/state/podwright"));
        assert_eq!(user.manifests().unwrap(), Path::new("/home/u/.config/podwright/manifests"));
        let from_environment =
            DefaultDirectories { state_home: Some("/s".into()), config_home: Some("/c".into()), ..user.clone() };
        assert_eq!(from_environment.root().unwrap(), Path::new("/s/podwright"));
        assert_eq!(from_environment.manifests().unwrap(), Path::new("/c/podwright/manifests"));
        let superuser = DefaultDirectories { is_superuser: true, ..user.clone() };
        assert_eq!(superuser.root().unwrap(), Path::new("/var/lib/podwright"));
        assert!(matches!(
            DefaultDirectories { home: None, ..user }.root(),
            Err(RootError::NoDefault { flag: "--root", .. })
        ));
    }
}
