//! The cell of one pod: its record behind a lock, and the lock-free words beside it.
//!
//! Nothing awaits under a cell's lock. The holder of a cell's lock takes no other cell's lock and no lock of the map of cells.

use std::sync::Arc;

use futures_util::task::ArcWake;
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::lock_free_words::{HoldCount, PublishedWord, WakeWord, WorkerId, WorkerWord};
use super::scheduler::RunQueue;
use crate::ids::{FullName, PodUid};
use crate::pod_worker::published::Published;
use crate::pod_worker::state::Record;
use crate::ports::CallTokens;
use crate::recorder::capture::EventCapture;
use crate::time::Time;

/// One pod's cell.
#[derive(Debug)]
pub(crate) struct Cell {
    slot: Mutex<Slot>,
    signals: WakeWord,
    holds: HoldCount,
    hot: HotLine,
}

/// What every query and wake-up reads and what seldom changes. It has a cache line of its own, so that a reader does not wait
/// for the thread that changes the record.
#[derive(Debug)]
#[repr(align(64))]
struct HotLine {
    uid: PodUid,
    /// Stored under the lock of the slot.
    published: PublishedWord,
    worker: WorkerWord,
    queues: Arc<[RunQueue]>,
}

/// The content of a cell.
#[derive(Debug)]
pub(crate) enum Slot {
    /// The update for which the cell was made has not been applied yet. The pod counts as unknown.
    Empty,
    /// The pod has a record.
    Live(Live),
    /// The record was forgotten and the cell is about to leave the map. The pod counts as unknown.
    Forgotten,
}

/// A record with the data that the engine keeps beside it.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) record: Record,
    /// The recorder's data. Every step of the record goes through it.
    pub(crate) capture: EventCapture,
    /// The full name that a static pod queued for. It stays the same if an update renames the pod.
    pub(crate) queued: Option<FullName>,
    /// The number of the hook call that is in progress, or of the last one.
    call: u32,
    cancellation: CallCancellation,
}

/// The cancellation of the hook call that is in progress.
#[derive(Debug)]
enum CallCancellation {
    /// The hook has not requested its token yet.
    NotRequested,
    /// The hook has this token.
    Issued(CancellationToken),
    /// The call was cancelled or has ended.
    Fired,
}

impl Live {
    pub(crate) fn new(record: Record, capture: EventCapture, queued: Option<FullName>) -> Self {
        Live { record, capture, queued, call: 0, cancellation: CallCancellation::Fired }
    }

    /// Begins a hook call and returns its number.
    pub(super) fn begin_call(&mut self) -> u32 {
        self.call = self.call.wrapping_add(1);
        self.cancellation = CallCancellation::NotRequested;
        self.call
    }

    /// Ends or cancels the hook call. The caller cancels the returned token after it releases the cell's lock.
    pub(crate) fn end_call(&mut self) -> Option<CancellationToken> {
        match std::mem::replace(&mut self.cancellation, CallCancellation::Fired) {
            CallCancellation::Issued(token) => Some(token),
            CallCancellation::NotRequested | CallCancellation::Fired => None,
        }
    }
}

impl Cell {
    /// An empty cell. Its worker cannot be woken before its first turn, which its scheduler gives it unasked.
    pub(crate) fn new(uid: PodUid, queues: Arc<[RunQueue]>) -> Self {
        Cell {
            slot: Mutex::new(Slot::Empty),
            signals: WakeWord::new(),
            holds: HoldCount::new(),
            hot: HotLine { uid, published: PublishedWord::new(), worker: WorkerWord::new(), queues },
        }
    }

    pub(crate) fn uid(&self) -> &PodUid {
        &self.hot.uid
    }

    /// What the record published last.
    pub(crate) fn published(&self) -> Published {
        self.hot.published.load()
    }

    /// What the record published last and the time of its last transition, rounded down to 8 ns. `None` while a transition is
    /// being published.
    pub(crate) fn published_with_time(&self) -> Option<(Published, Time)> {
        self.hot.published.load_with_time()
    }

    /// Publishes the record. The caller does this before it releases the lock, so that a query after an update sees the
    /// update.
    pub(crate) fn publish(&self, locked: &MutexGuard<'_, Slot>) {
        self.publish_as(locked, Published::of);
    }

    /// Publishes a record that still has the pod that it had when it was published last.
    pub(crate) fn publish_same_pod(&self, locked: &MutexGuard<'_, Slot>) {
        self.publish_as(locked, |record| {
            let published = self.published().with_state_of(record);
            debug_assert_eq!(published, Published::of(record), "the record got another pod");
            published
        });
    }

    fn publish_as(&self, locked: &MutexGuard<'_, Slot>, publish: impl FnOnce(&Record) -> Published) {
        let (published, since) = match &**locked {
            Slot::Live(live) => (publish(&live.record), live.record.last_move()),
            Slot::Empty | Slot::Forgotten => (Published::NONE, Time::ZERO),
        };
        let before = self.published();
        if before != published {
            self.hot.published.store(before, published, since);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock()
    }

    /// Reads the record under the lock; `None` if there is no record.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Record) -> T) -> Option<T> {
        self.read_live(|live| read(&live.record))
    }

    /// Reads the record and the data beside it under the lock; `None` if there is no record.
    pub(crate) fn read_live<T>(&self, read: impl FnOnce(&Live) -> T) -> Option<T> {
        match &*self.lock() {
            Slot::Live(live) => Some(read(live)),
            Slot::Empty | Slot::Forgotten => None,
        }
    }

    /// Gives the worker a turn in which it inspects its record, unless an earlier wake-up already did.
    pub(crate) fn wake(&self) {
        if self.signals.wake() {
            self.schedule();
        }
    }

    fn schedule(&self) {
        RunQueue::schedule(&self.hot.queues, self.hot.worker.load());
    }

    /// See [`WakeWord::begin_turn`].
    pub(super) fn begin_turn(&self, inspects: bool) {
        self.signals.begin_turn(inspects);
    }

    /// See [`WakeWord::begin_inspection`].
    pub(super) fn begin_inspection(&self) {
        self.signals.begin_inspection();
    }

    /// Sets the worker of the cell. The scheduler does this before it gives that worker its first turn.
    pub(super) fn set_worker(&self, worker: WorkerId) {
        self.hot.worker.store(worker);
    }

    pub(crate) fn hold(&self) {
        self.holds.hold();
    }

    pub(crate) fn release(&self) {
        if self.holds.release() {
            self.wake();
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holds.is_held()
    }
}

/// The waker of a hook call. It gives the worker a turn, in which the worker polls the hook.
impl ArcWake for Cell {
    fn wake_by_ref(cell: &Arc<Self>) {
        if cell.signals.enqueue() {
            cell.schedule();
        }
    }
}

impl CallTokens for Cell {
    fn token(&self, call: u32) -> CancellationToken {
        if let Slot::Live(live) = &mut *self.lock()
            && live.call == call
        {
            match &live.cancellation {
                CallCancellation::Issued(token) => return token.clone(),
                CallCancellation::NotRequested => {
                    let token = CancellationToken::new();
                    live.cancellation = CallCancellation::Issued(token.clone());
                    return token;
                }
                CallCancellation::Fired => {}
            }
        }
        let fired = CancellationToken::new();
        fired.cancel();
        fired
    }

    fn has_fired(&self, call: u32) -> bool {
        match &*self.lock() {
            Slot::Live(live) if live.call == call => match &live.cancellation {
                CallCancellation::NotRequested => false,
                CallCancellation::Issued(token) => token.is_cancelled(),
                CallCancellation::Fired => true,
            },
            Slot::Live(_) | Slot::Empty | Slot::Forgotten => true,
        }
    }
}
