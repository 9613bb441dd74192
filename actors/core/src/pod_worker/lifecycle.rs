//! The lifecycle of a pod, its transitions and their causes, as queries, metrics and the admin page have them.

use serde::{Deserialize, Serialize};

use crate::ids::PodUid;
use crate::ports::FailureCause;
use crate::time::Time;

/// The stage of a pod in its life. A pod goes through the stages in this order, and may skip some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lifecycle {
    /// Not yet allowed to start.
    Waiting,
    /// Expected to run.
    Sync,
    /// To be stopped: no container may start.
    Terminating,
    /// No container runs.
    Terminated,
    /// Cleaned up.
    Finished,
}

impl Lifecycle {
    /// The name in lower case, as in the `lifecycle` label of metrics and in `explain`.
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

/// The cause of a transition.
// A recording has the index of the variant: another order of variants is another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Cause {
    /// The first update arrived.
    FirstUpdate,
    /// The first update had a terminal phase and nothing ran: only cleanup is left.
    SeenEnded,
    /// The worker was allowed to start it.
    Started,
    /// The pod has a deletion timestamp.
    Deleted,
    /// An update had a terminal phase.
    TerminalPhase,
    /// A caller requested a stop.
    Killed,
    /// A caller requested a stop because the node lacks resources.
    Evicted,
    /// The pod is in the runtime only.
    RuntimeOnly,
    /// The pod is no longer desired.
    Orphaned,
    /// The sync hook found a terminal phase: all containers ended by themselves, or the deadline of the pod passed.
    Completed,
    /// The terminate hook succeeded.
    ContainersStopped,
    /// The cleanup hook succeeded.
    CleanedUp,
    /// A stop was requested before the pod was allowed to start.
    NeverStarted,
}

impl Cause {
    /// The stage that a transition for this cause leads to.
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
            Cause::TerminalPhase => "its status has a terminal phase",
            Cause::Killed => "stop requested",
            Cause::Evicted => "evicted",
            Cause::RuntimeOnly => "known to the runtime only",
            Cause::Orphaned => "no source desires it any more",
            Cause::Completed => "its containers ended, or its deadline passed",
            Cause::ContainersStopped => "containers stopped",
            Cause::CleanedUp => "cleaned up",
            Cause::NeverStarted => "stopped before it started",
        }
    }
}

/// A change of a pod's lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The time of the transition.
    pub at: Time,
    /// The new stage.
    pub to: Lifecycle,
    /// The cause.
    pub cause: Cause,
}

/// The transitions of a record, oldest first. They are stored in place, without an allocation.
#[derive(Clone, Copy, Debug)]
pub struct History {
    at: [Time; History::MOST],
    causes: [Cause; History::MOST],
    count: u8,
}

impl History {
    /// One for each stage, because no stage is entered twice.
    pub const MOST: usize = 5;

    /// The history of a record whose first transition happened now.
    pub fn begin(at: Time, cause: Cause) -> Self {
        History { at: [at; History::MOST], causes: [cause; History::MOST], count: 1 }
    }

    /// Adds a transition. One beyond [`MOST`](History::MOST) is dropped.
    pub fn push(&mut self, at: Time, cause: Cause) {
        let next = usize::from(self.count);
        if let (Some(time), Some(slot)) = (self.at.get_mut(next), self.causes.get_mut(next)) {
            *time = at;
            *slot = cause;
            self.count += 1;
        }
    }

    /// The time of the first transition. Every record begins with one.
    pub fn start(&self) -> Time {
        self.at[0]
    }

    /// The time of the last transition.
    pub fn end(&self) -> Time {
        let last = usize::from(self.count).saturating_sub(1);
        self.at.get(last).copied().unwrap_or(self.at[0])
    }

    /// The transitions, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Transition> {
        let transitions = self.at.iter().zip(&self.causes).take(usize::from(self.count));
        transitions.map(|(at, cause)| Transition { at: *at, to: cause.leads_to(), cause: *cause })
    }
}

/// One of the four hooks of a [`PodSyncer`](crate::ports::PodSyncer).
// A recording has the index of the variant: another order of variants is another format.
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
    /// The name of the method.
    pub const fn as_str(self) -> &'static str {
        match self {
            Hook::Sync => "sync_pod",
            Hook::Terminating => "sync_terminating_pod",
            Hook::TerminatingRuntime => "sync_terminating_runtime_pod",
            Hook::Terminated => "sync_terminated_pod",
        }
    }
}

/// A hook that failed and is retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The hook.
    pub hook: Hook,
    /// The error of the last call.
    pub error: String,
    /// The object that caused the error. A recording lacks it, because no decision depends on it.
    pub cause: FailureCause,
    /// The number of failed calls in a row.
    pub count: u32,
    /// The time of the first of these failures.
    pub since: Time,
}

/// One record in the answer of `sync_known_pods`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPod {
    /// The pod's UID.
    pub uid: PodUid,
    /// The pod's stage. It is never [`Lifecycle::Waiting`], which counts as sync, nor [`Lifecycle::Finished`], which counts as
    /// terminated.
    pub lifecycle: Lifecycle,
    /// Whether the pod is no longer desired.
    pub orphan: bool,
    /// Whether a spec is known.
    pub has_config: bool,
    /// Whether the pod is static.
    pub is_static: bool,
    /// The time of the last transition.
    pub since: Time,
}
