//! The processes that are left in the cgroup of a removed pod. Everything here blocks.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How many rounds of kills the removal of a cgroup makes, and how long it waits for each killed process to end. After the last
/// round the removal fails, because a process may be stuck in the kernel. The caller retries the removal.
const KILL_ROUNDS: u32 = 10;
const EXIT_WAIT: Duration = Duration::from_millis(200);

/// Removes a cgroup and its child cgroups, and kills the processes in them.
pub(super) fn remove_cgroup(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    let failed = |error| (dir.to_owned(), error);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path())?;
        }
    }
    for _ in 0..KILL_ROUNDS {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
            Err(error) => return Err(failed(error)),
        }
        for pid in processes(dir) {
            kill(dir, pid);
        }
    }
    Err(failed(stuck(dir)))
}

/// Kills the processes in a cgroup and its child cgroups, and waits until they have ended.
///
/// # Errors
/// The path of the cgroup in which processes did not end.
pub(super) fn kill_processes(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    for child in children(dir) {
        kill_processes(&child)?;
    }
    for _ in 0..KILL_ROUNDS {
        let left = processes(dir);
        if left.is_empty() {
            return Ok(());
        }
        left.into_iter().for_each(|pid| kill(dir, pid));
    }
    Err((dir.to_owned(), stuck(dir)))
}

/// The child cgroups. Empty if the cgroup does not exist.
pub(super) fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

fn stuck(dir: &Path) -> io::Error {
    let left = processes(dir).iter().take(3).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    io::Error::new(ErrorKind::ResourceBusy, format!("these processes did not end after SIGKILL: {left}"))
}

/// The processes in a cgroup.
fn processes(dir: &Path) -> Vec<Pid> {
    let list = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    list.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

/// Kills a process of a cgroup and waits until it has ended. Does nothing if it has ended already.
fn kill(dir: &Path, pid: Pid) {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    // The kernel may have given the number to another process before the descriptor was opened, but not after.
    if !processes(dir).contains(&pid) {
        return;
    }
    tracing::warn!(path = %dir.display(), %pid, "killing a process that is left in the cgroup of a removed pod");
    let _ = pidfd_send_signal(&process, Signal::KILL);
    let limit = Timespec::try_from(EXIT_WAIT).ok();
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], limit.as_ref());
}
