//! The agent's own directory: made, found writable, and held against a second agent.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Where state goes as root.
const SYSTEM_ROOT: &str = "/var/lib/podwright";
/// Where manifests are as root: where they are on any node.
const SYSTEM_MANIFESTS: &str = "/etc/kubernetes/manifests";

/// Where the logs of a node's containers are.
const SYSTEM_LOGS: &str = "/var/log";

/// How long an agent that was killed may take to let go of its directory: it does so once its memory is torn down.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The agent's directory, held until this is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    _lock: File,
}

/// The directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RootError {
    #[error("cannot make the root directory {path} ({why}): choose another with --root", path = .path.display(),
        why = reason(.error))]
    Make { path: PathBuf, error: io::Error },
    #[error("cannot write to the root directory {path} ({why}): make it writable, or choose another with --root",
        path = .path.display(), why = reason(.error))]
    Write { path: PathBuf, error: io::Error },
    #[error("the root directory {path} is in use by another agent: stop that one, or choose another with --root",
        path = .0.display())]
    InUse(PathBuf),
    #[error("no directory for state is known: set HOME or XDG_STATE_HOME, or choose one with --root")]
    Nowhere,
}

impl Root {
    /// Makes the directory if it is not there, and holds it, waiting a moment for an agent that ends. Blocking.
    ///
    /// Its mode is 0751: containers of other users pass through it to their volumes.
    ///
    /// # Errors
    /// [`RootError`] if it cannot be written to or another agent holds it.
    pub(crate) fn hold(path: &Path) -> Result<Self, RootError> {
        let make = |error| RootError::Make { path: path.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o751).create(path).map_err(make)?;
        let path = fs::canonicalize(path).map_err(make)?;
        let write = |error| RootError::Write { path: path.clone(), error };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o640)
            .open(path.join("lock"))
            .map_err(write)?;
        let patience = Instant::now() + PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Root { path, _lock: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < patience => pause(),
                Err(TryLockError::WouldBlock) => return Err(RootError::InUse(path)),
                Err(TryLockError::Error(error)) => return Err(write(error)),
            }
        }
    }

    /// Where it is, absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where containers log that are run elsewhere: where they do on any node, unless the directory is not the usual one of
    /// a node.
    pub(crate) fn logs(&self) -> PathBuf {
        if self.path == Path::new(SYSTEM_ROOT) { SYSTEM_LOGS.into() } else { self.path.join("log") }
    }
}

#[expect(clippy::disallowed_methods, reason = "nothing else runs yet: the directory comes before the runtime")]
fn pause() {
    thread::sleep(LOOK_AGAIN);
}

/// What the system said, as part of a sentence.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// Where the agent keeps its things unless told.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    is_superuser: bool,
    home: Option<PathBuf>,
    state_home: Option<PathBuf>,
    config_home: Option<PathBuf>,
}

impl Defaults {
    /// By the user and the environment.
    pub(crate) fn of_process() -> Self {
        let path = |text: Option<OsString>| text.map(PathBuf::from).filter(|path| path.is_absolute());
        Defaults {
            is_superuser: rustix::process::geteuid().is_root(),
            home: path(std::env::var_os("HOME")),
            state_home: path(std::env::var_os("XDG_STATE_HOME")),
            config_home: path(std::env::var_os("XDG_CONFIG_HOME")),
        }
    }

    /// Those of a user who is not root.
    #[cfg(test)]
    pub(crate) fn of_user(home: &Path) -> Self {
        Defaults { is_superuser: false, home: Some(home.to_owned()), state_home: None, config_home: None }
    }

    /// The root directory.
    ///
    /// # Errors
    /// [`RootError::Nowhere`] for a user without a home.
    pub(crate) fn root(&self) -> Result<PathBuf, RootError> {
        if self.is_superuser {
            return Ok(SYSTEM_ROOT.into());
        }
        let state = self.state_home.clone().or_else(|| Some(self.home.as_ref()?.join(".local/state")));
        state.map(|state| state.join("podwright")).ok_or(RootError::Nowhere)
    }

    /// The manifests' directory.
    ///
    /// # Errors
    /// [`RootError::Nowhere`] for a user without a home.
    pub(crate) fn manifests(&self) -> Result<PathBuf, RootError> {
        if self.is_superuser {
            return Ok(SYSTEM_MANIFESTS.into());
        }
        let config = self.config_home.clone().or_else(|| Some(self.home.as_ref()?.join(".config")));
        config.map(|config| config.join("podwright/manifests")).ok_or(RootError::Nowhere)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_held_by_one_agent_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let first = Root::hold(&path).unwrap();
        let error = Root::hold(&path).unwrap_err();
        assert!(matches!(&error, RootError::InUse(held) if held == first.path()), "{error}");
        drop(first);
        Root::hold(&path).unwrap();
    }

    #[test]
    fn an_agent_that_is_about_to_be_gone_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let first = Root::hold(dir.path()).unwrap();
        let ends = thread::spawn(move || {
            (0..5).for_each(|_| pause());
            drop(first);
        });
        Root::hold(dir.path()).unwrap();
        ends.join().unwrap();
    }

    #[test]
    fn a_root_that_is_a_file_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        let error = Root::hold(&path).unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }

    #[test]
    fn defaults_follow_the_user() {
        let user = Defaults::of_user(Path::new("/home/u"));
        assert_eq!(user.root().unwrap(), Path::new("/home/u/.local/state/podwright"));
        assert_eq!(user.manifests().unwrap(), Path::new("/home/u/.config/podwright/manifests"));
        let told = Defaults { state_home: Some("/s".into()), config_home: Some("/c".into()), ..user.clone() };
        assert_eq!(told.root().unwrap(), Path::new("/s/podwright"));
        assert_eq!(told.manifests().unwrap(), Path::new("/c/podwright/manifests"));
        let superuser = Defaults { is_superuser: true, ..user.clone() };
        assert_eq!(superuser.root().unwrap(), Path::new("/var/lib/podwright"));
        assert!(matches!(Defaults { home: None, ..user }.root(), Err(RootError::Nowhere)));
    }
}
