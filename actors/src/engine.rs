//! The front door: one record for each pod UID, synchronous updates and queries, and the pool of threads that the pod
//! workers run on.
//!
//! What is deliberately absent: a queue before the door, a lock that all pods share while one of them is worked on, and
//! any call to an API server.

pub(crate) mod cell;
mod cells;
mod config;
mod effects;
mod explain;
mod kill;
mod pool;
mod queries;
mod recording;
pub(crate) mod scheduler;
mod static_names;
pub(crate) mod worker;

use std::collections::HashSet;
use std::fmt;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::MutexGuard;
use podwright_metrics::Metrics;

use crate::engine::cell::{Cell, Live, Slot};
use crate::engine::worker::HookCaller;
use crate::ids::PodUid;
use crate::pod_worker::step::{Effects, Event, Known, Outcome, StepContext};
use crate::pod_worker::{KnownPod, Update};
use crate::ports::{
    Blame, Clock, EventRecorder, NoRuntimeView, Observed, PodSyncer, RuntimeView, SyncRetry, TokioClock,
};
use crate::recorder::Recorder;
use crate::recorder::capture::EventCapture;
use crate::time::Time;

pub use config::{EngineConfig, Threads};
pub use explain::{PodSnapshot, RecordSummary};
pub use kill::{KillNow, KillPodError};
pub use pool::StartEngineError;

use cells::Cells;
use effects::Rest;
use pool::Pool;
use static_names::StaticNames;

/// A running engine. Cheap to clone; the last clone that is dropped stops the workers where they are, as a crash would.
///
/// Every method may be called from any thread. None of them waits, except where it says so.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

struct Handle {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    cells: Cells,
    names: StaticNames,
    /// Whether `sync_known_pods` ran at least once.
    synced: AtomicBool,
    closing: AtomicBool,
    pub(crate) clock: Arc<dyn Clock>,
    view: Arc<dyn RuntimeView>,
    pub(crate) events: Option<Arc<dyn EventRecorder>>,
    pub(crate) metrics: Metrics,
    recorder: Option<Arc<Recorder>>,
    config: EngineConfig,
    seed: u64,
    pool: Pool,
    pub(crate) spawn: HookCaller,
}

/// What an engine is made of, besides the hooks. The defaults suit an embedder that brings just a [`PodSyncer`].
#[derive(Default)]
pub struct EngineParts {
    /// Settings.
    pub config: EngineConfig,
    /// Tells the time; the system's clock if absent.
    pub clock: Option<Arc<dyn Clock>>,
    /// What was last seen of a pod in the runtime; never anything if absent.
    pub view: Option<Arc<dyn RuntimeView>>,
    /// Takes the pods' events.
    pub events: Option<Arc<dyn EventRecorder>>,
    /// Where to count; into nothing that is exposed if absent.
    pub metrics: Option<Metrics>,
    /// Keeps the events that move pods; if absent, none is kept.
    pub recorder: Option<Arc<Recorder>>,
}

impl Engine {
    /// Starts an engine with the default settings.
    ///
    /// # Errors
    /// [`StartEngineError`] if its threads cannot be started.
    pub fn start<S: PodSyncer>(syncer: S) -> Result<Self, StartEngineError> {
        Engine::build(Arc::new(syncer), EngineParts::default())
    }

    /// Starts an engine from its parts.
    ///
    /// # Errors
    /// [`StartEngineError`] if its threads cannot be started.
    pub fn build<S: PodSyncer>(syncer: Arc<S>, parts: EngineParts) -> Result<Self, StartEngineError> {
        let EngineParts { config, clock, view, events, metrics, recorder } = parts;
        let pool = Pool::start(config.threads)?;
        let seed = config.seed.unwrap_or_else(|| foldhash::fast::RandomState::default().hash_one(0));
        let inner = Arc::new(Inner {
            cells: Cells::new(seed),
            names: StaticNames::default(),
            synced: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            clock: clock.unwrap_or_else(|| Arc::new(TokioClock::new())),
            view: view.unwrap_or_else(|| Arc::new(NoRuntimeView)),
            events,
            metrics: metrics.unwrap_or_default(),
            recorder,
            config,
            seed,
            pool,
            spawn: HookCaller::of(syncer),
        });
        inner.pool.begin(&inner);
        Ok(Engine { handle: Arc::new(Handle { inner }) })
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.handle.inner
    }

    /// Takes an update in (rules U1 to U16). The pod's worker is woken if it sleeps; of several updates that come before
    /// it looks, the newest is kept, and a stop is never lost.
    pub fn update_pod(&self, update: Update) {
        self.inner().update(update);
    }

    /// Compares the records with what the sources want, drops what is over, and has orphans stopped. Answers for every
    /// record that remains. Pods that are wanted and missing from the answer are to be created again by the caller.
    ///
    /// Updates for new pods must not run at the same time.
    pub fn sync_known_pods<S: BuildHasher>(&self, desired: &HashSet<PodUid, S>) -> Vec<KnownPod> {
        let inner = self.inner();
        inner.synced.store(true, Ordering::Release);
        let mut known = Vec::with_capacity(inner.cells.len());
        // Most pods are wanted and need nothing, and what they show is their answer. The others are worked on when no
        // shard is locked any more, so that no update waits for this pass.
        let mut others = Vec::new();
        inner.cells.for_each(|cell| {
            let desired = desired.contains(cell.uid());
            match cell.shown_since().filter(|_| desired).and_then(|(shown, since)| Known::of_wanted(shown, since)) {
                Some(answer) => known.push(known_pod(cell.uid(), answer)),
                None => others.push((cell.clone(), desired)),
            }
        });
        let tick = inner.tick(inner.clock.now(), 0.0);
        for (cell, desired) in others {
            let mut guard = cell.lock();
            let Slot::Live(live) = &mut *guard else { continue };
            let mut effects = inner.drive(&cell, live, Event::Known { desired }, tick);
            let answer = effects.known.take();
            cell.show(&guard);
            inner.settle(&cell, guard, effects);
            known.extend(answer.map(|answer| known_pod(cell.uid(), answer)));
        }
        known
    }

    /// Keeps a pod's worker from taking work until the guard is dropped; updates are still accepted, and a call that is
    /// under way goes on. For looking into one pod while others go on. Holds of the same pod add up; none outlasts the
    /// pod's record. `None` if the pod is unknown.
    pub fn hold(&self, uid: &PodUid) -> Option<Hold> {
        let cell = self.inner().find(uid)?;
        cell.ask(|_| cell.hold())?;
        Some(Hold { cell })
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("pods", &self.inner().cells.len()).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.close();
    }
}

/// Keeps a worker from taking work. See [`Engine::hold`].
#[derive(Debug)]
pub struct Hold {
    cell: Arc<Cell>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.cell.release();
    }
}

impl Inner {
    pub(crate) fn tick(&self, now: Time, jitter: f64) -> StepContext {
        StepContext { now, jitter, resync: self.config.resync, error_backoff: self.config.error_backoff }
    }

    /// What a worker's dice start from: its own for each pod, the same in each run with the same seed.
    pub(crate) fn dice(&self, uid: &PodUid) -> u64 {
        foldhash::fast::FixedState::with_seed(self.seed).hash_one(uid)
    }

    fn update(&self, update: Update) {
        // Asked before any lock is taken, and only where the answer matters (U3).
        let observed = if update.is_ended() { self.observed(update.uid()) } else { Observed::Never };
        let uid = update.uid().clone();
        let mut update = Some(update);
        while update.is_some() {
            let told = self.cells.with(&uid, |cell| self.tell(cell, cell.lock(), &mut update)).flatten();
            let rest = told.or_else(|| update.is_some().then(|| self.bear(&uid, &mut update, observed)).flatten());
            if let Some(rest) = rest {
                self.finish(rest);
            }
        }
    }

    /// Gives an update to a live record, and answers with what is to be done without a lock. Where there is none, the update
    /// stays.
    fn tell(&self, cell: &Arc<Cell>, mut guard: MutexGuard<'_, Slot>, update: &mut Option<Update>) -> Option<Rest> {
        let Slot::Live(live) = &mut *guard else { return None };
        let update = update.take()?;
        // Most updates are another look at the same, and most others move nothing and are not written down. A clock is not
        // read for them: the time of the last move stands in.
        let last = live.record.last_move();
        let effects = if live.capture.is_plain(&live.record, &update) {
            live.capture.look_again(&mut live.record, update, self.tick(last, 0.0))
        } else {
            let needs_time = self.recorder.is_some() || live.record.is_moved_by(&update);
            let now = if needs_time { self.clock.now() } else { last };
            let effects = self.drive(cell, live, Event::Update(update), self.tick(now, 0.0));
            cell.show(&guard);
            effects
        };
        self.settle_locked(cell, guard, effects)
    }

    /// Gives an update to the cell of a pod that had no live record just now.
    fn bear(&self, uid: &PodUid, update: &mut Option<Update>, observed: Observed) -> Option<Rest> {
        // Before the cell is made: should the host's clock panic, no empty cell is left behind.
        let now = self.clock.now();
        let make = || Arc::new(Cell::new(uid.clone(), self.pool.queues().clone()));
        let cell = self.cells.find_or_make(uid, make);
        let mut guard = cell.lock();
        match &*guard {
            Slot::Live(_) => return self.tell(&cell, guard, update),
            Slot::Forgotten => {
                // It is about to leave the map; the next look makes a new one.
                drop(guard);
                self.cells.remove(&cell);
                return None;
            }
            Slot::Unborn => {}
        }
        let tick = self.tick(now, 0.0);
        let (capture, record, effects) = EventCapture::birth(self.recorder.as_deref(), update.take()?, observed, tick);
        let queued = record.wants_name().then(|| record.full_name().cloned()).flatten();
        if let Some(name) = &queued {
            self.names.join(name, cell.uid());
        }
        *guard = Slot::Live(Live::new(record, capture, queued));
        cell.show(&guard);
        self.settle(&cell, guard, effects);
        self.start_worker(&cell, 0);
        None
    }

    fn find(&self, uid: &PodUid) -> Option<Arc<Cell>> {
        self.cells.find(uid)
    }

    /// Steps a record, and records that. A time that was read before another thread moved the record counts as that of the
    /// move, so that a pod's history never goes back.
    #[inline]
    pub(crate) fn drive(&self, cell: &Cell, live: &mut Live, event: Event, tick: StepContext) -> Effects {
        let tick = StepContext { now: tick.now.max(live.record.last_move()), ..tick };
        live.capture.drive(self.recorder.as_deref(), cell.uid(), &mut live.record, event, tick)
    }

    /// Whether a pod's full name is free for it; always true for one that needs none.
    pub(crate) fn may_start(&self, cell: &Cell, live: &Live) -> bool {
        match &live.queued {
            Some(name) if live.record.wants_name() => self.names.claim(name, cell.uid()),
            Some(_) | None => true,
        }
    }

    /// What was last seen of a pod. Never asked under a cell's lock: who answers is not ours, and may ask back.
    pub(crate) fn observed(&self, uid: &PodUid) -> Observed {
        catch_unwind(AssertUnwindSafe(|| self.view.observed(uid))).unwrap_or_else(|_| {
            self.metrics.actors.hook_panicked();
            tracing::error!(pod.uid = %uid, "runtime view panicked");
            Observed::Never
        })
    }

    /// Has a pod's worker started on the thread that is its n-th choice, or on one after it.
    pub(crate) fn start_worker(&self, cell: &Arc<Cell>, choice: usize) {
        if !self.pool.start_worker(cell, choice) && !self.is_closing() {
            tracing::error!(pod.uid = %cell.uid(), "no engine thread is left to run the pod's worker");
        }
    }

    fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.pool.stop();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// A worker is gone without having ended: a bug of ours, or its thread died. What it was doing counts as failed, and
    /// another one takes over from the record.
    pub(crate) fn replace_worker(&self, cell: &Arc<Cell>) {
        let mut guard = cell.lock();
        let Slot::Live(live) = &mut *guard else { return };
        if live.record.is_finished() {
            return;
        }
        // The call is gone, but what it started elsewhere may go on, and another call is about to be made.
        let lost = live.end_call();
        let (error, blame) = ("the worker was lost".to_owned(), Blame::Nothing);
        let outcome = Outcome::Failed { error, retry: SyncRetry::Backoff, blame };
        // It may be the clock that lost the worker.
        let now = catch_unwind(AssertUnwindSafe(|| self.clock.now())).unwrap_or_else(|_| live.record.last_move());
        let tick = self.tick(now, 0.0);
        let mut effects = self.drive(cell, live, Event::Done(outcome), tick);
        let worked = effects.worked.take();
        cell.show(&guard);
        // Who listens to what is told here is not ours. Whatever it does, the pod gets its worker.
        let _panic = catch_unwind(AssertUnwindSafe(|| {
            self.settle(cell, guard, effects);
            tracing::error!(pod.uid = %cell.uid(), "worker lost, replacing it");
            self.worked(worked, tick.now);
            if let Some(lost) = lost {
                lost.cancel();
            }
        }));
        self.metrics.actors.worker_rebuilt();
        self.start_worker(cell, 0);
    }
}

fn known_pod(uid: &PodUid, known: Known) -> KnownPod {
    let Known { lifecycle, orphan, has_config, is_static, since } = known;
    KnownPod { uid: uid.clone(), lifecycle, orphan, has_config, is_static, since }
}

pub(crate) type WeakInner = Weak<Inner>;

#[cfg(test)]
mod tests;
