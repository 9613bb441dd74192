//! The actix actor: takes work from its cell, calls one hook after the other, feeds the outcomes back.
//!
//! An idle worker is an entry in its [scheduler](super::scheduler)'s table: it has no mailbox, because its work waits in its
//! record; no task, because the scheduler gives it its turns; and no timer, because there is one for all. In its turn it takes
//! what is pending and polls the hook right where it is made, so that one which is ready at once never goes through a
//! queue; a hook that is not is polled again when it wakes the cell.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use actix::prelude::*;
use futures_util::future::LocalBoxFuture;
use futures_util::task::waker_ref;
use tracing::Span;

use super::cell::{Cell, Slot};
use crate::engine::Inner;
use crate::ids::FullName;
use crate::pod_worker::lifecycle::{Lifecycle, Transition};
use crate::pod_worker::state::Record;
use crate::pod_worker::step::{Event, HookCall, Outcome};
use crate::ports::{Blame, HookContext, Observed, PodSyncer, SyncError, SyncOutcome, SyncRetry};
use crate::time::Time;

/// After so many hook calls in a row without waiting, other pods of the thread get their turn.
const CALLS: u32 = 16;

type HookFuture = LocalBoxFuture<'static, Outcome>;
type MakeCall = Box<dyn Fn(HookContext, HookCall) -> HookFuture + Send + Sync>;

/// Makes hook calls without knowing whose hooks they are.
pub(crate) struct HookCaller(MakeCall);

impl HookCaller {
    pub(crate) fn of<S: PodSyncer>(syncer: Arc<S>) -> Self {
        HookCaller(Box::new(move |cx, call| Box::pin(perform(syncer.clone(), cx, call))))
    }

    fn call(&self, cx: HookContext, call: HookCall) -> HookFuture {
        (self.0)(cx, call)
    }
}

async fn perform<S: PodSyncer>(syncer: Arc<S>, cx: HookContext, call: HookCall) -> Outcome {
    let result = match call {
        HookCall::Sync(work) => match syncer.sync_pod(&cx, &work).await {
            Ok(SyncOutcome::Continue { check_at }) => return Outcome::Continues { check_at },
            Ok(SyncOutcome::Terminal) => return Outcome::Ended,
            Err(error) => Err(error),
        },
        HookCall::Terminating(work) => syncer.sync_terminating_pod(&cx, &work).await,
        HookCall::TerminatingRuntime(running) => syncer.sync_terminating_runtime_pod(&cx, &running).await,
        HookCall::Terminated(pod) => syncer.sync_terminated_pod(&cx, &pod).await,
    };
    match result {
        Ok(()) => Outcome::Succeeded,
        Err(SyncError::Cancelled) => Outcome::Cancelled,
        Err(_) if cx.is_cancelled() => Outcome::Cancelled,
        Err(error) => Outcome::Failed { retry: error.retry(), blame: error.blame(), error: error.to_string() },
    }
}

/// One turn's clock: read once, and again after what may have taken time.
pub(super) struct TurnClock<'a> {
    engine: &'a Arc<Inner>,
    now: Option<Time>,
}

impl<'a> TurnClock<'a> {
    pub(super) fn new(engine: &'a Arc<Inner>) -> Self {
        TurnClock { engine, now: None }
    }

    pub(super) fn engine(&self) -> &'a Arc<Inner> {
        self.engine
    }

    pub(super) fn now(&mut self) -> Time {
        *self.now.get_or_insert_with(|| self.engine.clock.now())
    }

    /// The time, if it was asked for since it was last forgotten.
    pub(super) fn known(&self) -> Option<Time> {
        self.now
    }

    /// Time passed.
    pub(super) fn passes(&mut self) {
        self.now = None;
    }
}

/// What a worker does after its turn.
pub(super) enum Next {
    /// It waits to be called; until its due time at the latest, if it has one.
    Waits(Option<Time>),
    /// It has more to do, after others had their turns.
    Again,
    /// It ends.
    Ends,
}

/// An actor with its context, as its scheduler keeps them.
pub(super) struct Worker {
    actor: PodWorker,
    context: WorkerContext,
    /// For when the scheduler's timer has it, whether or not that is still when it is due.
    pub(super) entered: Option<Time>,
}

impl Worker {
    /// For the actor of a cell, which starts with its first turn.
    pub(super) fn new(cell: Arc<Cell>) -> Self {
        Worker { actor: PodWorker::new(cell), context: WorkerContext(ActorState::Started), entered: None }
    }

    pub(super) fn cell(&self) -> &Arc<Cell> {
        &self.actor.cell
    }

    /// Whether its hook is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.actor.running.is_some()
    }

    /// One turn of the actor.
    pub(super) fn turn(&mut self, moment: &mut TurnClock<'_>) -> Next {
        if self.context.0 == ActorState::Started {
            self.actor.dice = moment.engine().dice(self.actor.cell.uid());
            self.actor.started(&mut self.context);
            self.context.0 = ActorState::Running;
        }
        let next = self.actor.turn(moment, &mut self.context);
        if self.context.0 == ActorState::Stopping && self.actor.stopping(&mut self.context) == Running::Stop {
            self.context.0 = ActorState::Stopped;
            self.actor.stopped(&mut self.context);
        }
        next
    }
}

/// The context of a pod worker: its state. Messages it has none, futures just the hook, which it polls itself.
pub(super) struct WorkerContext(ActorState);

impl ActorContext for WorkerContext {
    fn stop(&mut self) {
        if self.0 != ActorState::Stopped {
            self.0 = ActorState::Stopping;
        }
    }

    fn terminate(&mut self) {
        self.0 = ActorState::Stopped;
    }

    fn state(&self) -> ActorState {
        self.0
    }
}

/// The actor. See the module.
pub(super) struct PodWorker {
    cell: Arc<Cell>,
    running: Option<HookFuture>,
    dice: u64,
    /// Where the log has the pod.
    told: Lifecycle,
    /// Absent where nobody listens.
    span: Option<Box<Span>>,
}

impl Actor for PodWorker {
    type Context = WorkerContext;

    fn started(&mut self, _ctx: &mut WorkerContext) {
        self.span = span(&self.cell);
    }
}

impl PodWorker {
    fn new(cell: Arc<Cell>) -> Self {
        PodWorker { cell, running: None, dice: 0, told: Lifecycle::Waiting, span: None }
    }

    fn turn(&mut self, moment: &mut TurnClock<'_>, ctx: &mut WorkerContext) -> Next {
        let span = self.span.take();
        let entered = span.as_deref().map(Span::enter);
        let next = self.go_on(moment, span.as_deref());
        drop(entered);
        self.span = span;
        if matches!(next, Next::Ends) {
            ctx.stop();
        }
        next
    }

    fn go_on(&mut self, moment: &mut TurnClock<'_>, span: Option<&Span>) -> Next {
        self.cell.begin_turn(self.running.is_none());
        for _ in 0..CALLS {
            if let Some(hook) = &mut self.running {
                let waker = waker_ref(&self.cell);
                let mut cx = TaskContext::from_waker(&waker);
                let polled = catch_unwind(AssertUnwindSafe(|| hook.as_mut().poll(&mut cx)));
                moment.passes();
                let outcome = match polled {
                    Ok(Poll::Pending) => return Next::Waits(None),
                    Ok(Poll::Ready(outcome)) => outcome,
                    Err(panic) => panicked(moment.engine(), &self.cell, &*panic),
                };
                self.running = None;
                self.cell.listen();
                match self.finish_call(moment, outcome, span) {
                    Taken::More => {}
                    Taken::Nothing(due) if due.is_none_or(|due| due > moment.now()) => return Next::Waits(due),
                    Taken::Nothing(_) => {}
                    Taken::End => return Next::Ends,
                }
            }
            match self.take(moment, span) {
                Taken::More => {}
                Taken::Nothing(due) => return Next::Waits(due),
                Taken::End => return Next::Ends,
            }
        }
        Next::Again
    }

    fn finish_call(&mut self, moment: &mut TurnClock<'_>, outcome: Outcome, span: Option<&Span>) -> Taken {
        let tick = moment.engine().tick(moment.now(), roll(&mut self.dice));
        let mut guard = self.cell.lock();
        let Slot::Live(live) = &mut *guard else { return Taken::End };
        drop(live.end_call());
        let turned = live.capture.turns();
        let failed = match &outcome {
            Outcome::Failed { error, .. } if tracing::enabled!(tracing::Level::DEBUG) => Some(error.clone()),
            Outcome::Failed { .. }
            | Outcome::Continues { .. }
            | Outcome::Ended
            | Outcome::Succeeded
            | Outcome::Cancelled => None,
        };
        let mut effects = moment.engine().drive(&self.cell, live, Event::Done(outcome), tick);
        let moved = moved(&mut self.told, &live.record);
        let next = match std::mem::take(&mut effects.end) {
            true => Taken::End,
            false if live.record.has_pending() => Taken::More,
            false => Taken::Nothing(live.record.due()),
        };
        let worked = effects.worked.take();
        if !(turned && live.capture.turns()) {
            self.cell.show_move(&guard);
        }
        moment.engine().settle(&self.cell, guard, effects);
        moment.engine().worked(worked, tick.now);
        tell(moved, span);
        // No event: what failed tells of it in its own words, and a second event for each would drown them.
        if let Some(error) = failed {
            tracing::debug!(error, "hook failed");
        }
        next
    }

    /// Takes what is pending, if it is not held; what is due is made pending first.
    fn take(&mut self, moment: &mut TurnClock<'_>, span: Option<&Span>) -> Taken {
        if self.cell.is_held() {
            return Taken::Nothing(None);
        }
        let engine = moment.engine();
        let mut observed = None;
        let mut guard = loop {
            let guard = self.cell.lock();
            let Slot::Live(live) = &*guard else { return Taken::End };
            if live.record.is_finished() {
                return Taken::End;
            }
            if observed.is_some() || !live.record.wants_observation() {
                break guard;
            }
            drop(guard);
            observed = Some(engine.observed(self.cell.uid()));
        };
        let Slot::Live(live) = &mut *guard else { return Taken::End };
        let turned = live.capture.turns();
        if let Some(due) = live.record.due().filter(|_| live.record.is_idle()) {
            if due > moment.now() {
                return Taken::Nothing(Some(due));
            }
            let _nothing = engine.drive(&self.cell, live, Event::Due, engine.tick(moment.now(), 0.0));
        }
        let may_start = engine.may_start(&self.cell, live);
        let jitter = if may_start { 0.0 } else { roll(&mut self.dice) };
        let event = Event::Take { may_start, observed: observed.unwrap_or(Observed::Never) };
        let tick = engine.tick(moment.now(), jitter);
        let mut effects = engine.drive(&self.cell, live, event, tick);
        let mut next = Taken::Nothing(live.record.due());
        let mut first_setup = None;
        if let Some(call) = effects.call.take() {
            if let (true, HookCall::Sync(work)) = (effects.started, &call) {
                first_setup = work.pod.first_seen();
            }
            let context = HookContext::of_call(self.cell.uid().clone(), self.cell.clone(), live.begin_call());
            self.running = Some(engine.spawn.call(context, call));
            next = Taken::More;
        }
        if std::mem::take(&mut effects.end) {
            next = Taken::End;
        }
        let moved = moved(&mut self.told, &live.record);
        let worked = effects.worked.take();
        if !(turned && live.capture.turns()) {
            self.cell.show(&guard);
        }
        engine.settle(&self.cell, guard, effects);
        engine.worked(worked, tick.now);
        tell(moved, span);
        if let Some(seen) = first_setup {
            engine.metrics.pod_worker.started(tick.now.since(seen));
        }
        next
    }
}

/// What came of a look at the record.
enum Taken {
    /// There is more to do now.
    More,
    /// Nothing until then.
    Nothing(Option<Time>),
    End,
}

/// A number from 0 to 0.5.
fn roll(dice: &mut u64) -> f64 {
    // splitmix64
    *dice = dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *dice;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 54) as f64
}

/// Where the pod went since this was last asked. Updates move a pod too, so every look compares.
fn moved(told: &mut Lifecycle, record: &Record) -> Option<Transition> {
    let lifecycle = record.lifecycle();
    if lifecycle == *told {
        return None;
    }
    *told = lifecycle;
    record.transitions().next_back()
}

fn span(cell: &Cell) -> Option<Box<Span>> {
    if !tracing::span_enabled!(tracing::Level::INFO) {
        return None;
    }
    let name = cell.ask(|record| record.full_name().cloned()).flatten();
    // All at once: some subscribers write a space between fields that are recorded one by one.
    Some(Box::new(tracing::info_span!(
        "pod_worker",
        pod.uid = %cell.uid(),
        pod.namespace = name.as_ref().map(FullName::namespace),
        pod.name = name.as_ref().map(FullName::name),
        phase = tracing::field::Empty,
    )))
}

fn tell(moved: Option<Transition>, span: Option<&Span>) {
    if let (Some(moved), Some(span)) = (moved, span) {
        span.record("phase", moved.to.as_str());
        tracing::info!(lifecycle = moved.to.as_str(), cause = moved.cause.as_str(), "moved");
    }
}

/// A panic in a hook is that pod's error and nobody else's.
fn panicked(engine: &Inner, cell: &Cell, panic: &(dyn Any + Send)) -> Outcome {
    let what = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    engine.metrics.actors.hook_panicked();
    tracing::error!(pod.uid = %cell.uid(), panic = what, "hook panicked");
    Outcome::Failed { error: format!("hook panicked: {what}"), retry: SyncRetry::Backoff, blame: Blame::Nothing }
}
