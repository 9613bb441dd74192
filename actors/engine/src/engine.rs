//! The engine: one record for each pod UID, synchronous updates and queries, and the threads that the pod workers run on.
//!
//! An update travels from [`Engine::update_pod`] to the pod's record, which is stepped under the lock of its cell. The update
//! then wakes the pod's worker. The worker runs on one of the engine's threads, takes what is pending in the record, calls a
//! hook of the [`PodSyncer`], and feeds the outcome back into the record.
//!
//! Invariants:
//!
//! - An update has no queue. It is applied to the record before `update_pod` returns, and later queries include it.
//! - No lock is common to all pods while a record is stepped. A shard of the map of cells is locked for reading while a cell is
//!   updated, and for writing only while a cell is inserted or removed. `effects.rs` states the order of the locks.
//! - A worker is woken after the lock of its cell is released, so that it does not wait for the thread that woke it.
//! - All state of a pod is in its record. A worker that is lost is replaced from the record.
//! - The engine calls no API server and opens no file. Every decision takes its time from the clock that the engine was given. Only the
//!   schedulers measure time themselves: tokio's for their timers, and the machine's for how long they spin before they sleep.

mod builder;
mod cell;
mod cells;
mod config;
mod effects;
mod hooks;
mod kill;
mod lock_free_words;
mod pool;
mod queries;
mod scheduler;
mod snapshots;
mod static_names;
mod update;
mod worker;

use std::collections::HashSet;
use std::fmt;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use podwright_metrics::Metrics;

use crate::engine::cell::{Cell, Live, Slot};
use crate::engine::hooks::HookCaller;
use crate::ids::PodUid;
use crate::pod_worker::step::{Effects, Event, Known, Outcome, StepContext};
use crate::pod_worker::{KnownPod, Update};
use crate::ports::{Clock, EventRecorder, FailureCause, Observed, PodSyncer, RuntimeView, SyncRetry};
use crate::recorder::Recorder;
use crate::time::Time;

pub use builder::EngineBuilder;
pub use config::{EngineConfig, Threads};
pub use kill::{KillNow, KillPodError};
pub use pool::StartEngineError;
pub use snapshots::{PodSnapshot, RecordSummary};

use cells::Cells;
use pool::Pool;
use static_names::StaticNames;

/// A running engine. Cheap to clone.
///
/// Dropping the last clone stops the workers at once, as a crash would: hook calls in progress are dropped, and no pod
/// is stopped.
///
/// Every method may be called from any thread. A method waits only if its documentation says so.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

/// Closes the engine when the last [`Engine`] is dropped. The workers hold the inner engine itself.
struct Handle {
    inner: Arc<EngineInner>,
}

pub(crate) struct EngineInner {
    cells: Cells,
    names: StaticNames,
    /// Whether `sync_known_pods` ran at least once.
    synced: AtomicBool,
    closing: AtomicBool,
    clock: Arc<dyn Clock>,
    view: Arc<dyn RuntimeView>,
    events: Option<Arc<dyn EventRecorder>>,
    metrics: Metrics,
    recorder: Option<Arc<Recorder>>,
    config: EngineConfig,
    seed: u64,
    pool: Pool,
    hooks: HookCaller,
}

impl Engine {
    /// Starts an engine with the default settings.
    ///
    /// # Errors
    /// [`StartEngineError`] if the engine's threads cannot be started.
    pub fn start<S: PodSyncer>(syncer: S) -> Result<Self, StartEngineError> {
        Engine::builder(Arc::new(syncer)).start()
    }

    /// A builder for an engine that calls these hooks.
    pub fn builder<S: PodSyncer>(syncer: Arc<S>) -> EngineBuilder {
        EngineBuilder::new(syncer)
    }

    fn inner(&self) -> &Arc<EngineInner> {
        &self.handle.inner
    }

    /// Applies an update to a pod's record, or makes the record, and wakes the pod's worker.
    ///
    /// If several updates arrive before the worker runs, it acts on the newest one. A request to stop the pod is never lost: no
    /// later update undoes it. `docs/rules.md` lists all rules of an update (POD-U1 to POD-U16).
    pub fn update_pod(&self, update: Update) {
        self.inner().update(update);
    }

    /// Compares the records with the pods that the sources desire. Records of finished pods that nothing needs any more are
    /// forgotten, and orphans are stopped.
    ///
    /// Returns one entry for each record that remains. The caller creates each desired pod that is missing from the answer again.
    ///
    /// No update for a new pod may run at the same time: its record would count as an orphan.
    pub fn sync_known_pods<S: BuildHasher>(&self, desired: &HashSet<PodUid, S>) -> Vec<KnownPod> {
        self.inner().synced.store(true, Ordering::Release);
        self.compare_known_pods(desired)
    }

    /// Does the same as [`sync_known_pods`](Self::sync_known_pods) while some sources have not delivered. A pod without a record could
    /// still have running containers afterwards. No pod of such a source may have a record.
    pub fn compare_known_pods<S: BuildHasher>(&self, desired: &HashSet<PodUid, S>) -> Vec<KnownPod> {
        let inner = self.inner();
        let mut known = Vec::with_capacity(inner.cells.len());
        // Most pods are desired and need no step: their published word is the answer. The others are stepped after the last
        // shard is unlocked, so that no update waits for this pass.
        let mut others = Vec::new();
        inner.cells.for_each(|cell| {
            let desired = desired.contains(cell.uid());
            let published = cell.published_with_time().filter(|_| desired);
            match published.and_then(|(published, since)| Known::of_desired(published, since)) {
                Some(answer) => known.push(known_pod(cell.uid(), answer)),
                None => others.push((cell.clone(), desired)),
            }
        });
        let context = inner.step_context(inner.clock.now(), 0.0);
        for (cell, desired) in others {
            let mut guard = cell.lock();
            let Slot::Live(live) = &mut *guard else { continue };
            let mut effects = inner.drive(&cell, live, Event::Known { desired }, context);
            let answer = effects.known.take();
            cell.publish(&guard);
            inner.apply(&cell, guard, effects);
            known.extend(answer.map(|answer| known_pod(cell.uid(), answer)));
        }
        known
    }

    /// Stops the workers at once, as a crash would. Later updates are accepted and never handled.
    pub fn stop(&self) {
        self.inner().close();
    }

    /// Keeps a pod's worker from taking work until the returned guard is dropped, so that one pod can be inspected while the
    /// others continue. `None` if the pod is unknown.
    ///
    /// Updates are still accepted, and a hook call that is in progress continues. A pod may have several holds; its worker
    /// continues when the last one is dropped. A hold ends with the pod's record.
    pub fn hold(&self, uid: &PodUid) -> Option<Hold> {
        let cell = self.inner().find(uid)?;
        cell.read(|_| cell.hold())?;
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

/// Keeps a pod's worker from taking work. See [`Engine::hold`].
#[derive(Debug)]
pub struct Hold {
    cell: Arc<Cell>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.cell.release();
    }
}

impl EngineInner {
    fn step_context(&self, now: Time, jitter: f64) -> StepContext {
        StepContext { now, jitter, resync: self.config.resync, error_backoff: self.config.error_backoff }
    }

    /// The seed of a pod's jitter. It differs between pods and repeats with the engine's seed.
    fn jitter_seed(&self, uid: &PodUid) -> u64 {
        foldhash::fast::FixedState::with_seed(self.seed).hash_one(uid)
    }

    fn find(&self, uid: &PodUid) -> Option<Arc<Cell>> {
        self.cells.find(uid)
    }

    /// Steps a record and captures the event for the recorder.
    ///
    /// Another thread may have stepped the record after the caller read the clock. The time of the record's last transition then
    /// counts as the current time, so that the times of a pod's transitions never decrease.
    #[inline]
    fn drive(&self, cell: &Cell, live: &mut Live, event: Event, mut context: StepContext) -> Effects {
        context.now = context.now.max(live.record.last_move());
        live.capture.drive(self.recorder.as_deref(), cell.uid(), &mut live.record, event, &context)
    }

    /// Whether the full name of a static pod is free for it. Always true for other pods.
    fn may_start(&self, cell: &Cell, live: &Live) -> bool {
        match &live.queued {
            Some(name) if live.record.wants_name() => self.names.claim(name, cell.uid()),
            Some(_) | None => true,
        }
    }

    /// The last known state of a pod in the runtime. The view is code of the host and may call the engine, so the caller holds no
    /// cell's lock. A view that panics has observed nothing.
    fn observed(&self, uid: &PodUid) -> Observed {
        catch_unwind(AssertUnwindSafe(|| self.view.observed(uid))).unwrap_or_else(|_| {
            self.metrics.actors.hook_panicked();
            tracing::error!(pod.uid = %uid, "runtime view panicked");
            Observed::Never
        })
    }

    /// Starts a pod's worker on the thread of its `choice`-th choice, or on the next thread that still runs.
    fn start_worker(&self, cell: &Arc<Cell>, choice: usize) {
        if !self.pool.start_worker(cell, choice) && !self.is_closing() {
            tracing::error!(pod.uid = %cell.uid(), "no engine thread is left to run the pod's worker");
        }
    }

    fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.pool.stop();
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Replaces a worker that was lost before it ended: it panicked outside of a hook, which is a bug of the engine or a panic of
    /// the clock, or its thread ended. Its hook call counts as failed, and a new worker continues from the record.
    fn replace_worker(&self, cell: &Arc<Cell>) {
        let mut guard = cell.lock();
        let Slot::Live(live) = &mut *guard else { return };
        if live.record.is_finished() {
            return;
        }
        // The future of the hook call was dropped. A task that the hook spawned may still run, so its token is cancelled before
        // the next call.
        let lost_call = live.end_call();
        let (error, cause) = ("the worker was lost".to_owned(), FailureCause::Unknown);
        let outcome = Outcome::Failed { error, retry: SyncRetry::Backoff, cause };
        // A panic of the clock may be what lost the worker.
        let now = catch_unwind(AssertUnwindSafe(|| self.clock.now())).unwrap_or_else(|_| live.record.last_move());
        let mut effects = self.drive(cell, live, Event::Done(outcome), self.step_context(now, 0.0));
        let worked = effects.worked.take();
        cell.publish(&guard);
        // Notifiers, log subscribers and tokens run code of the host. The pod gets its worker even if that code panics.
        let _panic = catch_unwind(AssertUnwindSafe(|| {
            self.apply(cell, guard, effects);
            tracing::error!(pod.uid = %cell.uid(), "worker lost, replacing it");
            self.measure(worked, now);
            if let Some(token) = lost_call {
                token.cancel();
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

/// The atomics and the lock of the lock-free words and of the run queue's inbox. The loom tests compile those two files a second
/// time over loom's.
mod primitives {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

    pub(super) use parking_lot::Mutex;
}

#[cfg(test)]
mod tests;
