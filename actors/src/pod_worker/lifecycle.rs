//! The words for where a pod stands and why: what queries, metrics and people see of a record.

use serde::{Deserialize, Serialize};

use crate::ids::PodUid;
use crate::ports::Blame;
use crate::time::Time;

/// The lifecycle as metrics and queries see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lifecycle {
    /// Not yet allowed to start.
    Waiting,
    /// Expected to run.
    Sync,
    /// No container may start.
    Terminating,
    /// None runs.
    Terminated,
    /// Cleaned up.
    Finished,
}

impl Lifecycle {
    /// In lower case, as the `lifecycle` label and `explain` say it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Lifecycle::Waiting => "waiting",
            Lifecycle::Sync => "sync",
            Lifecycle::Terminating => "terminating",
            Lifecycle::Terminated => "terminated",
            Lifecycle::Finished => "finished",
        }
    }
}

/// Why a pod moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// The first update came.
    FirstUpdate,
    /// First seen in a terminal phase with nothing running: only cleanup is left.
    SeenEnded,
    /// The worker was allowed to start it.
    Started,
    /// A deletion timestamp came.
    Deleted,
    /// Its phase is terminal in the source.
    TerminalPhase,
    /// Somebody asked for a stop.
    Killed,
    /// Somebody asked for a stop for want of resources.
    Evicted,
    /// Only the runtime knows it.
    RuntimeOnly,
    /// No source wants it any more.
    Orphaned,
    /// Its containers ended by themselves.
    Completed,
    /// The terminate hook succeeded.
    ContainersStopped,
    /// The cleanup hook succeeded.
    CleanedUp,
    /// A stop came before it was allowed to start.
    NeverStarted,
}

impl Cause {
    /// Where a move for this cause ends.
    pub const fn leads_to(self) -> Lifecycle {
        match self {
            Cause::FirstUpdate => Lifecycle::Waiting,
            Cause::Started => Lifecycle::Sync,
            Cause::Deleted
            | Cause::TerminalPhase
            | Cause::Killed
            | Cause::Evicted
            | Cause::RuntimeOnly
            | Cause::Orphaned
            | Cause::Completed => Lifecycle::Terminating,
            Cause::SeenEnded | Cause::ContainersStopped => Lifecycle::Terminated,
            Cause::CleanedUp | Cause::NeverStarted => Lifecycle::Finished,
        }
    }

    /// A phrase for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::FirstUpdate => "first update",
            Cause::SeenEnded => "first seen in a terminal phase with nothing running",
            Cause::Started => "allowed to start",
            Cause::Deleted => "deleted",
            Cause::TerminalPhase => "terminal phase in its source",
            Cause::Killed => "stop requested",
            Cause::Evicted => "evicted",
            Cause::RuntimeOnly => "known to the runtime only",
            Cause::Orphaned => "no source wants it any more",
            Cause::Completed => "its containers ended",
            Cause::ContainersStopped => "containers stopped",
            Cause::CleanedUp => "cleaned up",
            Cause::NeverStarted => "stopped before it started",
        }
    }
}

/// One move of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// When.
    pub at: Time,
    /// Where to.
    pub to: Lifecycle,
    /// Why.
    pub cause: Cause,
}

/// The moves of one life, oldest first, in place: a record makes no allocation for them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct History {
    at: [Time; History::MOST],
    causes: [Cause; History::MOST],
    count: u8,
}

impl History {
    /// One for each state, since none is entered twice.
    pub(crate) const MOST: usize = 5;

    pub(crate) fn begin(at: Time, cause: Cause) -> Self {
        History { at: [at; History::MOST], causes: [cause; History::MOST], count: 1 }
    }

    pub(crate) fn push(&mut self, at: Time, cause: Cause) {
        let place = usize::from(self.count);
        if let (Some(time), Some(why)) = (self.at.get_mut(place), self.causes.get_mut(place)) {
            *time = at;
            *why = cause;
            self.count += 1;
        }
    }

    /// When the first move was made: every record begins with one.
    pub(crate) fn start(&self) -> Time {
        self.at[0]
    }

    /// When the last move was made.
    pub(crate) fn end(&self) -> Time {
        let last = usize::from(self.count).saturating_sub(1);
        self.at.get(last).copied().unwrap_or(self.at[0])
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Transition> {
        let moves = self.at.iter().zip(&self.causes).take(usize::from(self.count));
        moves.map(|(at, cause)| Transition { at: *at, to: cause.leads_to(), cause: *cause })
    }
}

/// Which of the four hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Hook {
    /// `sync_pod`.
    Sync,
    /// `sync_terminating_pod`.
    Terminating,
    /// `sync_terminating_runtime_pod`.
    TerminatingRuntime,
    /// `sync_terminated_pod`.
    Terminated,
}

impl Hook {
    /// The name of its method.
    pub const fn as_str(self) -> &'static str {
        match self {
            Hook::Sync => "sync_pod",
            Hook::Terminating => "sync_terminating_pod",
            Hook::TerminatingRuntime => "sync_terminating_runtime_pod",
            Hook::Terminated => "sync_terminated_pod",
        }
    }
}

/// The hook fails; it is being tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which hook.
    pub hook: Hook,
    /// What it said last.
    pub error: String,
    /// What more is known of that. A recording does not hold it: nothing is decided by it.
    pub blame: Blame,
    /// How often in a row.
    pub count: u32,
    /// When it failed first in this row.
    pub since: Time,
}

/// One record in the answer of `sync_known_pods`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPod {
    /// The UID.
    pub uid: PodUid,
    /// Where it stands; never [`Lifecycle::Waiting`], which counts as sync.
    pub lifecycle: Lifecycle,
    /// Whether no source wants it any more.
    pub orphan: bool,
    /// Whether a spec is known.
    pub has_config: bool,
    /// Whether it is a static pod.
    pub is_static: bool,
    /// Since when it stands there.
    pub since: Time,
}
