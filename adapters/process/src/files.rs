//! The paths of the process runtime's files.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwright_host::log::LogDir;
use podwright_host::streaming::WindowSize;
use podwright_host::trusted_dir;
use rustix::fs::{FlockOperation, flock};

use super::OpenError;

/// The number of names in the path of a log below the directory of all pods.
const LOG_DEPTH: usize = 4;

/// The layout under the agent's root.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(super) fn new(root: PathBuf) -> Self {
        Layout { root }
    }

    /// The file that is locked by the agent that uses the root directory.
    pub(super) fn agent_lock(&self) -> PathBuf {
        self.root.join("process/agent.lock")
    }

    pub(super) fn sandboxes(&self) -> PathBuf {
        self.root.join("process/sandboxes")
    }

    pub(super) fn containers(&self) -> PathBuf {
        self.root.join("process/containers")
    }

    pub(super) fn sandbox(&self, id: &str) -> PathBuf {
        self.sandboxes().join(id)
    }

    pub(super) fn container(&self, id: &str) -> ContainerFiles {
        ContainerFiles::new(self.containers().join(id))
    }

    /// The directory of all records.
    pub(super) fn records(&self) -> PathBuf {
        self.root.join("process")
    }

    /// The directory with one directory per pod.
    pub(super) fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// The root directory of a container.
    pub(super) fn rootfs(&self, uid: &str, name: &str, id: &str) -> PathBuf {
        self.pods().join(uid).join("containers").join(name).join(id)
    }

    pub(super) fn log(&self, uid: &str, name: &str, restart_count: u32) -> PathBuf {
        self.pods().join(uid).join("logs").join(name).join(format!("{restart_count}.log"))
    }

    /// The directory and the name of a log, from its [path](Layout::log). Links are not followed below the directory of all
    /// pods.
    pub(super) fn split_log(log: &Path) -> (LogDir, String) {
        let pods = log.ancestors().nth(LOG_DEPTH).unwrap_or(Path::new("/"));
        let below = log.parent().and_then(|dir| dir.strip_prefix(pods).ok()).unwrap_or(Path::new("."));
        (LogDir::new(pods, below), log.file_name().unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Creates the directories of all sandboxes and all containers. `root` is the root directory as it was configured. Only this
    /// process's user may write to the directories with records and to the directories of pods, and only this user and root may
    /// replace them: the agent runs the commands that the records contain.
    pub(super) fn make(&self, root: &Path) -> Result<(), OpenError> {
        trusted_dir::check_above(root)?;
        trusted_dir::open(&self.root)?;
        for (dir, mode, depth) in [(self.records(), 0o700, 2), (self.pods(), PODS_MODE, 1)] {
            make_dir(&dir, mode).map_err(|source| OpenError::Io { path: dir.clone(), source })?;
            trusted_dir::check_tree(&dir, depth)?;
        }
        for dir in [self.sandboxes(), self.containers()] {
            make_dir(&dir, 0o700).map_err(|source| OpenError::Io { path: dir, source })?;
        }
        Ok(())
    }
}

/// The mode of the directory of all pods: containers that run as other users pass through it to their volumes.
const PODS_MODE: u32 = 0o751;

/// Whether the text can be the id of a container: 32 hexadecimal digits. No such id is the start of another one.
pub(super) fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The files of one container.
#[derive(Clone, Debug)]
pub(super) struct ContainerFiles {
    dir: PathBuf,
}

impl ContainerFiles {
    pub(super) fn new(dir: PathBuf) -> Self {
        ContainerFiles { dir }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn state(&self) -> PathBuf {
        self.dir.join(STATE)
    }

    pub(super) fn run(&self) -> PathBuf {
        self.dir.join("run")
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    pub(super) fn shim(&self) -> PathBuf {
        self.dir.join("shim")
    }

    pub(super) fn started(&self) -> PathBuf {
        self.dir.join("started")
    }

    pub(super) fn exit(&self) -> PathBuf {
        self.dir.join("exit")
    }

    /// The space for `exit`, until it is written.
    pub(super) fn exit_reserved(&self) -> PathBuf {
        self.dir.join("exit-reserved")
    }

    /// The space for `started`, until it is written.
    pub(super) fn started_reserved(&self) -> PathBuf {
        self.dir.join("started-reserved")
    }

    pub(super) fn control(&self) -> PathBuf {
        self.dir.join("control")
    }

    /// The FIFO to which attached clients write. It exists until the input of the command ends.
    pub(super) fn stdin(&self) -> PathBuf {
        self.dir.join("stdin")
    }

    /// The shim's standard error: mostly panics.
    pub(super) fn shim_log(&self) -> PathBuf {
        self.dir.join("shim.log")
    }

    /// A file that exists if an exec command has run in the container. The keepers of exec commands hold shared locks on it. The
    /// shim waits for an exclusive lock before it ends.
    pub(super) fn exec_used(&self) -> PathBuf {
        self.dir.join("exec-used")
    }

    /// Opens and locks `lock`; `None` if another process holds the lock.
    pub(super) fn try_lock(&self) -> io::Result<Option<File>> {
        try_lock(&self.lock())
    }

    /// Whether another process holds the lock. The file is opened only for reading, so that watchers of the directory do not see
    /// this as a change.
    pub(super) fn is_locked(&self) -> io::Result<bool> {
        let file = match File::open(self.lock()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the shim one request. `NotFound` and `ENXIO` mean that no shim reads requests.
    pub(super) fn request(&self, request: Request) -> io::Result<()> {
        // With O_NONBLOCK the call fails if no process reads the FIFO; without it the call would wait for a reader.
        let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("the flag is one low bit");
        let mut fifo = OpenOptions::new().write(true).custom_flags(flags).open(self.control())?;
        io::Write::write_all(&mut fifo, request.line().as_bytes())
    }
}

/// The file name of a sandbox's or container's last record. A directory without this file is unfinished.
pub(super) const STATE: &str = "state";

/// A request of an agent to a shim: one line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Send the stop signal to the container's process group.
    Term,
    /// Kill the container.
    Kill,
    /// Open the log file again, because it was rotated.
    Reopen,
    /// Give the terminal this size.
    Resize(WindowSize),
}

impl Request {
    fn line(self) -> Cow<'static, str> {
        match self {
            Request::Term => "TERM\n".into(),
            Request::Kill => "KILL\n".into(),
            Request::Reopen => "REOPEN\n".into(),
            Request::Resize(WindowSize { width, height }) => format!("RESIZE {width} {height}\n").into(),
        }
    }

    /// Parses a line without its end.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let words: Vec<&str> = std::str::from_utf8(line).ok()?.split(' ').collect();
        Some(match words[..] {
            ["TERM"] => Request::Term,
            ["KILL"] => Request::Kill,
            ["REOPEN"] => Request::Reopen,
            ["RESIZE", width, height] => {
                Request::Resize(WindowSize { width: width.parse().ok()?, height: height.parse().ok()? })
            }
            _ => return None,
        })
    }
}

/// Opens a file, which is created if it is missing, and takes an exclusive lock on it; `None` if another process holds the
/// lock.
pub(super) fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Creates a directory and its parents with a mode. An existing directory is not changed.
pub(super) fn make_dir(dir: &Path, mode: u32) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(dir)
}

/// Removes a file if it exists.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_lines_that_the_shim_parses() {
        let size = WindowSize { width: 101, height: 33 };
        for request in [Request::Term, Request::Kill, Request::Reopen, Request::Resize(size)] {
            let line = request.line().into_owned();
            assert_eq!(Request::parse(line.strip_suffix('\n').unwrap().as_bytes()), Some(request));
        }
        for bad in ["", "TERM ", "RESIZE 1", "RESIZE 1 -1", "RESIZE 1 70000", "\u{fffd}"] {
            assert_eq!(Request::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
