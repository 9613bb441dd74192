//! The process between the keeper of an exec command and the command, in the container's PID namespace.
//!
//! The keeper is outside of that namespace, so it cannot become the parent of a process whose parent has ended. Without this process,
//! such a process would become a child of the first process of the namespace, and the keeper would not find it at the command's
//! timeout. This process is the subreaper of all processes of the command: as long as it lives, they are descendants of the keeper.
//!
//! A command with a terminal has no such process: it must lead its session to have the terminal, and it has no timeout.
//!
//! It has the user of the container and no capabilities. A container that controls or kills this process only gets processes
//! that live until the container ends, and the container's own command can start such processes anyway.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait};
use signal_hook::consts::SIGCHLD;
use signal_hook::low_level::pipe;

use super::super::procfs;
use super::super::record::{Confinement, Processes};
use super::confine;
use super::exec_input::ExecInput;

/// Whether an exec command runs below a process of this kind.
pub(super) fn is_needed(confinement: &Confinement, input: ExecInput) -> bool {
    confinement.processes == Processes::Own && input != ExecInput::Terminal
}

/// Why an exec command was not started.
pub(super) enum StartFailure {
    /// The program could not be executed.
    Spawn(io::Error),
    Other(String),
}

/// Starts the program and reports that with [`EXECUTED`] on `keeper`. Ends this process with the exit code of the program when the program
/// has ended. Returns only with an error.
///
/// When the keeper closes the connection, all processes of the command are killed, and this process ends after them.
pub(super) fn run(mut program: Command, keeper: &OwnedFd) -> Result<Infallible, StartFailure> {
    let other = |what: &'static str| move |error: io::Error| StartFailure::Other(format!("{what}: {error}"));
    let _ = rustix::thread::set_name(c"podwright-exec");
    let null = File::open("/dev/null").map_err(other("/dev/null"))?;
    let ends = notify_of_ends().map_err(other("cannot wait for the command"))?;
    set_child_subreaper(Some(getpid())).map_err(|error| other("cannot become a subreaper")(error.into()))?;
    // A command that signals its process group must not signal this process.
    let mut child = program.process_group(0).spawn().map_err(StartFailure::Spawn)?;
    let command = Pid::from_child(&child);
    let started = confine::drop_all_rights().and_then(|()| {
        // The output of the command ends when its processes have closed it, and so does its input.
        rustix::stdio::dup2_stdin(&null)
            .and_then(|()| rustix::stdio::dup2_stdout(&null))
            .and_then(|()| rustix::stdio::dup2_stderr(&null))
            .and_then(|()| rustix::io::write(keeper, &[EXECUTED]))
            .map_err(|error| format!("cannot report the start of the command: {error}"))
    });
    if let Err(text) = started {
        let _ = child.kill();
        return Err(StartFailure::Other(text));
    }
    reap(command, &ends, keeper)
}

/// The message to the keeper after the program was executed. No text of an error starts with this byte.
pub(super) const EXECUTED: u8 = 0;

/// Returns a socket that gets bytes when a child of this process has ended.
fn notify_of_ends() -> io::Result<UnixStream> {
    let (ends, end) = UnixStream::pair()?;
    ends.set_nonblocking(true)?;
    pipe::register(SIGCHLD, end)?;
    Ok(ends)
}

fn reap(command: Pid, mut ends: &UnixStream, keeper: &OwnedFd) -> ! {
    let mut code = None;
    let mut closed = false;
    loop {
        let mut both = [PollFd::new(ends, PollFlags::IN), PollFd::new(keeper, PollFlags::empty())];
        // The connection stays closed, so only the ends of processes are of interest then.
        let _ = if closed { poll(&mut both[..1], Some(&KILL_INTERVAL)) } else { poll(&mut both, None) };
        while ends.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == command => code = Some(exit_code(status)),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                // No process is left.
                Err(_) => std::process::exit(code.unwrap_or(KILLED)),
            }
        }
        // The connection is read after the reaping, because the keeper closes the connection before it kills the command.
        closed = closed || is_closed(keeper);
        match code {
            Some(code) if !closed => std::process::exit(code),
            _ if closed => kill_all(command, code.is_some()),
            _ => {}
        }
    }
}

fn is_closed(keeper: &OwnedFd) -> bool {
    // The end of a process interrupts the call, even if it does not wait.
    retry_on_intr(|| poll(&mut [PollFd::new(keeper, PollFlags::empty())], Some(&Timespec::default()))) != Ok(0)
}

/// Kills the processes of the command, in addition to the keeper: the keeper may have been killed.
fn kill_all(command: Pid, has_ended: bool) {
    if !has_ended {
        let _ = kill_process(command, Signal::KILL);
    }
    // The container may have a volume of the node's `/proc` in this place.
    if procfs::is_of_own_namespace() {
        procfs::kill_descendants(None);
    }
}

/// The exit code that a shell would report.
pub(super) fn exit_code(status: WaitStatus) -> i32 {
    status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
}

const KILLED: i32 = 128 + Signal::KILL.as_raw();
/// The longest interval between two kills of the processes that remain.
const KILL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
