//! The record of one pod, and the queries on it. Pure.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::lifecycle::{Failure, History, Hook, Lifecycle, Transition};
use super::update::{Config, Notifier, StatusEditor, Target, UpdateKind};
use crate::ids::FullName;
use crate::pod::PodObject;
use crate::ports::RunningPod;
use crate::time::{Grace, Time};

/// The state of one pod UID.
#[derive(Debug)]
pub struct Record {
    /// The stage of the pod.
    pub state: State,
    /// The newest update that the worker has not taken. The next update replaces it.
    pub pending: Option<Pending>,
    /// What the worker does between two steps.
    pub work: Work,
    /// The failure of the last hook call; `None` after a success.
    pub failure: Option<Box<Failure>>,
    /// The transitions of the record.
    pub history: History,
}

/// The stage of a pod on this node. Each variant has only the data that is valid in it. A pod never goes back to an earlier one.
#[derive(Debug)]
pub enum State {
    /// Not yet allowed to start.
    Waiting(Waiting),
    /// Expected to run.
    Sync(Started),
    /// To be stopped: no new setup begins, and a running setup is cancelled.
    Terminating(Box<Terminating>),
    /// No container runs or can be started; to be cleaned up.
    Terminated(Box<Terminated>),
    /// Cleaned up, or stopped before its start. Kept until `sync_known_pods` forgets the record.
    Finished(Finished),
}

/// How long a pod has waited for its start.
#[derive(Clone, Copy, Debug)]
pub enum Waiting {
    /// The worker has not yet tried to start the pod.
    New,
    /// Another pod has the full name, so the worker could not start the pod with the pending update.
    Blocked {
        /// When the worker first found the name taken.
        since: Time,
    },
    /// An update arrived after the pod was blocked, and the worker has not tried again.
    Retrying {
        /// When the worker first found the name taken.
        blocked_since: Time,
    },
}

impl Waiting {
    /// When the worker first found the full name taken.
    pub fn blocked_since(self) -> Option<Time> {
        match self {
            Waiting::New => None,
            Waiting::Blocked { since } | Waiting::Retrying { blocked_since: since } => Some(since),
        }
    }

    /// The full name is still taken.
    pub(super) fn block(&mut self, now: Time) {
        *self = Waiting::Blocked { since: self.blocked_since().unwrap_or(now) };
    }

    /// An update arrived.
    pub(super) fn unblock(&mut self) {
        if let Waiting::Blocked { since } = *self {
            *self = Waiting::Retrying { blocked_since: since };
        }
    }
}

/// A pod that was allowed to start.
#[derive(Clone, Debug)]
pub struct Started {
    /// The spec that the worker runs.
    pub config: Config,
}

/// A pod that is stopped.
#[derive(Debug)]
pub struct Terminating {
    /// The progress of the stop.
    pub stop: Stop,
    /// How the pod ends.
    pub flags: Flags,
    /// The time that the containers have to stop. It may become shorter, and never longer.
    pub grace: Grace,
    /// Whether an update requested the stop with this grace period. It is false for an orphan and for a pod that ended by itself.
    pub forced: bool,
    /// The callers that wait until no container can run.
    pub notifiers: Vec<Notifier>,
    /// The editor of the last update that had one.
    pub status_fn: Option<StatusEditor>,
}

/// The progress of a stop, with the data that the worker stops the pod with.
#[derive(Debug)]
pub enum Stop {
    /// The stop was requested before the worker took the first update. The worker started nothing.
    Unstarted {
        /// A runtime-only kill arrived for the UID, so containers of an earlier agent may run.
        observed_runtime: bool,
    },
    /// A stop was requested for a pod that was allowed to start. A setup call may still be under way.
    Requested {
        /// The spec that the pod is stopped with.
        config: Config,
    },
    /// The worker calls, or is about to call, the terminate hook. No setup call is under way.
    Begun {
        /// The spec that the pod is stopped with.
        config: Config,
    },
    /// The worker called the terminate hook for a runtime-only pod.
    Runtime {
        /// The containers that run.
        running: Arc<RunningPod>,
    },
}

impl Stop {
    /// The spec that the worker stops the pod with.
    pub fn config(&self) -> Option<&Config> {
        match self {
            Stop::Requested { config } | Stop::Begun { config } => Some(config),
            Stop::Unstarted { .. } | Stop::Runtime { .. } => None,
        }
    }

    /// Whether the worker calls, or is about to call, a terminate hook.
    pub(super) fn has_begun(&self) -> bool {
        match self {
            Stop::Unstarted { .. } | Stop::Requested { .. } => false,
            Stop::Begun { .. } | Stop::Runtime { .. } => true,
        }
    }
}

/// A pod without containers, to be cleaned up.
#[derive(Debug)]
pub struct Terminated {
    /// `None` until the worker takes the first update of a pod that had ended before it.
    pub config: Option<Config>,
    /// How the pod ended.
    pub flags: Flags,
}

/// What is left of a pod that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The full name that the pod had.
    pub full_name: FullName,
    /// Whether the pod was static.
    pub is_static: bool,
    /// How the pod ended.
    pub flags: Flags,
}

/// How a pod ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flags {
    /// The pod has a deletion timestamp, is in the runtime only, or is an orphan.
    pub deleted: bool,
    /// The pod was stopped because the node lacks resources.
    pub evicted: bool,
    /// The pod was created again before this record ended.
    pub restart_requested: bool,
}

/// An update that the worker has not taken.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The kind of the update.
    pub kind: UpdateKind,
    /// The pod of the update.
    pub target: Target,
    /// The start time of the update, for the duration metric.
    pub start_time: Option<Time>,
    /// When the first of the updates that were merged into this one arrived.
    pub since: Time,
}

/// What the worker does between two steps.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// It waits for an update, and at most until the due time: a resync, a retry, or another try to start.
    Resting {
        /// When the worker acts without an update.
        due: Option<Time>,
    },
    /// It waits for the end of a hook call, which decides when it acts again.
    Calling(RunningHook),
}

/// A hook call under way.
#[derive(Clone, Copy, Debug)]
pub struct RunningHook {
    /// The hook.
    pub hook: Hook,
    /// When the call began.
    pub since: Time,
    /// The kind of the update that led to the call, for the duration metric.
    pub kind: UpdateKind,
    /// The start time of that update.
    pub start_time: Option<Time>,
}

impl Record {
    /// The pod's stage.
    pub fn lifecycle(&self) -> Lifecycle {
        match &self.state {
            State::Waiting(_) => Lifecycle::Waiting,
            State::Sync(_) => Lifecycle::Sync,
            State::Terminating(_) => Lifecycle::Terminating,
            State::Terminated(_) => Lifecycle::Terminated,
            State::Finished(_) => Lifecycle::Finished,
        }
    }

    /// How the pod ends. Nothing is set before a stop was requested.
    pub fn flags(&self) -> Flags {
        match &self.state {
            State::Waiting(_) | State::Sync(_) => Flags::default(),
            State::Terminating(t) => t.flags,
            State::Terminated(t) => t.flags,
            State::Finished(f) => f.flags,
        }
    }

    pub(crate) fn flags_mut(&mut self) -> Option<&mut Flags> {
        match &mut self.state {
            State::Waiting(_) | State::Sync(_) => None,
            State::Terminating(t) => Some(&mut t.flags),
            State::Terminated(t) => Some(&mut t.flags),
            State::Finished(f) => Some(&mut f.flags),
        }
    }

    /// The spec that the worker acts on. A pod has one once it was allowed to start, or is stopped as if it had been.
    pub fn active(&self) -> Option<&Config> {
        match &self.state {
            State::Sync(started) => Some(&started.config),
            State::Terminating(t) => t.stop.config(),
            State::Terminated(t) => t.config.as_ref(),
            State::Waiting(_) | State::Finished(_) => None,
        }
    }

    /// The target of an update that makes the worker act again on what it acts on.
    pub(crate) fn active_target(&self) -> Option<Target> {
        match &self.state {
            State::Terminating(t) => match &t.stop {
                Stop::Runtime { running } => Some(Target::Runtime(running.clone())),
                stop => stop.config().cloned().map(Target::Config),
            },
            State::Waiting(_) | State::Sync(_) | State::Terminated(_) | State::Finished(_) => {
                self.active().cloned().map(Target::Config)
            }
        }
    }

    /// The spec of the pending update.
    pub fn pending_config(&self) -> Option<&Config> {
        match &self.pending.as_ref()?.target {
            Target::Config(config) => Some(config),
            Target::Runtime(_) => None,
        }
    }

    /// The spec that the worker acts on, or else the spec of the pending update.
    pub fn config(&self) -> Option<&Config> {
        self.active().or_else(|| self.pending_config())
    }

    /// The object that the worker acts on.
    pub fn active_pod(&self) -> Option<&Arc<PodObject>> {
        self.active().map(|config| &config.pod)
    }

    /// Whether an update is pending or a hook runs. A static pod that waits for its full name is not working.
    pub fn is_working(&self) -> bool {
        self.is_calling() || (self.pending.is_some() && !self.is_blocked())
    }

    /// Whether an update is pending.
    pub fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether no update is pending and no hook runs.
    pub fn is_idle(&self) -> bool {
        self.pending.is_none() && !self.is_calling()
    }

    /// Whether a hook runs.
    #[inline]
    pub fn is_calling(&self) -> bool {
        matches!(self.work, Work::Calling(_))
    }

    /// The running hook call.
    #[inline]
    pub fn running(&self) -> Option<RunningHook> {
        match self.work {
            Work::Calling(running) => Some(running),
            Work::Resting { .. } => None,
        }
    }

    /// Whether the pod waits for its full name.
    pub fn is_blocked(&self) -> bool {
        matches!(&self.state, State::Waiting(Waiting::Blocked { .. }))
    }

    /// Whether a stop was requested.
    pub fn is_termination_requested(&self) -> bool {
        self.lifecycle() >= Lifecycle::Terminating
    }

    /// Whether the terminate hook succeeded, or the pod ended before its start.
    pub fn is_terminated(&self) -> bool {
        self.lifecycle() >= Lifecycle::Terminated
    }

    /// Whether the pod is cleaned up, or ended before its start.
    pub fn is_finished(&self) -> bool {
        self.lifecycle() == Lifecycle::Finished
    }

    /// When the first update arrived.
    pub fn synced_at(&self) -> Time {
        self.history.start()
    }

    /// The name of the running hook.
    pub fn running_hook(&self) -> Option<&'static str> {
        self.running().map(|running| running.hook.as_str())
    }

    /// When the worker acts without an update.
    #[inline]
    pub fn due(&self) -> Option<Time> {
        match self.work {
            Work::Resting { due } => due,
            Work::Calling(_) => None,
        }
    }

    /// The failure of the last hook call.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }

    /// The grace period of a pod that is terminating.
    pub fn grace(&self) -> Option<Grace> {
        match &self.state {
            State::Terminating(t) => Some(t.grace),
            State::Waiting(_) | State::Sync(_) | State::Terminated(_) | State::Finished(_) => None,
        }
    }

    /// The end of the grace period of a stop that fails, also if it has passed. `None` if the pod is not stopping, or if no call of the
    /// stop has failed.
    pub fn end_of_failing_stop(&self) -> Option<Time> {
        let State::Terminating(terminating) = &self.state else { return None };
        let is_of_stop = |failure: &&Failure| matches!(failure.hook, Hook::Terminating | Hook::TerminatingRuntime);
        self.failure().filter(is_of_stop).map(|_| self.last_move() + terminating.grace.duration())
    }

    /// Since when the syncs of a pod fail that has not begun to stop. `None` while a call is under way: it may have read the pod after all,
    /// and be storing the final status.
    pub fn syncs_fail_since(&self) -> Option<Time> {
        let is_sync = matches!(self.state, State::Sync(_)) && !self.is_calling();
        self.failure().filter(|failure| is_sync && failure.hook == Hook::Sync).map(|failure| failure.since)
    }

    /// Whether the pod is static.
    pub fn is_static(&self) -> bool {
        match (&self.state, self.config()) {
            (State::Finished(finished), _) => finished.is_static,
            (_, Some(config)) => config.pod.is_static(),
            (_, None) => false,
        }
    }

    /// The transitions, oldest first.
    pub fn transitions(&self) -> impl DoubleEndedIterator<Item = Transition> {
        self.history.iter()
    }

    /// The time of the last transition.
    pub fn last_move(&self) -> Time {
        self.history.end()
    }

    /// The pod's full name.
    pub fn full_name(&self) -> Option<&FullName> {
        if let Some(config) = self.config() {
            return Some(config.pod.full_name());
        }
        match &self.state {
            State::Finished(finished) => return Some(&finished.full_name),
            State::Terminating(t) => match &t.stop {
                Stop::Runtime { running } => return Some(&running.full_name),
                Stop::Unstarted { .. } | Stop::Requested { .. } | Stop::Begun { .. } => {}
            },
            State::Waiting(_) | State::Sync(_) | State::Terminated(_) => {}
        }
        match &self.pending.as_ref()?.target {
            Target::Runtime(running) => Some(&running.full_name),
            Target::Config(config) => Some(config.pod.full_name()),
        }
    }
}
