//! The standard input of an exec command: nothing, a pipe from the agent, or a terminal.
//!
//! The standard input of the keeper, and of the stage that becomes the command, is a socket. So the agent sends the pipe over its socket
//! to the keeper, and the keeper sends the pipe to the stage. A terminal is not sent, because it is the standard output already.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::ioctl_tiocsctty;

/// The standard input of an exec command.
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
    /// The argument of the keeper and of the stage.
    pub(in super::super) fn word(self) -> &'static str {
        match self {
            ExecInput::Null => "null",
            ExecInput::Pipe => "pipe",
            ExecInput::Terminal => "terminal",
        }
    }

    pub(super) fn parse(word: &str) -> io::Result<Self> {
        [ExecInput::Null, ExecInput::Pipe, ExecInput::Terminal]
            .into_iter()
            .find(|input| input.word() == word)
            .ok_or_else(|| io::Error::other(format!("an exec command with unknown input {word:?}")))
    }

    /// Receives the pipe, if the input is one.
    pub(super) fn receive(self, socket: impl AsFd) -> io::Result<ReceivedInput> {
        Ok(match self {
            ExecInput::Null => ReceivedInput::Null,
            ExecInput::Terminal => ReceivedInput::Terminal,
            ExecInput::Pipe => ReceivedInput::Pipe(receive(socket)?),
        })
    }
}

/// The input in the keeper and in the stage that becomes a command.
pub(super) enum ReceivedInput {
    Null,
    Pipe(OwnedFd),
    Terminal,
}

impl ReceivedInput {
    /// Sends the pipe from the keeper to the stage.
    pub(super) fn pass_on(self, stage: impl AsFd) -> io::Result<()> {
        match self {
            ReceivedInput::Null | ReceivedInput::Terminal => Ok(()),
            ReceivedInput::Pipe(pipe) => send_input(stage, &pipe),
        }
    }

    /// Makes this the standard input. The process must lead its session.
    pub(super) fn install(self, env: &mut Vec<(String, String)>) -> Result<(), String> {
        let failed = |error: rustix::io::Errno| format!("cannot replace standard input: {error}");
        match self {
            ReceivedInput::Null => Ok(()),
            ReceivedInput::Pipe(pipe) => rustix::stdio::dup2_stdin(pipe).map_err(failed),
            ReceivedInput::Terminal => {
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

/// Sends the end of a pipe. The socket keeps it until the other process reads it.
pub(in super::super) fn send_input(to: impl AsFd, pipe: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let pipes = [pipe.as_fd()];
    if !message.push(SendAncillaryMessage::ScmRights(&pipes)) {
        return Err(io::Error::other("a message has no room for a descriptor"));
    }
    sendmsg(to, &[IoSlice::new(b"i")], &mut message, SendFlags::empty())?;
    Ok(())
}

fn receive(from: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut message, RecvFlags::CMSG_CLOEXEC)?;
    let pipe = message.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut pipes) => pipes.next(),
        _ => None,
    });
    pipe.ok_or_else(|| io::Error::other("no pipe was sent"))
}
