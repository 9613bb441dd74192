//! The keeper of one exec command: a process between the agent and the command, as the shim is for the container's command.
//!
//! The command joins the namespaces of the container. Processes that the command leaves behind live on until the container ends. If
//! the container has a PID namespace, they end with it. Otherwise the keeper is the subreaper of all processes that the command
//! starts, so none of them escapes by a new session or by an empty environment, and the keeper kills them when the container's own
//! command has ended.
//!
//! The keeper kills a running command and its descendants when the agent closes its socket: at the timeout, when the caller cancels,
//! and when the agent dies.
//!
//! The keeper holds a shared lock on the container's file [`ContainerFiles::exec_used`]. The shim waits for an exclusive lock
//! before it ends.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, getpid, pidfd_open, set_child_subreaper, setsid, wait, waitpid};

use super::super::exec::{FAILED, STATUS};
use super::super::files::ContainerFiles;
use super::super::procfs;
use super::super::record::{self, RunRecord, ShimRecord, StartedRecord};
use super::exec_input::ExecInput;
use super::namespaces::Joined;
use super::{EXEC_INIT, protect_from_oom_killer, with_context};

/// Runs a command in a container and reports its end to the agent. Returns when all processes of the command have ended.
/// Standard input is the socket to the agent.
pub(super) fn keep(dir: &Path, input: ExecInput, words: &[&str]) -> io::Result<()> {
    let agent = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    let files = ContainerFiles::new(dir.into());
    let started = start(&files, input, words, &agent);
    // The output of the command ends when its processes have closed it, so the keeper must not hold it.
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let ExecCommand { pid, done, _lock } = match started {
        Ok(command) => command,
        Err(error) => return report(&agent, FAILED, &error.to_string()),
    };
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended == pid => {
                let code = status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0));
                done.store(true, Ordering::SeqCst);
                // If the agent has gone, nobody reads the exit code.
                let _ = report(&agent, STATUS, &code.to_string());
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// An exec command that was executed.
struct ExecCommand {
    pid: Pid,
    /// Whether the command has ended.
    done: Arc<AtomicBool>,
    _lock: File,
}

fn start(files: &ContainerFiles, input: ExecInput, words: &[&str], agent: &UnixStream) -> io::Result<ExecCommand> {
    setsid()?;
    let _ = rustix::thread::set_name(c"podwright-exec");
    set_child_subreaper(Some(getpid()))?;
    protect_from_oom_killer();
    let lock = File::open(files.exec_used())?;
    flock(&lock, FlockOperation::NonBlockingLockShared).map_err(|_| io::Error::other(ENDED))?;
    // The lock comes before this check. A container that ends after the check waits for the lock.
    let (container_pid, container, shim) = open_command(files)?;
    let run: RunRecord = record::read(&files.run()).map_err(io::Error::other)?;
    let join = |error: io::Error| with_context("cannot join the container's namespaces", &error);
    let namespaces = Joined::of(container_pid, &container, &shim).map_err(join)?;
    namespaces.enter_users(&shim).map_err(join)?;
    let done = Arc::new(AtomicBool::new(false));
    let (watched, socket, process) = (Arc::clone(&done), agent.try_clone()?, container.try_clone()?);
    // This thread must not end before its process: the command would get its parent-death signal. No thread can be created once the
    // PID namespace was joined.
    std::thread::Builder::new().stack_size(STACK).spawn(move || kill_at_the_end(&process, &socket, &watched))?;
    namespaces.enter_processes(&container).map_err(join)?;
    let input = input.receive(agent).map_err(|error| with_context("cannot get the command's input", &error))?;
    let (mut failure, failure_end) = io::pipe()?;
    let child = Command::new("/proc/self/exe")
        .args(run.shim.iter().skip(1))
        .args([EXEC_INIT, &input.argument()?])
        .arg(files.dir())
        .arg(namespaces.mounts_argument()?)
        .args(words)
        .stdin(Stdio::from(failure_end))
        .spawn()?;
    let pid = Pid::from_child(&child);
    let mut text = String::new();
    failure.read_to_string(&mut text)?;
    if !text.is_empty() {
        let _ = waitpid(Some(pid), WaitOptions::empty());
        return Err(io::Error::other(text));
    }
    Ok(ExecCommand { pid, done, _lock: lock })
}

/// Opens the process of the container's own command, and that of its shim.
fn open_command(files: &ContainerFiles) -> io::Result<(Pid, OwnedFd, OwnedFd)> {
    let ended = |_| io::Error::other(ENDED);
    let started: StartedRecord = record::read(&files.started()).map_err(|error| ended(io::Error::other(error)))?;
    let shim: ShimRecord = record::read(&files.shim()).map_err(|error| ended(io::Error::other(error)))?;
    let pid = Pid::from_raw(started.pid).ok_or_else(|| io::Error::other(ENDED))?;
    let open = |pid| pidfd_open(pid, PidfdFlags::empty()).map_err(|error| with_context(ENDED, &error.into()));
    let shim_pid = Pid::from_raw(shim.pid).ok_or_else(|| io::Error::other(ENDED))?;
    let (command, shim_process) = (open(pid)?, open(shim_pid)?);
    // Only the shim's child is the command. Any other process has reused the pid.
    if procfs::parent_of(pid).map(|parent| parent.as_raw_nonzero().get()) != Some(shim.pid) {
        return Err(io::Error::other(ENDED));
    }
    Ok((pid, command, shim_process))
}

/// Kills all processes of the command when the container's command has ended, or when the agent closes its socket before the
/// exec command has ended. Returns only if that cannot be watched; then everything is killed too.
fn kill_at_the_end(container: &OwnedFd, agent: &UnixStream, done: &AtomicBool) {
    let closed = || !done.load(Ordering::SeqCst);
    let mut with_agent = true;
    loop {
        let (of_container, of_agent) =
            (PollFd::new(container, PollFlags::IN), PollFd::new(agent, PollFlags::IN | PollFlags::RDHUP));
        let mut both = [of_container, of_agent];
        let watched = if with_agent { &mut both[..] } else { &mut both[..1] };
        match poll(watched, None) {
            Err(Errno::INTR) => continue,
            Err(_) => break,
            Ok(_) => {}
        }
        if !both[0].revents().is_empty() || closed() {
            break;
        }
        with_agent = false;
    }
    loop {
        // The processes below the killed ones become children of this process.
        let _ = procfs::wait_for_any_end(&procfs::kill_descendants(), INSPECT_INTERVAL);
    }
}

/// Sends one message and the end of the stream.
fn report(mut agent: &UnixStream, kind: &str, text: &str) -> io::Result<()> {
    agent.write_all(format!("{kind}{text}").as_bytes())?;
    agent.shutdown(Shutdown::Write)
}

/// Waits until the keepers of the container's exec commands have killed their processes. While the returned lock is held, no
/// exec command can start. `None` if no exec command was ever run.
///
/// # Errors
/// If a keeper does not end within `limit`, because its processes hang in the kernel.
pub(in super::super) fn wait_for_keepers(files: &ContainerFiles, limit: Duration) -> io::Result<Option<File>> {
    let file = match File::open(files.exec_used()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => {}
        Err(error) => return Err(error.into()),
    }
    // The wait for a lock has no time limit, so a thread waits. After the time limit the thread lives on until it gets the lock.
    let (sender, locked) = std::sync::mpsc::channel();
    let wait = move || {
        let result = loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                result => break result.map(|()| file),
            }
        };
        let _ = sender.send(result);
    };
    std::thread::Builder::new().stack_size(STACK).spawn(wait)?;
    match locked.recv_timeout(limit) {
        Ok(result) => Ok(Some(result?)),
        Err(_) => {
            let text = "processes of exec commands do not end: they hang in the kernel";
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
    }
}

const ENDED: &str = "the container has ended";
/// The longest interval between two kills of the processes that remain.
const INSPECT_INTERVAL: Duration = Duration::from_millis(100);
/// The stack of a thread that only waits and reads small files.
const STACK: usize = 64 * 1024;
