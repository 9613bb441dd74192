//! The actix actor: takes work from its cell, calls one hook after the other, feeds the outcomes back.
//!
//! Its whole work is one future that it spawns on itself: poll the hook under way, else take what is pending, else wait
//! for the bell or the due time. There is no mailbox traffic and no allocation for a wake-up; a hook is polled right where
//! it is made, so that one which is ready at once never goes through a queue.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use actix::prelude::*;
use futures_util::future::LocalBoxFuture;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::cell::{Cell, Slot};
use super::lifecycle::{Lifecycle, Transition};
use super::seat::Seat;
use super::step::{Event, HookCall, Outcome};
use crate::engine::Inner;
use crate::ports::{HookContext, Observed, PodSyncer, SyncError, SyncOutcome, SyncRetry};
use crate::time::Time;

/// After so many hook calls in a row without waiting, other pods of the thread get their turn.
const TURNS: u32 = 16;

type HookFuture = LocalBoxFuture<'static, Outcome>;
type MakeCall = Box<dyn Fn(HookContext, HookCall) -> HookFuture + Send + Sync>;

/// Makes workers without knowing whose hooks they call.
pub(crate) struct Spawn(MakeCall);

impl Spawn {
    pub(crate) fn of<S: PodSyncer>(syncer: Arc<S>) -> Self {
        Spawn(Box::new(move |cx, call| Box::pin(perform(syncer.clone(), cx, call))))
    }

    fn call(&self, cx: HookContext, call: HookCall) -> HookFuture {
        (self.0)(cx, call)
    }

    /// What to run on the worker's thread.
    pub(crate) fn worker(&self, seat: Seat) -> impl FnOnce() + Send + use<> {
        move || {
            // The engine was dropped since it made the offer: nobody is left to work for.
            let Some(engine) = seat.engine() else { return };
            let life = Life::new(&engine, seat);
            PodWorker::create(|ctx| {
                ctx.spawn(life);
                PodWorker
            });
        }
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
        Err(_) if cx.cancel.is_cancelled() => Outcome::Cancelled,
        Err(error) => Outcome::Failed { retry: error.retry(), error: error.to_string() },
    }
}

/// The actor. See the module.
pub(crate) struct PodWorker;

impl Actor for PodWorker {
    type Context = Context<Self>;
}

/// The worker's one future.
struct Life {
    seat: Seat,
    running: Option<HookFuture>,
    /// Armed for the earliest time that was due when it was armed; what is due later lets it fire and arms it again, so
    /// that a busy pod does not touch the timer with each call.
    alarm: Option<(Time, Pin<Box<tokio::time::Sleep>>)>,
    dice: u64,
    /// Where the log has the pod.
    told: Lifecycle,
    /// Absent where nobody listens.
    span: Option<Box<Span>>,
}

impl Life {
    fn new(engine: &Inner, mut seat: Seat) -> Self {
        seat.begin();
        let cell = seat.cell();
        let dice = engine.dice(&cell.uid);
        let name = cell.ask(|record| record.full_name().cloned()).flatten();
        let span = tracing::info_span!(
            "pod_worker",
            pod.uid = %cell.uid,
            pod.namespace = name.as_ref().map_or("", |n| n.namespace()),
            pod.name = name.as_ref().map_or("", |n| n.name()),
            phase = tracing::field::Empty,
        );
        let span = (!span.is_disabled()).then(|| Box::new(span));
        Life { seat, running: None, alarm: None, dice, told: Lifecycle::Waiting, span }
    }

    fn span(&self) -> Span {
        self.span.as_deref().cloned().unwrap_or_else(Span::none)
    }

    /// A number from 0 to 0.5 (splitmix64).
    fn roll(&mut self) -> f64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 54) as f64
    }

    fn go_on(&mut self, cx: &mut TaskContext<'_>) -> Poll<()> {
        let Some(engine) = self.seat.engine() else { return Poll::Ready(()) };
        for _ in 0..TURNS {
            if let Some(hook) = &mut self.running {
                let polled = catch_unwind(AssertUnwindSafe(|| hook.as_mut().poll(cx)));
                let outcome = match polled {
                    Ok(Poll::Pending) => {
                        self.seat.cell().doze(cx.waker());
                        // The engine may have gone between the look above and the line above, and would not ring twice.
                        return if engine.is_closing() { Poll::Ready(()) } else { Poll::Pending };
                    }
                    Ok(Poll::Ready(outcome)) => outcome,
                    Err(panic) => panicked(&engine, self.seat.cell(), &*panic),
                };
                self.running = None;
                self.finish_call(&engine, outcome);
                continue;
            }
            self.seat.cell().listen(cx.waker());
            if engine.is_closing() {
                return Poll::Ready(());
            }
            match self.take(&engine) {
                Taken::Call => continue,
                Taken::Nothing => {}
                Taken::End => return Poll::Ready(()),
            }
            match self.wait_until_due(&engine, cx) {
                Poll::Ready(()) => continue,
                Poll::Pending => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn finish_call(&mut self, engine: &Arc<Inner>, outcome: Outcome) {
        let jitter = self.roll();
        let mut guard = self.seat.cell().lock();
        let Slot::Live(live) = &mut *guard else { return };
        live.cancel = None;
        let failed = match &outcome {
            Outcome::Failed { error, .. } => Some(error.clone()),
            Outcome::Continues { .. } | Outcome::Ended | Outcome::Succeeded | Outcome::Cancelled => None,
        };
        let effects = engine.drive(self.seat.cell(), live, Event::Done(outcome), engine.tick(jitter));
        let last = live.record.transitions().next_back();
        engine.settle(self.seat.cell(), guard, effects);
        self.tell(last);
        // No event: what failed tells of it in its own words, and a second event for each would drown them.
        if let Some(error) = failed {
            tracing::debug!(parent: &self.span(), error, "hook failed");
        }
    }

    /// Logs where the pod went since this was last called. Updates move a pod too, so every look compares.
    fn tell(&mut self, last: Option<Transition>) {
        let Some(last) = last.filter(|last| last.to != self.told) else { return };
        self.told = last.to;
        if let Some(span) = &self.span {
            span.record("phase", last.to.as_str());
            tracing::info!(parent: &**span, lifecycle = last.to.as_str(), cause = last.cause.as_str(), "moved");
        }
    }

    fn take(&mut self, engine: &Arc<Inner>) -> Taken {
        if self.seat.cell().is_held() {
            return Taken::Nothing;
        }
        let jitter = self.roll();
        let mut observed = None;
        let mut guard = loop {
            let guard = self.seat.cell().lock();
            let Slot::Live(live) = &*guard else { return Taken::End };
            if live.record.is_finished() {
                return Taken::End;
            }
            if observed.is_some() || !live.record.wants_observation() {
                break guard;
            }
            drop(guard);
            observed = Some(engine.observed(&self.seat.cell().uid));
        };
        let Slot::Live(live) = &mut *guard else { return Taken::End };
        let mut effects = engine.take(self.seat.cell(), live, observed.unwrap_or(Observed::Never), jitter);
        let call = effects.call.take();
        let end = effects.end;
        let mut first_setup = None;
        if let Some(call) = call {
            let cancel = CancellationToken::new();
            live.cancel = Some(cancel.clone());
            if let (true, HookCall::Sync(work)) = (effects.started, &call) {
                first_setup = work.pod.first_seen();
            }
            self.running = Some(engine.spawn.call(HookContext { uid: self.seat.cell().uid.clone(), cancel }, call));
        }
        let last = live.record.transitions().next_back();
        engine.settle(self.seat.cell(), guard, effects);
        self.tell(last);
        if let Some(seen) = first_setup {
            engine.metrics.pod_worker.started(engine.clock.now().since(seen));
        }
        match (end, self.running.is_some()) {
            (true, _) => Taken::End,
            (false, true) => Taken::Call,
            (false, false) => Taken::Nothing,
        }
    }

    /// Ready when the due time came and there is work now.
    fn wait_until_due(&mut self, engine: &Arc<Inner>, cx: &mut TaskContext<'_>) -> Poll<()> {
        if self.seat.cell().is_held() {
            return Poll::Pending;
        }
        loop {
            let Some(due) = self.seat.cell().ask(|record| record.due()).flatten() else { return Poll::Pending };
            let now = engine.clock.now();
            if due <= now {
                let mut guard = self.seat.cell().lock();
                let Slot::Live(live) = &mut *guard else { return Poll::Ready(()) };
                let effects = engine.drive(self.seat.cell(), live, Event::Due, engine.tick(0.0));
                engine.settle(self.seat.cell(), guard, effects);
                return Poll::Ready(());
            }
            let delay = due.since(now);
            let alarm = match &mut self.alarm {
                Some((at, alarm)) => {
                    if *at > due || *at <= now {
                        *at = due;
                        alarm.as_mut().reset(tokio::time::Instant::now() + delay);
                    }
                    alarm
                }
                None => &mut self.alarm.insert((due, Box::pin(tokio::time::sleep(delay)))).1,
            };
            if alarm.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // It fired: either the time has come, or what was due moved on and it is armed anew. Should the clock lag
            // behind the timer, the alarm must not be taken for one that is still to fire.
            let now = engine.clock.now();
            if let Some((at, _)) = &mut self.alarm {
                *at = (*at).min(now);
            }
        }
    }
}

enum Taken {
    Call,
    Nothing,
    End,
}

/// A panic in a hook is that pod's error and nobody else's.
fn panicked(engine: &Inner, cell: &Cell, panic: &(dyn Any + Send)) -> Outcome {
    let what = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    engine.metrics.actors.hook_panicked();
    tracing::error!(pod.uid = %cell.uid, panic = what, "hook panicked");
    Outcome::Failed { error: format!("hook panicked: {what}"), retry: SyncRetry::Backoff }
}

impl ActorFuture<PodWorker> for Life {
    type Output = ();

    fn poll(
        self: Pin<&mut Self>,
        _worker: &mut PodWorker,
        ctx: &mut Context<PodWorker>,
        task: &mut TaskContext<'_>,
    ) -> Poll<()> {
        let life = self.get_mut();
        let _in_span = life.span().entered();
        let polled = life.go_on(task);
        if polled.is_ready() {
            life.seat.end();
            ctx.stop();
        }
        polled
    }
}
