//! The front door: one record for each pod UID, synchronous updates and queries, and the pool of threads that the pod
//! workers run on.
//!
//! What is deliberately absent: a queue before the door, a lock that all pods share, and any call to an API server.

mod config;
mod explain;
mod kill;
mod names;
mod pool;
mod queries;

use std::collections::HashSet;
use std::fmt;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use dashmap::DashMap;
use parking_lot::MutexGuard;
use podwright_metrics::{Metrics, OperationType};

use crate::ids::PodUid;
use crate::pod_worker::actor::Spawn;
use crate::pod_worker::cell::{Cell, Live, Slot};
use crate::pod_worker::seat::Seat;
use crate::pod_worker::step::{self, Effects, Event, NameMove, Outcome, Tick};
use crate::pod_worker::{KnownPod, Update, UpdateKind};
use crate::ports::{Clock, EventRecorder, NoRuntimeView, Observed, PodSyncer, RuntimeView, SyncRetry, TokioClock};

pub use config::{EngineConfig, Threads};
pub use explain::PodSnapshot;
pub use kill::{KillNow, KillPodError};
pub use pool::StartEngineError;

use names::Names;
use pool::Pool;

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
    cells: DashMap<PodUid, Arc<Cell>, foldhash::fast::RandomState>,
    names: Names,
    /// Whether `sync_known_pods` ran at least once.
    synced: AtomicBool,
    closing: AtomicBool,
    pub(crate) clock: Arc<dyn Clock>,
    view: Arc<dyn RuntimeView>,
    pub(crate) events: Option<Arc<dyn EventRecorder>>,
    pub(crate) metrics: Metrics,
    config: EngineConfig,
    seed: u64,
    pool: Pool,
    pub(crate) spawn: Spawn,
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
        let EngineParts { config, clock, view, events, metrics } = parts;
        let pool = Pool::start(config.threads)?;
        let seed = config.seed.unwrap_or_else(|| foldhash::fast::RandomState::default().hash_one(0));
        let inner = Arc::new(Inner {
            cells: DashMap::default(),
            names: Names::default(),
            synced: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            clock: clock.unwrap_or_else(|| Arc::new(TokioClock::new())),
            view: view.unwrap_or_else(|| Arc::new(NoRuntimeView)),
            events,
            metrics: metrics.unwrap_or_default(),
            config,
            seed,
            pool,
            spawn: Spawn::of(syncer),
        });
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
        // Collected first: the map is not locked while records are worked on, so no update waits for this pass.
        let mut cells: Vec<Arc<Cell>> = inner.cells.iter().map(|entry| entry.value().clone()).collect();
        if inner.config.seed.is_some() {
            // The map's order differs from run to run.
            cells.sort_unstable_by(|a, b| a.uid.cmp(&b.uid));
        }
        let mut known = Vec::with_capacity(cells.len());
        let tick = inner.tick(0.0);
        for cell in cells {
            let mut guard = cell.lock();
            let Slot::Live(live) = &mut *guard else { continue };
            let mut effects = step::step(&mut live.record, Event::Known { desired: desired.contains(&cell.uid) }, tick);
            let answer = effects.known.take();
            inner.settle(&cell, guard, effects);
            known.extend(answer.map(|k| KnownPod {
                uid: cell.uid.clone(),
                lifecycle: k.lifecycle,
                orphan: k.orphan,
                has_config: k.has_config,
                is_static: k.is_static,
                since: k.since,
            }));
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
    pub(crate) fn tick(&self, jitter: f64) -> Tick {
        Tick { now: self.clock.now(), jitter, resync: self.config.resync, error_backoff: self.config.error_backoff }
    }

    /// What a worker's dice start from: its own for each pod, the same in each run with the same seed.
    pub(crate) fn dice(&self, uid: &PodUid) -> u64 {
        foldhash::fast::FixedState::with_seed(self.seed).hash_one(uid)
    }

    fn update(self: &Arc<Self>, update: Update) {
        // Asked before any lock is taken, and only where the answer matters (U3).
        let observed = if update.is_ended() { self.observed(update.uid()) } else { Observed::Never };
        let mut update = Some(update);
        while let Some(taken) = update.take() {
            let cell = self.cell(taken.uid());
            let mut guard = cell.lock();
            let tick = self.tick(0.0);
            let effects = match &mut *guard {
                Slot::Live(live) => step::step(&mut live.record, Event::Update(taken), tick),
                Slot::Unborn => {
                    let (record, effects) = step::birth(taken, observed, tick);
                    let queued = record.wants_name().then(|| record.full_name().cloned()).flatten();
                    if let Some(name) = &queued {
                        self.names.join(name, &cell.uid);
                    }
                    *guard = Slot::Live(Live { record, queued, cancel: None });
                    self.settle(&cell, guard, effects);
                    self.employ(&cell, 0);
                    return;
                }
                Slot::Forgotten => {
                    // It left between the look into the map and the lock; the next look makes a new one.
                    drop(guard);
                    self.discard(&cell);
                    update = Some(taken);
                    continue;
                }
            };
            self.settle(&cell, guard, effects);
        }
    }

    fn cell(&self, uid: &PodUid) -> Arc<Cell> {
        if let Some(cell) = self.cells.get(uid) {
            return cell.clone();
        }
        self.cells.entry(uid.clone()).or_insert_with(|| Arc::new(Cell::new(uid.clone()))).clone()
    }

    fn find(&self, uid: &PodUid) -> Option<Arc<Cell>> {
        self.cells.get(uid).map(|cell| cell.clone())
    }

    fn discard(&self, cell: &Arc<Cell>) {
        self.cells.remove_if(&cell.uid, |_, present| Arc::ptr_eq(present, cell));
    }

    /// Performs what a step asked for, all but the hook call: under the lock what must be seen together with the move,
    /// the rest after it.
    pub(crate) fn settle(&self, cell: &Arc<Cell>, mut guard: MutexGuard<'_, Slot>, effects: Effects) {
        let Effects { wake, cancel, completed, name, worked, started, end, forget, call: _, known: _ } = effects;
        let mut next = None;
        let mut cancelled = None;
        let mut containers = None;
        if let Slot::Live(live) = &mut *guard {
            if (forget || name == NameMove::Leave)
                && let Some(queued) = live.queued.take()
            {
                next = self.names.leave(&queued, &cell.uid);
            }
            if cancel {
                cancelled = live.cancel.take();
            }
            if started {
                containers = live.record.active_pod().map(|pod| pod.containers().len());
            }
        }
        if forget {
            *guard = Slot::Forgotten;
        }
        drop(guard);

        if forget {
            self.discard(cell);
        }
        if let Some(token) = cancelled {
            token.cancel();
        }
        if wake || end {
            cell.ring();
        }
        if let Some(next) = next.and_then(|uid| self.find(&uid)) {
            next.ring();
        }
        for notifier in completed {
            notifier.complete();
        }
        if let Some(containers) = containers {
            self.metrics.pod_worker.allowed_to_start(containers);
        }
        if let Some(worked) = worked {
            let kind = worked.kind.map_or(OperationType::Terminated, operation);
            self.metrics.pod_worker.worked(kind, self.clock.now().since(worked.start_time));
        }
    }

    /// Takes what is pending on behalf of a worker.
    pub(crate) fn take(&self, cell: &Cell, live: &mut Live, observed: Observed, jitter: f64) -> Effects {
        let may_start = match &live.queued {
            Some(name) if live.record.wants_name() => self.names.claim(name, &cell.uid),
            Some(_) | None => true,
        };
        step::step(&mut live.record, Event::Take { may_start, observed }, self.tick(jitter))
    }

    /// What was last seen of a pod. Never asked under a cell's lock: who answers is not ours, and may ask back.
    pub(crate) fn observed(&self, uid: &PodUid) -> Observed {
        catch_unwind(AssertUnwindSafe(|| self.view.observed(uid))).unwrap_or_else(|_| {
            self.metrics.actors.hook_panicked();
            tracing::error!(pod.uid = %uid, "runtime view panicked");
            Observed::Never
        })
    }

    /// Offers a cell to the thread that is its pod's n-th choice.
    pub(crate) fn employ(self: &Arc<Self>, cell: &Arc<Cell>, choice: usize) {
        if choice >= self.pool.choices() {
            tracing::error!(pod.uid = %cell.uid, "no engine thread is left to run the pod's worker");
            return;
        }
        let seat = Seat::offered(Arc::downgrade(self), cell.clone(), choice);
        self.pool.spawn(&cell.uid, choice, self.spawn.worker(seat));
    }

    fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        // On threads that are not ours the workers have to see for themselves that they have nobody to work for.
        for entry in &self.cells {
            entry.value().shut();
        }
        self.pool.stop();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// A worker is gone without having ended: a bug of ours, or its thread died. What it was doing counts as failed, and
    /// another one takes over from the record.
    pub(crate) fn replace_worker(self: &Arc<Self>, cell: &Arc<Cell>) {
        let mut guard = cell.lock();
        let Slot::Live(live) = &mut *guard else { return };
        if live.record.is_finished() {
            return;
        }
        // The call is gone, but what it started elsewhere may go on, and another call is about to be made.
        let lost = live.cancel.take();
        tracing::error!(pod.uid = %cell.uid, "worker lost, replacing it");
        let outcome = Outcome::Failed { error: "the worker was lost".to_owned(), retry: SyncRetry::Backoff };
        let effects = step::step(&mut live.record, Event::Done(outcome), self.tick(0.0));
        self.settle(cell, guard, effects);
        if let Some(lost) = lost {
            lost.cancel();
        }
        self.metrics.actors.worker_rebuilt();
        self.employ(cell, 0);
    }
}

pub(crate) type WeakInner = Weak<Inner>;

fn operation(kind: UpdateKind) -> OperationType {
    match kind {
        UpdateKind::Create => OperationType::Create,
        UpdateKind::Update => OperationType::Update,
        UpdateKind::Sync => OperationType::Sync,
        UpdateKind::Kill => OperationType::Kill,
    }
}

#[cfg(test)]
mod tests;
