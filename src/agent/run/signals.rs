//! The signals that ask the agent to end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::agent::machine;

const SIGHUP: u8 = 1;
const SIGINT: u8 = 2;
const SIGTERM: u8 = 15;

/// Listens from the moment it is made.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// A terminal that closes. Absent if the agent was started to outlive it (`nohup`).
    hangup: Option<Signal>,
}

/// One that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Came {
    pub(super) name: &'static str,
    number: u8,
}

impl Came {
    /// What a process that this signal ends exits with, as shells tell it.
    pub(super) fn exit_code(self) -> i32 {
        128 + i32::from(self.number)
    }
}

impl Signals {
    /// # Errors
    /// As the system says.
    pub(super) fn listen() -> io::Result<Self> {
        let hangup = if machine::starts_ignoring(SIGHUP.into()) { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    /// The first one. Cancel safe.
    pub(super) async fn next(&mut self) -> Came {
        tokio::select! {
            Some(()) = self.interrupt.recv() => Came { name: "SIGINT", number: SIGINT },
            Some(()) = self.terminate.recv() => Came { name: "SIGTERM", number: SIGTERM },
            Some(()) = recv(self.hangup.as_mut()) => Came { name: "SIGHUP", number: SIGHUP },
            // Signals never end while their listeners are there.
            else => std::future::pending().await,
        }
    }

    /// A second one, which says that it should be quick. A terminal that closes after somebody asked for the end says no
    /// such thing. Cancel safe.
    pub(super) async fn insists(&mut self) -> Came {
        self.hangup = None;
        self.next().await
    }
}

/// Ends at once, with nothing, if nobody listens.
async fn recv(signal: Option<&mut Signal>) -> Option<()> {
    signal?.recv().await
}
