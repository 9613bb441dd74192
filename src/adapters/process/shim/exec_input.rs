//! The standard input of an exec command: nothing, a pipe from the agent, or a terminal.
//!
//! The agent's socket and the pipe for failures take the standard input of the keeper and of the stage that becomes the command. So
//! the agent sends the pipe over the socket, and the stage inherits it under another number. A terminal needs neither: it is the
//! standard output already.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::ioctl_tiocsctty;

/// What an exec command reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ExecInput {
    /// `/dev/null`.
    Null,
    /// A pipe, which the agent has sent with [`send_input`].
    Pipe,
    /// The terminal that is also its output.
    Terminal,
}

impl ExecInput {
    /// The argument of the keeper.
    pub(in super::super) fn word(self) -> &'static str {
        match self {
            ExecInput::Null => "null",
            ExecInput::Pipe => "pipe",
            ExecInput::Terminal => TERMINAL,
        }
    }

    pub(super) fn parse(word: &str) -> io::Result<Self> {
        [ExecInput::Null, ExecInput::Pipe, ExecInput::Terminal]
            .into_iter()
            .find(|input| input.word() == word)
            .ok_or_else(|| io::Error::other(format!("an exec command with unknown input {word:?}")))
    }

    /// Receives the pipe from the agent.
    pub(super) fn receive(self, agent: &UnixStream) -> io::Result<KeeperInput> {
        Ok(match self {
            ExecInput::Null => KeeperInput::Null,
            ExecInput::Terminal => KeeperInput::Terminal,
            ExecInput::Pipe => KeeperInput::Pipe(receive(agent)?),
        })
    }
}

const TERMINAL: &str = "terminal";

/// The input in the keeper.
pub(super) enum KeeperInput {
    Null,
    Pipe(OwnedFd),
    Terminal,
}

impl KeeperInput {
    /// The argument of the stage that becomes the command. The stage inherits the pipe.
    pub(super) fn argument(&self) -> io::Result<String> {
        match self {
            KeeperInput::Null => Ok(String::new()),
            KeeperInput::Terminal => Ok(TERMINAL.to_owned()),
            KeeperInput::Pipe(pipe) => {
                fcntl_setfd(pipe, FdFlags::empty())?;
                Ok(pipe.as_raw_fd().to_string())
            }
        }
    }
}

/// The input in the stage that becomes the command.
pub(super) enum StageInput {
    Null,
    Pipe(File),
    Terminal,
}

impl StageInput {
    /// Opens the input of a [`KeeperInput::argument`]. Must come before the change of user.
    pub(super) fn open(argument: &str) -> Result<Self, String> {
        Ok(match argument {
            "" => StageInput::Null,
            TERMINAL => StageInput::Terminal,
            number => {
                let pipe = File::open(format!("/proc/self/fd/{number}"));
                StageInput::Pipe(pipe.map_err(|error| format!("cannot open the command's input: {error}"))?)
            }
        })
    }

    /// Makes this the standard input. The process must lead its session.
    pub(super) fn install(self, env: &mut Vec<(String, String)>) -> Result<(), String> {
        let failed = |error: rustix::io::Errno| format!("cannot replace standard input: {error}");
        match self {
            StageInput::Null => Ok(()),
            StageInput::Pipe(pipe) => rustix::stdio::dup2_stdin(pipe).map_err(failed),
            StageInput::Terminal => {
                rustix::stdio::dup2_stdin(rustix::stdio::stdout()).map_err(failed)?;
                if !env.iter().any(|(name, _)| name == "TERM") {
                    env.push(("TERM".to_owned(), "xterm".to_owned()));
                }
                ioctl_tiocsctty(rustix::stdio::stdin())
                    .map_err(|error| format!("cannot make the terminal the controlling one: {error}"))
            }
        }
    }
}

/// Sends the end of a pipe to the keeper. The socket keeps it until the keeper reads it.
pub(in super::super) fn send_input(keeper: &UnixStream, pipe: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let pipes = [pipe.as_fd()];
    if !message.push(SendAncillaryMessage::ScmRights(&pipes)) {
        return Err(io::Error::other("a message has no room for a descriptor"));
    }
    sendmsg(keeper, &[IoSlice::new(b"i")], &mut message, SendFlags::empty())?;
    Ok(())
}

fn receive(agent: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(agent, &mut [IoSliceMut::new(&mut byte)], &mut message, RecvFlags::CMSG_CLOEXEC)?;
    let pipe = message.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut pipes) => pipes.next(),
        _ => None,
    });
    pipe.ok_or_else(|| io::Error::other("the agent sent no pipe"))
}
