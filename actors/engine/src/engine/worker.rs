//! The pod worker: takes work from its cell, calls one hook after another, and feeds the outcomes back into the record. The hook
//! calls of one pod never overlap (POD-I3).
//!
//! An idle worker is an entry in the table of its [scheduler](super::scheduler). It has no mailbox, because its work is in its
//! record. It has no task, because the scheduler gives it turns. It has no timer, because the scheduler has one for all workers.
//!
//! In a turn, the worker takes what is pending and polls the hook call at once. A hook that is ready at its first poll costs no
//! further turn. A hook that is not ready wakes the cell, and the worker polls it again in its next turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use futures_util::task::waker_ref;
use tracing::Span;

use super::EngineInner;
use super::cell::{Cell, Slot};
use super::hooks::{HookFuture, panicked};
use crate::ids::FullName;
use crate::pod_worker::state::Record;
use crate::pod_worker::step::{Event, HookCall, Outcome};
use crate::pod_worker::{Cause, Lifecycle, Transition};
use crate::ports::{HookContext, Observed};
use crate::time::Time;

/// The most hook calls that one turn makes, so that the other workers of the thread get their turns.
const MAX_CALLS: u32 = 16;

/// The clock of one turn. It is read at most once until code that may take time runs.
pub(super) struct TurnClock<'a> {
    engine: &'a Arc<EngineInner>,
    now: Option<Time>,
}

impl<'a> TurnClock<'a> {
    pub(super) fn new(engine: &'a Arc<EngineInner>) -> Self {
        TurnClock { engine, now: None }
    }

    pub(super) fn engine(&self) -> &'a Arc<EngineInner> {
        self.engine
    }

    pub(super) fn now(&mut self) -> Time {
        *self.now.get_or_insert_with(|| self.engine.clock.now())
    }

    /// The time that was read last; `None` if it may have passed since.
    pub(super) fn last_read(&self) -> Option<Time> {
        self.now
    }

    /// Time may have passed: the next call of [`now`](Self::now) reads the clock.
    pub(super) fn expire(&mut self) {
        self.now = None;
    }
}

/// What a worker does next.
pub(super) enum Next {
    /// It has more to do now.
    Continue,
    /// It waits for a wake-up, until the due time at the latest if there is one.
    Wait(Option<Time>),
    /// It ends.
    End,
}

/// The worker of one pod.
pub(super) struct Worker {
    cell: Arc<Cell>,
    hook: Option<HookFuture>,
    /// Draws the jitter of the pod's delays.
    jitter: fastrand::Rng,
    /// The lifecycle state that was logged last.
    logged: Lifecycle,
    /// Absent if no log subscriber enabled it.
    span: Option<Box<Span>>,
    /// Whether the worker had its first turn.
    started: bool,
    /// The entry of the scheduler's timer that gives this worker a turn. The worker may be due later than that.
    pub(super) timer_entry: Option<Time>,
}

impl Worker {
    /// The worker of a cell. It starts with its first turn.
    pub(super) fn new(cell: Arc<Cell>) -> Self {
        Worker {
            cell,
            hook: None,
            jitter: fastrand::Rng::with_seed(0),
            logged: Lifecycle::Waiting,
            span: None,
            started: false,
            timer_entry: None,
        }
    }

    pub(super) fn cell(&self) -> &Arc<Cell> {
        &self.cell
    }

    /// Whether a hook call is in progress.
    pub(super) fn is_busy(&self) -> bool {
        self.hook.is_some()
    }

    /// Does the work that is there. Panics if the clock or a log subscriber panics; the scheduler then replaces the worker.
    pub(super) fn turn(&mut self, clock: &mut TurnClock<'_>) -> Next {
        if !self.started {
            self.jitter = fastrand::Rng::with_seed(clock.engine().jitter_seed(self.cell.uid()));
            self.span = pod_span(&self.cell);
            self.started = true;
        }
        let span = self.span.take();
        let entered = span.as_deref().map(Span::enter);
        let next = self.work(clock, span.as_deref());
        drop(entered);
        self.span = span;
        next
    }

    fn work(&mut self, clock: &mut TurnClock<'_>, span: Option<&Span>) -> Next {
        self.cell.begin_turn(self.hook.is_none());
        for _ in 0..MAX_CALLS {
            if let Some(hook) = &mut self.hook {
                let waker = waker_ref(&self.cell);
                let mut cx = TaskContext::from_waker(&waker);
                let polled = catch_unwind(AssertUnwindSafe(|| hook.as_mut().poll(&mut cx)));
                clock.expire();
                let outcome = match polled {
                    Ok(Poll::Pending) => return Next::Wait(None),
                    Ok(Poll::Ready(outcome)) => outcome,
                    Err(panic) => panicked(clock.engine(), &self.cell, &*panic),
                };
                self.hook = None;
                self.cell.begin_inspection();
                match self.finish_call(clock, outcome, span) {
                    Next::Continue => {}
                    Next::Wait(due) if due.is_none_or(|due| due > clock.now()) => return Next::Wait(due),
                    Next::Wait(_) => {}
                    Next::End => return Next::End,
                }
            }
            match self.take_work(clock, span) {
                Next::Continue => {}
                next @ (Next::Wait(_) | Next::End) => return next,
            }
        }
        Next::Continue
    }

    /// Feeds the outcome of a hook call into the record.
    fn finish_call(&mut self, clock: &mut TurnClock<'_>, outcome: Outcome, span: Option<&Span>) -> Next {
        let context = clock.engine().step_context(clock.now(), jitter(&mut self.jitter));
        let mut guard = self.cell.lock();
        let Slot::Live(live) = &mut *guard else { return Next::End };
        drop(live.end_call());
        let was_steady = live.capture.is_in_round();
        let error = match &outcome {
            Outcome::Failed { error, .. } if tracing::enabled!(tracing::Level::DEBUG) => Some(error.clone()),
            Outcome::Failed { .. }
            | Outcome::Continues { .. }
            | Outcome::Ended
            | Outcome::Succeeded
            | Outcome::Cancelled => None,
        };
        let mut effects = clock.engine().drive(&self.cell, live, Event::Done(outcome), context);
        let transition = if effects.forget {
            // The record of a runtime-only pod ends without a transition.
            Some(Transition { at: context.now, to: Lifecycle::Terminated, cause: Cause::ContainersStopped })
        } else {
            unlogged_transition(&mut self.logged, &live.record)
        };
        let next = if std::mem::take(&mut effects.end) {
            Next::End
        } else if live.record.has_pending() {
            Next::Continue
        } else {
            Next::Wait(live.record.due())
        };
        let worked = effects.worked.take();
        // A record that is synced again and again without a change publishes the same word.
        if !(was_steady && live.capture.is_in_round()) {
            self.cell.publish_same_pod(&guard);
        }
        clock.engine().apply(&self.cell, guard, effects);
        clock.engine().measure(worked, context.now);
        log_transition(transition, span);
        // A log line and no pod event: the hook reports its own failures as events, and a second event for each failure would
        // drown them.
        if let Some(error) = error {
            tracing::debug!(error, "hook failed");
        }
        next
    }

    /// Takes what is pending or due in the record and calls its hook, unless the pod is held.
    fn take_work(&mut self, clock: &mut TurnClock<'_>, span: Option<&Span>) -> Next {
        if self.cell.is_held() {
            return Next::Wait(None);
        }
        let engine = clock.engine();
        let mut observed = None;
        // The runtime view is read without the lock, so the record is checked again after that.
        let mut guard = loop {
            let guard = self.cell.lock();
            let Slot::Live(live) = &*guard else { return Next::End };
            if live.record.is_finished() {
                return Next::End;
            }
            if observed.is_some() || !live.record.wants_observation() {
                break guard;
            }
            drop(guard);
            observed = Some(engine.observed(self.cell.uid()));
        };
        let Slot::Live(live) = &mut *guard else { return Next::End };
        let was_steady = live.capture.is_in_round();
        if let Some(due) = live.record.due().filter(|_| live.record.is_idle()) {
            if due > clock.now() {
                return Next::Wait(Some(due));
            }
            let _no_effects = engine.drive(&self.cell, live, Event::Due, engine.step_context(clock.now(), 0.0));
        }
        let may_start = engine.may_start(&self.cell, live);
        let jitter = if may_start { 0.0 } else { jitter(&mut self.jitter) };
        let event = Event::Take { may_start, observed: observed.unwrap_or(Observed::Never) };
        let context = engine.step_context(clock.now(), jitter);
        let mut effects = engine.drive(&self.cell, live, event, context);
        let mut next = Next::Wait(live.record.due());
        let mut first_seen = None;
        if let Some(call) = effects.call.take() {
            if let (true, HookCall::Sync(work)) = (effects.started, &call) {
                first_seen = work.pod.first_seen();
            }
            let cx = HookContext::of_call(self.cell.uid().clone(), self.cell.clone(), live.begin_call());
            self.hook = Some(engine.hooks.call(cx, call));
            next = Next::Continue;
        }
        if std::mem::take(&mut effects.end) {
            next = Next::End;
        }
        let transition = unlogged_transition(&mut self.logged, &live.record);
        let worked = effects.worked.take();
        if !(was_steady && live.capture.is_in_round()) {
            self.cell.publish(&guard);
        }
        engine.apply(&self.cell, guard, effects);
        engine.measure(worked, context.now);
        log_transition(transition, span);
        if let Some(first_seen) = first_seen {
            engine.metrics.pod_worker.started(context.now.since(first_seen));
        }
        next
    }
}

/// The jitter of one delay, from 0 to 0.5.
fn jitter(random: &mut fastrand::Rng) -> f64 {
    random.f64() / 2.0
}

/// The last transition, if its state was not logged yet. Updates cause transitions too, so the worker compares after every step.
fn unlogged_transition(logged: &mut Lifecycle, record: &Record) -> Option<Transition> {
    let lifecycle = record.lifecycle();
    if lifecycle == *logged {
        return None;
    }
    *logged = lifecycle;
    record.transitions().next_back()
}

fn log_transition(transition: Option<Transition>, span: Option<&Span>) {
    if let (Some(transition), Some(span)) = (transition, span) {
        span.record("phase", transition.to.as_str());
        tracing::info!(lifecycle = transition.to.as_str(), cause = transition.cause.as_str(), "transition");
    }
}

fn pod_span(cell: &Cell) -> Option<Box<Span>> {
    if !tracing::span_enabled!(tracing::Level::INFO) {
        return None;
    }
    let name = cell.read(|record| record.full_name().cloned()).flatten();
    // The fields are set at once, because some subscribers write a space between fields that are recorded one by one.
    Some(Box::new(tracing::info_span!(
        "pod_worker",
        pod.uid = %cell.uid(),
        pod.namespace = name.as_ref().map(FullName::namespace),
        pod.name = name.as_ref().map(FullName::name),
        phase = tracing::field::Empty,
    )))
}
