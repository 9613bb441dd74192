//! The step function of a pod worker. Pure: no I/O, no clock, no lock. It is total, and it does not panic.
//!
//! The record is changed in place. It is behind the lock of its cell, and to move it out and in would cost more than the step.
//! Everything that has to happen outside is in the [`Effects`].

mod done;
mod known;
mod take;
mod update;

use std::sync::Arc;
use std::time::Duration;

use super::lifecycle::{Cause, Hook, Lifecycle};
use super::state::{Record, RunningHook, Work};
use super::update::{Notifier, Update, UpdateKind};
use crate::pod::PodObject;
use crate::ports::{FailureCause, Observed, RunningPod, SyncKind, SyncPod, SyncRetry, TerminatingPod};
use crate::time::{Grace, Time};

/// The delay after an error without a delay of its own (upstream `backOffPeriod`).
pub const ERROR_BACKOFF: Duration = Duration::from_secs(10);
/// The delay while the network is not ready (upstream `backOffOnTransientErrorPeriod`).
const NETWORK_BACKOFF: Duration = Duration::from_secs(1);

/// About a millisecond, in nanoseconds: the resolution of timers.
const FINEST_GRID: u64 = 1 << 20;

/// An event of a record.
#[derive(Debug)]
pub enum Event {
    /// An update of the pod arrived.
    Update(Update),
    /// The worker takes the pending update.
    Take {
        /// Whether a static pod has its full name; always true for other pods.
        may_start: bool,
        /// The last observation of the pod in the runtime. It is read only if [`Record::wants_observation`] is true.
        observed: Observed,
    },
    /// The hook call returned.
    Done(Outcome),
    /// The due time of the record is reached.
    Due,
    /// Housekeeping compares the record with the desired pods.
    Known {
        /// Whether the pod is desired.
        desired: bool,
    },
}

/// The result of a hook call.
#[derive(Debug)]
pub enum Outcome {
    /// Setup: the pod runs, or will run.
    Continues {
        /// When to sync again at the latest.
        check_at: Option<Time>,
    },
    /// Setup: the pod ended by itself.
    Ended,
    /// A terminate hook or the cleanup hook succeeded.
    Succeeded,
    /// The call returned early because it was cancelled.
    Cancelled,
    /// The call failed or panicked.
    Failed {
        /// The error text.
        error: String,
        /// When to retry.
        retry: SyncRetry,
        /// The object that caused the error.
        cause: FailureCause,
    },
}

/// The context of a step: the time, the jitter, and the settings.
#[derive(Clone, Copy, Debug)]
pub struct StepContext {
    /// The time of the step.
    pub now: Time,
    /// The part of a delay that is added to it, 0 to 0.5, so that pods do not act at the same time.
    pub jitter: f64,
    /// The delay after a success.
    pub resync: Duration,
    /// The delay after an error without a delay of its own.
    pub error_backoff: Duration,
}

impl StepContext {
    /// The end of a delay with jitter.
    ///
    /// The end is rounded to a multiple of at most a 64th of the delay, or of 1 ms, and is never earlier than the delay without
    /// jitter. So pods that failed together are retried in thirty to sixty groups, and each group wakes its thread once. A wake
    /// costs more than the turns of the workers.
    fn after(&self, delay: Duration) -> Time {
        let earliest = self.now + delay;
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        let spread = Duration::from_nanos((nanos as f64 * self.jitter) as u64);
        if spread.is_zero() {
            return earliest;
        }
        let grid = (nanos / 64).max(FINEST_GRID);
        // A power of two, so that the times of a longer delay are among those of a shorter one.
        let grid = 1 << grid.ilog2();
        let common = Time::from_nanos((earliest + spread).as_nanos() & !(grid - 1));
        if common < earliest { (common + Duration::from_nanos(grid)).min(earliest + delay / 2) } else { common }
    }
}

/// The effects that have to happen outside after a step. The default is none.
#[derive(Debug, Default)]
#[must_use]
pub struct Effects {
    /// The worker has to be woken. It is not set after a hook call or a due time, because the worker continues by itself then.
    pub wake: bool,
    /// The running hook call should end early.
    pub cancel: bool,
    /// The waiters to notify that no container can run.
    pub completed: Vec<Notifier>,
    /// The change of the queue of the pod's full name.
    pub name: NameMove,
    /// The hook to call.
    pub call: Option<HookCall>,
    /// The work that a hook call ended, for the duration metric.
    pub worked: Option<Worked>,
    /// The pod was allowed to start.
    pub started: bool,
    /// The worker ends.
    pub end: bool,
    /// The record is forgotten.
    pub forget: bool,
    /// The answer to [`Event::Known`]; `None` if the record is forgotten.
    pub known: Option<Known>,
}

impl Effects {
    /// Whether there is no effect, except perhaps a wake, a hook call, or a measurement.
    pub fn is_only_wake(&self) -> bool {
        let Effects { cancel, completed, name, started, end, forget, .. } = self;
        completed.is_empty() && *name == NameMove::Keep && !(*cancel || *started || *end || *forget)
    }
}

/// The change of the queue of a static pod's full name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameMove {
    /// None.
    #[default]
    Keep,
    /// The pod leaves the queue or gives up the name, and the next pod is woken.
    Leave,
}

/// The answer to [`Event::Known`]: a [`KnownPod`](super::KnownPod) without its UID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The pod's stage: sync, terminating or terminated.
    pub lifecycle: Lifecycle,
    /// Whether no source desires the pod.
    pub orphan: bool,
    /// Whether the spec of the pod is known.
    pub has_config: bool,
    /// Whether the pod is static.
    pub is_static: bool,
    /// The time of the last transition.
    pub since: Time,
}

/// The work that a hook call ended, for `kubelet_pod_worker_duration_seconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worked {
    /// The kind of the update that led to the work; `None` for the work that completed the pod (`terminated`).
    pub kind: Option<UpdateKind>,
    /// When the agent began to handle the change that led to the work.
    pub start_time: Time,
}

/// A hook with its arguments.
#[derive(Debug)]
pub enum HookCall {
    /// `sync_pod`.
    Sync(SyncPod),
    /// `sync_terminating_pod`.
    Terminating(TerminatingPod),
    /// `sync_terminating_runtime_pod`.
    TerminatingRuntime(Arc<RunningPod>, Grace),
    /// `sync_terminated_pod`.
    Terminated(Arc<PodObject>),
}

impl HookCall {
    /// The hook.
    pub fn hook(&self) -> Hook {
        match self {
            HookCall::Sync(_) => Hook::Sync,
            HookCall::Terminating(_) => Hook::Terminating,
            HookCall::TerminatingRuntime(..) => Hook::TerminatingRuntime,
            HookCall::Terminated(_) => Hook::Terminated,
        }
    }
}

/// Changes a record by one event and returns the effects. See the module.
// Inlined, because most callers know the kind of the event. Each kind stays a function of its own: in one large function, the
// small steps would pay for the stack and the registers of the large ones.
#[inline]
pub fn step(record: &mut Record, event: Event, context: StepContext) -> Effects {
    match event {
        Event::Update(update) => update::update(record, update, context),
        Event::Take { may_start, observed } => take::take(record, may_start, observed, context),
        Event::Done(outcome) => done::done(record, outcome, context),
        Event::Due => done::due(record, context),
        Event::Known { desired } => known::known(record, desired, context),
    }
}

pub use known::is_left_alone;
pub use update::new_record;

impl Record {
    fn moved(&mut self, at: Time, cause: Cause) {
        debug_assert_eq!(cause.leads_to(), self.lifecycle());
        self.history.push(at, cause);
    }

    fn rest_until(&mut self, due: Time) {
        self.work = Work::Resting { due: Some(due) };
    }

    fn begin(&mut self, hook: Hook, kind: UpdateKind, start_time: Option<Time>, now: Time) {
        // The failure of another hook ends when this hook is called.
        if self.failure.as_ref().is_some_and(|failure| failure.hook != hook) {
            self.failure = None;
        }
        self.work = Work::Calling(RunningHook { hook, since: now, kind, start_time });
    }
}

impl From<UpdateKind> for SyncKind {
    /// A kill never reaches setup; it would be a resync.
    fn from(kind: UpdateKind) -> Self {
        match kind {
            UpdateKind::Create => SyncKind::Create,
            UpdateKind::Update => SyncKind::Update,
            UpdateKind::Sync | UpdateKind::Kill => SyncKind::Sync,
        }
    }
}
