//! The signals that stop the agent.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::agent::machine;

const SIGHUP: u8 = 1;
const SIGINT: u8 = 2;
const SIGTERM: u8 = 15;

/// Handlers of the stop signals. They catch signals from the time of construction.
#[derive(Debug)]
pub(in crate::agent) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// SIGHUP, which a closing terminal sends. Absent if the agent was started with SIGHUP ignored (`nohup`).
    hangup: Option<Signal>,
}

/// A signal that the agent received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) struct ReceivedSignal {
    pub(in crate::agent) name: &'static str,
    number: u8,
}

impl ReceivedSignal {
    /// The exit code that a shell reports for a process that this signal ended: 128 plus the signal's number.
    pub(in crate::agent) fn exit_code(self) -> i32 {
        128 + i32::from(self.number)
    }
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// The system's error if a handler cannot be installed.
    pub(in crate::agent) fn listen() -> io::Result<Self> {
        let hangup = if machine::starts_ignoring(SIGHUP.into()) { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    /// Waits for the next stop signal. Cancel safe.
    pub(in crate::agent) async fn next(&mut self) -> ReceivedSignal {
        tokio::select! {
            Some(()) = self.interrupt.recv() => ReceivedSignal { name: "SIGINT", number: SIGINT },
            Some(()) = self.terminate.recv() => ReceivedSignal { name: "SIGTERM", number: SIGTERM },
            Some(()) = recv(self.hangup.as_mut()) => ReceivedSignal { name: "SIGHUP", number: SIGHUP },
            // A handler yields signals for as long as it exists.
            else => std::future::pending().await,
        }
    }

    /// Waits for a second stop signal, which ends the agent at once. SIGHUP no longer counts: a terminal often closes
    /// right after the first signal. Cancel safe.
    pub(in crate::agent) async fn next_after_stop(&mut self) -> ReceivedSignal {
        self.hangup = None;
        self.next().await
    }
}

/// Resolves at once with `None` if there is no handler.
async fn recv(signal: Option<&mut Signal>) -> Option<()> {
    signal?.recv().await
}
