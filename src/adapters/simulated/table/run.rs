//! EndCause a run goes and ends.

use podwright_actors::time::Time;

/// Where a run stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum RunState {
    Created,
    Running {
        since: Time,
        /// The end that comes first of those that are due.
        end: Option<RunEnd>,
    },
    Ended {
        since: Option<Time>,
        end: RunEnd,
    },
}

/// When and how a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct RunEnd {
    pub(in super::super) at: Time,
    pub(in super::super) how: EndCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum EndCause {
    /// By itself, with this exit code.
    ByItself(u8),
    /// Because it was asked to.
    Asked,
    Killed,
    NeverStarted,
    FailedToStart,
}

impl EndCause {
    pub(super) fn exit_code(self) -> i32 {
        match self {
            EndCause::ByItself(code) => code.into(),
            EndCause::Asked => 0,
            EndCause::Killed | EndCause::NeverStarted => 137,
            // As containerd reports a container that it could not start.
            EndCause::FailedToStart => 128,
        }
    }
}

impl RunEnd {
    /// Reason and message.
    pub(super) fn words(self) -> (&'static str, &'static str) {
        match self.how {
            EndCause::ByItself(0) | EndCause::Asked => ("Completed", ""),
            EndCause::ByItself(_) | EndCause::Killed => ("Error", ""),
            EndCause::NeverStarted => ("Error", "stopped before it was started"),
            EndCause::FailedToStart => ("StartError", "simulated failure"),
        }
    }
}
