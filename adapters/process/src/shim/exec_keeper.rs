//! The keeper of one exec command: a process between the agent and the command, as the shim is for the container's command.
//!
//! The command joins the namespaces of the container. Processes that the command leaves behind live on until the container ends. If
//! the container has a PID namespace, they end with it. Otherwise the keeper is the subreaper of all processes that the command
//! starts, so none of them escapes by a new session or by an empty environment, and the keeper kills them when the container's own
//! command has ended. In a PID namespace, another process is the subreaper while the command runs, unless the command has a terminal
//! ([`exec_reaper`](super::exec_reaper)).
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
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, getpid, pidfd_open, set_child_subreaper, setsid, wait, waitpid};

use super::super::exec::{FAILED, STATUS};
use super::super::files::ContainerFiles;
use super::super::procfs;
use super::super::record::{self, Cgroup, RunRecord, ShimRecord, StartedRecord};
use super::exec_input::ExecInput;
use super::exec_reaper::{self, EXECUTED, exit_code};
use super::joined::{self, JoinedNamespaces};
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
                let code = exit_code(status);
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
    let run: RunRecord = record::read(&files.run()).map_err(io::Error::other)?;
    let join = |error: io::Error| with_context("cannot join the container's namespaces", &error);
    // The lock comes before this check. A container that ends after the check waits for the lock.
    let (container, namespaces) = open_container(files, &run)?;
    namespaces.enter_users().map_err(join)?;
    let (mut link, end) = UnixStream::pair()?;
    let reaper = Reaper { pid: Arc::new(AtomicI32::new(0)), link: link.try_clone()? };
    let reaper_pid = Arc::clone(&reaper.pid);
    let reaper = exec_reaper::is_needed(&run.confinement, input).then_some(reaper);
    let in_namespace = reaper.is_some();
    let done = Arc::new(AtomicBool::new(false));
    let (watched, socket) = (Arc::clone(&done), agent.try_clone()?);
    // The thread below treats every message on the socket as the end of the agent, so the pipe must be received before it starts.
    let pipe = input.receive(agent).map_err(|error| with_context("cannot get the command's input", &error))?;
    // This thread must not end before its process: the command would get its parent-death signal. No thread can be created once the
    // PID namespace was joined.
    std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || kill_at_the_end(&container, &socket, &watched, reaper.as_ref()))?;
    let text = serde_json::to_vec(&run).map_err(io::Error::other)?;
    let node = NodeFiles::open(&run)?;
    namespaces.enter().map_err(join)?;
    let child = Command::new("/proc/self/exe")
        .args(run.shim.iter().skip(1))
        .args([EXEC_INIT, input.word()])
        .args(words)
        .stdin(OwnedFd::from(end))
        .spawn()?;
    let pid = Pid::from_child(&child);
    reaper_pid.store(pid.as_raw_nonzero().get(), Ordering::SeqCst);
    let ready = link.read_exact(&mut [0]).map_err(|_| io::Error::other(KILLED));
    let executed = ready.and_then(|()| node.settle(pid, run.oom_score_adj)).and_then(|()| {
        // If the process has ended, it has sent the reason.
        let sent =
            pipe.pass_on(&link).and_then(|()| link.write_all(&text)).and_then(|()| link.shutdown(Shutdown::Write));
        executed(&mut link, in_namespace).and(sent)
    });
    if let Err(error) = executed {
        // Without the record, the process ends.
        let _ = link.shutdown(Shutdown::Both);
        let _ = waitpid(Some(pid), WaitOptions::empty());
        return Err(error);
    }
    Ok(ExecCommand { pid, done, _lock: lock })
}

/// Waits until the command was executed. A subreaper reports that. Without one, the connection closes.
fn executed(link: &mut UnixStream, in_namespace: bool) -> io::Result<()> {
    let mut first = [0];
    let mut text = Vec::new();
    match (link.read(&mut first)?, in_namespace) {
        (0, false) => return Ok(()),
        (0, true) => return Err(io::Error::other(KILLED)),
        (_, true) if first == [EXECUTED] => return Ok(()),
        _ => text.extend(first),
    }
    link.read_to_end(&mut text)?;
    Err(io::Error::other(String::from_utf8_lossy(&text).into_owned()))
}

/// Files of the node that the keeper needs after it has entered the container's mounts, where they may be read-only or missing.
struct NodeFiles {
    proc: OwnedFd,
    /// The list of processes in the container's cgroup.
    cgroup: Option<File>,
}

impl NodeFiles {
    fn open(run: &RunRecord) -> io::Result<Self> {
        let cgroup = run.cgroup.as_ref().map(Cgroup::open).transpose();
        let cgroup = cgroup.map_err(|error| with_context("cannot open the cgroup", &error))?;
        Ok(NodeFiles { proc: procfs::open()?, cgroup })
    }

    /// Gives the command's first process its cgroup and its `oom_score_adj`, before it starts the command.
    fn settle(&self, pid: Pid, oom_score_adj: i64) -> io::Result<()> {
        if let Some(mut file) = self.cgroup.as_ref() {
            file.write_all(pid.to_string().as_bytes())
                .map_err(|error| with_context("cannot enter the cgroup", &error))?;
        }
        let mut file = procfs::open_oom_score_adj(Some((&self.proc, pid)))?;
        procfs::apply_oom_score_adj(&mut file, oom_score_adj)
    }
}

/// Opens the process of the container's own command and the container's namespaces.
fn open_container(files: &ContainerFiles, run: &RunRecord) -> io::Result<(OwnedFd, JoinedNamespaces)> {
    let ended = |error| with_context(ENDED, &error);
    let started: StartedRecord = record::read(&files.started()).map_err(|error| ended(io::Error::other(error)))?;
    let shim: ShimRecord = record::read(&files.shim()).map_err(|error| ended(io::Error::other(error)))?;
    let (Some(pid), Some(shim)) = (Pid::from_raw(started.pid), Pid::from_raw(shim.pid)) else {
        return Err(io::Error::other(ENDED));
    };
    let command = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| ended(error.into()))?;
    let namespaces = JoinedNamespaces::of(shim, run, started.namespaces);
    // Only the shim's child is the command. Any other process has reused the pid.
    if !joined::is_child(pid, &command, shim)? {
        return Err(io::Error::other(ENDED));
    }
    let failed = |error| with_context("cannot open the container's namespaces", &error);
    Ok((command, namespaces.map_err(failed)?))
}

/// The process that starts the command in the container's PID namespace ([`exec_reaper`](super::exec_reaper)).
struct Reaper {
    /// Its pid; 0 before it was created.
    pid: Arc<AtomicI32>,
    link: UnixStream,
}

/// Kills all processes of the command when the container's command has ended, or when the agent closes its socket before the
/// exec command has ended. If the keeper cannot watch these two, it kills everything at once. Never returns.
fn kill_at_the_end(container: &OwnedFd, agent: &UnixStream, done: &AtomicBool, reaper: Option<&Reaper>) {
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
    // The subreaper must end after all others, which would get another parent. It does so when the connection closes.
    let reaper = reaper.and_then(|reaper| {
        let _ = reaper.link.shutdown(Shutdown::Both);
        Pid::from_raw(reaper.pid.load(Ordering::SeqCst))
    });
    let mut idle = 0;
    loop {
        // The processes below the killed ones become children of this process or of the subreaper.
        let killed = procfs::kill_descendants(reaper.filter(|_| idle < REAPER_ENDS_WITHIN));
        idle = if killed.is_empty() { idle + 1 } else { 0 };
        let _ = procfs::wait_for_any_end(&killed, INSPECT_INTERVAL);
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
const KILLED: &str = "the process that starts the command was killed";
/// How many intervals a subreaper without children may live on before it is killed too. The container may have prevented its end.
const REAPER_ENDS_WITHIN: u32 = 20;
/// The longest interval between two kills of the processes that remain.
const INSPECT_INTERVAL: Duration = Duration::from_millis(100);
/// The stack of a thread that only waits and reads small files.
const STACK: usize = 64 * 1024;
