//! The moves of one pod. Total and pure: no I/O, no clock, no lock, no panic.
//!
//! The record is changed in place rather than passed through, because it is behind its cell's lock and moving it in and
//! out would cost more than the step itself. Everything that has to happen outside is in the [`Effects`].

mod done;
mod known;
mod take;
mod update;

use std::sync::Arc;
use std::time::Duration;

use super::lifecycle::{Cause, Hook, Lifecycle};
use super::state::{Record, RunningHook};
use super::update::{Notifier, Update, UpdateKind};
use crate::pod::PodObject;
use crate::ports::{Blame, Observed, RunningPod, SyncKind, SyncPod, SyncRetry, TerminatingPod};
use crate::time::Time;

/// Delay after an error that says nothing better (upstream `backOffPeriod`).
pub const ERROR_BACKOFF: Duration = Duration::from_secs(10);
/// Delay while the network is not ready (upstream `backOffOnTransientErrorPeriod`).
pub const NETWORK_BACKOFF: Duration = Duration::from_secs(1);

/// About a millisecond, which is how finely timers tell the time.
const FINEST_GRID: u64 = 1 << 20;

/// What may happen to a record.
#[derive(Debug)]
pub enum Event {
    /// Somebody asks something of the pod.
    Update(Update),
    /// The worker is free to take what is pending.
    Take {
        /// Whether a static pod's full name is free for it; always true for others.
        may_start: bool,
        /// What was last seen of the pod. Asked only where [`Record::wants_observation`] says so.
        observed: Observed,
    },
    /// The hook call ended.
    Done(Outcome),
    /// Its time has come.
    Due,
    /// Housekeeping asks whether the pod is still wanted.
    Known {
        /// Whether a source wants it.
        desired: bool,
    },
}

/// How a hook call ended.
#[derive(Debug)]
pub enum Outcome {
    /// Setup: the pod runs, or will.
    Continues {
        /// When to look again at the latest.
        check_at: Option<Time>,
    },
    /// Setup: the pod ended by itself.
    Ended,
    /// A terminate hook or cleanup did its work.
    Succeeded,
    /// It ended early because it was asked to.
    Cancelled,
    /// It failed or panicked.
    Failed {
        /// What it said.
        error: String,
        /// When to try again.
        retry: SyncRetry,
        /// What more is known of it.
        blame: Blame,
    },
}

/// What moves with every event: the time, one roll of the dice, and the settings.
#[derive(Clone, Copy, Debug)]
pub struct StepContext {
    /// Now.
    pub now: Time,
    /// What a delay is multiplied with, less one: 0 to 0.5, so that pods do not act in step.
    pub jitter: f64,
    /// Delay after a success.
    pub resync: Duration,
    /// Delay after an error that says nothing better.
    pub error_backoff: Duration,
}

impl StepContext {
    /// When a delay is over, stretched by the jitter.
    ///
    /// The jitter is rounded to a time that many pods have in common: a multiple of at most a 64th of the delay, or of 1 ms.
    /// So pods that failed together are tried again in thirty to sixty groups, and never before their delay is over, and pods
    /// whose times are close wake their thread once, which costs more than their turns.
    fn after(&self, delay: Duration) -> Time {
        let earliest = self.now + delay;
        let spread = Duration::from_nanos((delay.as_nanos() as f64 * self.jitter) as u64);
        if spread.is_zero() {
            return earliest;
        }
        let grid = u64::try_from(delay.as_nanos() / 64).unwrap_or(u64::MAX).max(FINEST_GRID);
        // A power of two, so that the times of a longer delay are among those of a shorter one.
        let grid = 1 << grid.ilog2();
        let common = Time::from_nanos((earliest + spread).as_nanos() & !(grid - 1));
        match common < earliest {
            true => (common + Duration::from_nanos(grid)).min(earliest + delay / 2),
            false => common,
        }
    }
}

/// What has to happen outside after a step. The default is nothing.
#[derive(Debug, Default)]
#[must_use]
pub struct Effects {
    /// The worker has something to do. Not said where it looks by itself: after a call, and after its due time.
    pub wake: bool,
    /// The running hook call should end early.
    pub cancel: bool,
    /// These waiters are to be told that nothing can run.
    pub completed: Vec<Notifier>,
    /// What becomes of the pod's place in the queue of its full name.
    pub name: NameMove,
    /// This hook is to be called.
    pub call: Option<HookCall>,
    /// A hook call ended that this measures.
    pub worked: Option<Worked>,
    /// The pod was allowed to start.
    pub started: bool,
    /// The worker ends.
    pub end: bool,
    /// The record is dropped.
    pub forget: bool,
    /// For [`Event::Known`]: what to answer, unless the record is gone.
    pub known: Option<Known>,
}

impl Effects {
    /// Whether nothing has to happen, but perhaps that the worker is woken, a hook is called, or something is measured.
    pub(crate) fn is_only_wake(&self) -> bool {
        let Effects { cancel, completed, name, started, end, forget, .. } = self;
        completed.is_empty() && *name == NameMove::Keep && !(*cancel || *started || *end || *forget)
    }
}

/// What becomes of a static pod's place in the queue of its full name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameMove {
    /// Nothing.
    #[default]
    Keep,
    /// It gives up its place, or the name; whoever is next is woken.
    Leave,
}

/// Answer to [`Event::Known`], less the UID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// See [`KnownPod`](super::KnownPod).
    pub lifecycle: Lifecycle,
    /// See [`KnownPod`](super::KnownPod).
    pub orphan: bool,
    /// See [`KnownPod`](super::KnownPod).
    pub has_config: bool,
    /// See [`KnownPod`](super::KnownPod).
    pub is_static: bool,
    /// See [`KnownPod`](super::KnownPod).
    pub since: Time,
}

/// A finished piece of work, for `kubelet_pod_worker_duration_seconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worked {
    /// The kind of the update behind it; `None` for work that completed the pod (`terminated`).
    pub kind: Option<UpdateKind>,
    /// When the change behind it began to be handled.
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
    TerminatingRuntime(Arc<RunningPod>),
    /// `sync_terminated_pod`.
    Terminated(Arc<PodObject>),
}

impl HookCall {
    /// Which hook.
    pub(crate) fn hook(&self) -> Hook {
        match self {
            HookCall::Sync(_) => Hook::Sync,
            HookCall::Terminating(_) => Hook::Terminating,
            HookCall::TerminatingRuntime(_) => Hook::TerminatingRuntime,
            HookCall::Terminated(_) => Hook::Terminated,
        }
    }
}

/// One move. See the module.
// Where it is called the event is known, so the choice is made there; each kind of move stays a function of its own, because
// all of them in one would have the small ones pay for the stack and the registers of the large ones.
#[inline]
pub fn step(record: &mut Record, event: Event, tick: StepContext) -> Effects {
    match event {
        Event::Update(update) => update::update(record, update, tick),
        Event::Take { may_start, observed } => take::take(record, may_start, observed, tick),
        Event::Done(outcome) => done::done(record, outcome, tick),
        Event::Due => done::due(record, tick),
        Event::Known { desired } => known::known(record, desired, tick),
    }
}

pub(crate) use known::is_left_alone;
pub use update::new_record;

impl Record {
    fn moved(&mut self, at: Time, cause: Cause) {
        debug_assert_eq!(cause.leads_to(), self.lifecycle());
        self.history.push(at, cause);
    }

    fn begin(&mut self, hook: Hook, kind: UpdateKind, start_time: Option<Time>, now: Time) {
        self.due = None;
        // What another hook failed with is over, now that this one is called.
        if self.failure.as_ref().is_some_and(|failure| failure.hook != hook) {
            self.failure = None;
        }
        self.running = Some(RunningHook { hook, since: now, kind, start_time });
    }
}

impl From<UpdateKind> for SyncKind {
    /// A kill that reaches setup cannot happen; it would be a re-check.
    fn from(kind: UpdateKind) -> Self {
        match kind {
            UpdateKind::Create => SyncKind::Create,
            UpdateKind::Update => SyncKind::Update,
            UpdateKind::Sync | UpdateKind::Kill => SyncKind::Sync,
        }
    }
}
