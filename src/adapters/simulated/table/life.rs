//! How a run goes and ends.

use podwright_actors::time::Time;

/// Where a run stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum Life {
    Created,
    Running {
        since: Time,
        /// The end that comes first of those that are due.
        end: Option<End>,
    },
    Ended {
        since: Option<Time>,
        end: End,
    },
}

/// When and how a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct End {
    pub(in super::super) at: Time,
    pub(in super::super) how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum How {
    /// By itself, with this exit code.
    ByItself(u8),
    /// Because it was asked to.
    Asked,
    Killed,
    NeverStarted,
    FailedToStart,
}

impl How {
    pub(super) fn exit_code(self) -> i32 {
        match self {
            How::ByItself(code) => code.into(),
            How::Asked => 0,
            How::Killed | How::NeverStarted => 137,
            // As containerd reports a container that it could not start.
            How::FailedToStart => 128,
        }
    }
}

impl End {
    /// Reason and message.
    pub(super) fn words(self) -> (&'static str, &'static str) {
        match self.how {
            How::ByItself(0) | How::Asked => ("Completed", ""),
            How::ByItself(_) | How::Killed => ("Error", ""),
            How::NeverStarted => ("Error", "stopped before it was started"),
            How::FailedToStart => ("StartError", "simulated failure"),
        }
    }
}
