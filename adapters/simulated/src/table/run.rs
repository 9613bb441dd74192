//! The run of a simulated container.

use podwright_model::time::Time;

/// The state of a container's run.
#[derive(Clone, Copy, Debug)]
pub(super) enum RunState {
    Created,
    Running {
        since: Time,
        /// The planned end: the end of the container by itself or by a stop, whichever is earlier.
        end: Option<RunEnd>,
    },
    Ended {
        since: Option<Time>,
        end: RunEnd,
    },
}

/// When and how a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunEnd {
    pub(crate) at: Time,
    pub(crate) how: EndCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EndCause {
    /// The container ended by itself, with this exit code.
    ByItself(u8),
    /// The container ended after SIGTERM.
    Stopped,
    /// The container was killed.
    Killed,
    NeverStarted,
    FailedToStart,
}

impl EndCause {
    pub(super) fn exit_code(self) -> i32 {
        match self {
            EndCause::ByItself(code) => code.into(),
            EndCause::Stopped => 0,
            EndCause::Killed | EndCause::NeverStarted => 137,
            // The exit code that containerd reports for a container that it could not start.
            EndCause::FailedToStart => 128,
        }
    }
}

impl RunEnd {
    /// The reason and message for the container's status.
    pub(super) fn reason_and_message(self) -> (&'static str, &'static str) {
        match self.how {
            EndCause::ByItself(0) | EndCause::Stopped => ("Completed", ""),
            EndCause::ByItself(_) | EndCause::Killed => ("Error", ""),
            EndCause::NeverStarted => ("Error", "stopped before it was started"),
            EndCause::FailedToStart => ("StartError", "simulated failure"),
        }
    }
}
