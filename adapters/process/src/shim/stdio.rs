//! The standard streams of a container's command: the ends of the shim and those of the command.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Stdio;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_setfd};

use super::super::files::ContainerFiles;
use super::super::pty;
use super::super::record::RunRecord;
use super::exec_input::ReceivedInput;
use super::input_relay::InputRelay;

/// The shim's ends. Reads and writes do not block.
pub(super) struct ShimStreams {
    /// The standard output, or the output of the terminal.
    pub(super) out: OwnedFd,
    /// The standard error; `None` with a terminal.
    pub(super) err: Option<OwnedFd>,
    pub(super) input: Option<InputRelay>,
    /// Whether an unfinished line is written to the log soon.
    pub(super) interactive: bool,
}

/// The command's ends.
pub(super) enum CommandStreams {
    Terminal(OwnedFd),
    Pipes { input: Option<OwnedFd>, out: OwnedFd, err: OwnedFd },
}

/// Opens the streams of a command that was not started yet.
pub(super) fn open(files: &ContainerFiles, run: &RunRecord) -> io::Result<(ShimStreams, CommandStreams)> {
    let interactive = run.input.is_interactive();
    let relay = |to: OwnedFd| InputRelay::open(files.stdin(), to, run.input.ends_with_client());
    if run.input.terminal {
        let (out, end) = pty::open(run.user.uid)?;
        set_nonblocking(&out)?;
        let input = run.input.stdin.then(|| out.try_clone().and_then(relay)).transpose()?;
        return Ok((ShimStreams { out, err: None, input, interactive }, CommandStreams::Terminal(end)));
    }
    let ((out, out_end), (err, err_end)) = (io::pipe()?, io::pipe()?);
    let (out, err) = (OwnedFd::from(out), OwnedFd::from(err));
    set_nonblocking(&out)?;
    set_nonblocking(&err)?;
    let (mut relayed, mut input) = (None, None);
    if run.input.stdin {
        let (read, write) = io::pipe()?;
        let write = OwnedFd::from(write);
        set_nonblocking(&write)?;
        (relayed, input) = (Some(relay(write)?), Some(read.into()));
    }
    let ends = CommandStreams::Pipes { input, out: out_end.into(), err: err_end.into() };
    Ok((ShimStreams { out, err: Some(err), input: relayed, interactive }, ends))
}

fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}

impl CommandStreams {
    /// Passes the streams to the stage that becomes the command. `spawn` gets the argument with the input, which
    /// [`receive_input`] takes, and the standard output and error. The standard input of the stage is used for its errors.
    pub(super) fn pass<T>(self, spawn: impl FnOnce(&str, Stdio, Stdio) -> io::Result<T>) -> io::Result<T> {
        match self {
            CommandStreams::Terminal(end) => spawn(TERMINAL, end.try_clone()?.into(), end.into()),
            CommandStreams::Pipes { input: None, out, err } => spawn("", out.into(), err.into()),
            CommandStreams::Pipes { input: Some(input), out, err } => {
                // The stage inherits the descriptor. This process executes no other program meanwhile.
                fcntl_setfd(&input, FdFlags::empty())?;
                spawn(&input.as_raw_fd().to_string(), out.into(), err.into())
            }
        }
    }
}

/// Opens the input of [`CommandStreams::pass`]. The stage calls this while it has the mounts of the agent, and with the agent's user.
pub(super) fn receive_input(argument: &str) -> io::Result<ReceivedInput> {
    Ok(match argument {
        "" => ReceivedInput::Null,
        TERMINAL => ReceivedInput::Terminal,
        // The copy is the same pipe, and the descriptor itself closes when the command is executed.
        descriptor => ReceivedInput::Pipe(File::open(format!("/proc/self/fd/{descriptor}"))?.into()),
    })
}

const TERMINAL: &str = "terminal";
