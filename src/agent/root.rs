//! The agent's root directory: created, checked for write access, and locked against a second agent.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::error_text::remedy;
use podwright_host::trusted_dir::{self, UntrustedDirectory};
use podwright_model::text::reason;

/// The default root directory of an agent that runs as root.
const SYSTEM_ROOT: &str = "/var/lib/podwright";
/// The root directory of a kubelet, and the default one of an agent that runs as a kubelet.
const KUBELET_ROOT: &str = "/var/lib/kubelet";
/// The default manifest directory of an agent that runs as root: the kubelet's.
const SYSTEM_MANIFESTS: &str = "/etc/kubernetes/manifests";
/// The directory that holds `pods` and `containers`, where the kubelet keeps container logs.
const SYSTEM_LOGS: &str = "/var/log";

/// How long to wait for the lock of an agent that was killed. The kernel releases the lock after it has freed the memory of
/// the process. On a busy machine, that takes seconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
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
    #[error("cannot create the root directory {path} ({why}): {remedy}", path = .path.display(), why = reason(.error),
        remedy = remedy(.error, "choose another with --root"))]
    Make { path: PathBuf, error: io::Error },
    #[error("the root directory cannot be used")]
    Untrusted(#[from] UntrustedDirectory),
    #[error("cannot write to the root directory {path} ({why}): {remedy}", path = .path.display(), why = reason(.error),
        remedy = remedy(.error, "make it writable, or choose another with --root"))]
    Write { path: PathBuf, error: io::Error },
    #[error("the root directory {path} is in use by another podwright process: stop that process, or choose another with --root",
        path = .0.display())]
    InUse(PathBuf),
    #[error("cannot derive {what} from the environment: set HOME or {variable}, or give {flag}")]
    NoDefault { what: &'static str, variable: &'static str, flag: &'static str },
}

impl RootDirectory {
    /// Creates the directory if it does not exist, and locks it. Waits up to ten seconds for an agent that is ending.
    /// Blocking.
    ///
    /// The mode of a new directory is 0751, because containers that run as other users pass through it to their volumes. An
    /// existing directory, the records in it and the directories of pods must belong to this process's user. No other user except
    /// root may write to them or replace a directory above them.
    ///
    /// # Errors
    /// [`RootError`] if the directory cannot be created or written to, if its content must not be trusted, or if another agent has
    /// locked it.
    pub(crate) fn lock(path: &Path) -> Result<Self, RootError> {
        Self::lock_within(path, LOCK_TIMEOUT)
    }

    fn lock_within(path: &Path, limit: Duration) -> Result<Self, RootError> {
        let make = |error| RootError::Make { path: path.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o751).create(path).map_err(make)?;
        trusted_dir::check_above(path)?;
        let path = fs::canonicalize(path).map_err(make)?;
        check(&path)?;
        let write = |error| RootError::Write { path: path.clone(), error };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            // Whoever can open the file can lock it, and then no agent starts.
            .mode(0o600)
            .open(path.join("lock"))
            .map_err(write)?;
        let deadline = Instant::now() + limit;
        let mut is_reported = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(RootDirectory { path, _lock: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    if !is_reported {
                        tracing::info!(path = %path.display(), limit.seconds = limit.as_secs(), "waits for another process to leave the root directory");
                        is_reported = true;
                    }
                    pause();
                }
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
    /// directory if that is neither the default one nor that of a kubelet.
    pub(crate) fn logs(&self) -> PathBuf {
        logs_of(&self.path)
    }
}

fn logs_of(root: &Path) -> PathBuf {
    let is_default = [SYSTEM_ROOT, KUBELET_ROOT].iter().any(|default| root == Path::new(default));
    if is_default { SYSTEM_LOGS.into() } else { root.join("log") }
}

/// Checks the root directory and everything in it that the agent trusts: the files, the records of containers and of pulled images, the
/// certificates, the seccomp profiles, and the directories of pods and their logs. Other directories, such as one with manifests, may
/// belong to other users.
fn check(path: &Path) -> Result<(), UntrustedDirectory> {
    trusted_dir::check_files(path)?;
    for (name, depth) in [("process", 2), ("pods", 1), ("log", 1), ("pki", 1), ("image_manager", 2), ("seccomp", 2)] {
        let dir = path.join(name);
        if dir.symlink_metadata().is_ok() {
            trusted_dir::check_tree(&dir, depth)?;
        }
    }
    Ok(())
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

    /// The default directory of the controllers.
    ///
    /// # Errors
    /// As for [`DefaultDirectories::root`].
    pub(crate) fn root_of_controllers(&self) -> Result<PathBuf, RootError> {
        Ok(self.root()?.join("controllers"))
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
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn root_directory_on_a_full_disk_has_a_remedy_of_its_own() {
        let (path, error) = (PathBuf::from("/r"), || io::Error::from(rustix::io::Errno::NOSPC));
        for refused in
            [RootError::Make { path: path.clone(), error: error() }, RootError::Write { path, error: error() }]
        {
            let text = refused.to_string();
            assert!(text.contains("(no space left on device): free disk space"), "{text}");
        }
        let denied = RootError::Make { path: "/r".into(), error: rustix::io::Errno::ACCESS.into() }.to_string();
        assert!(denied.ends_with("(permission denied): choose another with --root"), "{denied}");
    }

    #[test]
    fn a_second_agent_cannot_lock_the_same_root_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let first = RootDirectory::lock(&path).unwrap();
        let error = RootDirectory::lock_within(&path, 2 * LOCK_RETRY).unwrap_err();
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
        RootDirectory::lock_within(dir.path(), Duration::from_secs(180)).unwrap();
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
            assert!(matches!(error, RootError::Untrusted(UntrustedDirectory::Mode { .. })), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        drop(RootDirectory::lock(&path).unwrap());
    }

    #[test]
    fn a_root_directory_with_directories_or_files_of_other_users_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("root");
        drop(RootDirectory::lock(&path).unwrap());
        for name in
            ["process/containers/c1", "pods/u1", "log/pods", "manifests", "image_manager/pulled", "seccomp/profiles"]
        {
            fs::create_dir_all(path.join(name)).unwrap();
        }
        fs::write(path.join("journal"), "").unwrap();
        let names = [
            "process",
            "process/containers",
            "process/containers/c1",
            "pods",
            "pods/u1",
            "log",
            "image_manager",
            "image_manager/pulled",
            "seccomp",
            "seccomp/profiles",
        ];
        let refused = |name: &str| match RootDirectory::lock(&path) {
            Err(RootError::Untrusted(error)) => assert!(error.to_string().contains(name), "{error}"),
            other => panic!("{name}: {other:?}"),
        };
        for name in names {
            fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o777)).unwrap();
            refused(name);
            fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::set_permissions(path.join("manifests"), fs::Permissions::from_mode(0o777)).unwrap();
        drop(RootDirectory::lock(&path).unwrap());
        if rustix::process::geteuid().is_root() {
            for name in names.iter().chain(&["", "journal"]) {
                std::os::unix::fs::chown(path.join(name), Some(65534), None).unwrap();
                refused(name);
                std::os::unix::fs::chown(path.join(name), Some(0), None).unwrap();
            }
        }
        fs::rename(path.join("pods"), path.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", path.join("pods")).unwrap();
        refused("pods");
    }

    #[test]
    fn logs_of_a_default_root_directory_are_where_a_kubelet_keeps_them() {
        let logs = |root: &str| logs_of(Path::new(root));
        assert_eq!(
            [logs("/var/lib/podwright"), logs("/var/lib/kubelet")],
            [PathBuf::from("/var/log"), "/var/log".into()]
        );
        assert_eq!(logs("/r"), Path::new("/r/log"));
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
