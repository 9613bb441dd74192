//! The place where one record lives: its lock, and the bell that calls its actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use futures_util::task::ArcWake;
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::scheduler::{RunQueue, WorkerId};
use crate::ids::{FullName, PodUid};
use crate::pod_worker::published::Published;
use crate::pod_worker::state::Record;
use crate::ports::CallTokens;
use crate::recorder::capture::EventCapture;
use crate::time::Time;

/// The actor has a turn coming: it stands in its thread's run queue, or is not started yet.
const QUEUED: u8 = 1;
/// Somebody rang and the actor has not looked yet: one ring serves a burst.
const RUNG: u8 = 2;

/// The lowest bits of a time give way to [`Published::stage`].
const STAGE: u64 = 7;

/// One pod's cell. Nothing awaits under its lock, and who holds it touches no other cell and not the map of cells.
#[derive(Debug)]
pub(crate) struct Cell {
    slot: Mutex<Slot>,
    signals: AtomicU8,
    /// How many want the actor to take no work.
    holds: AtomicU32,
    front: Front,
}

/// What changes seldom: on a cache line of its own, so that who asks does not wait for who works.
#[derive(Debug)]
#[repr(align(64))]
struct Front {
    uid: PodUid,
    /// What the record shows, changed under the lock of the slot.
    shown: AtomicU8,
    /// When the record moved last, and in the bits of [`STAGE`] to what stage, so that the two are never taken from
    /// different moves.
    since: AtomicU64,
    /// The [`WorkerId`] of the actor.
    worker: AtomicU64,
    queues: Arc<[RunQueue]>,
}

/// What is in a cell.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every cell has a record, and a box would be one more thing to fetch"
)]
pub(crate) enum Slot {
    /// The cell was made for an update that has not arrived in it yet. Counts as unknown.
    Unborn,
    /// A record.
    Live(Live),
    /// The record was dropped; the cell is about to leave the map. Counts as unknown.
    Forgotten,
}

/// A record with what the shell keeps beside it.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) record: Record,
    /// The recorder's part. Every step goes through it.
    pub(crate) capture: EventCapture,
    /// The full name a static pod queued for: the one it came with, should it be renamed later.
    pub(crate) queued: Option<FullName>,
    /// Which hook call runs, or ran last.
    call: u32,
    cancel: Cancel,
}

/// How the running hook call is told to end early.
#[derive(Debug)]
enum Cancel {
    /// The call did not ask for its token yet.
    Unasked,
    /// It has this one.
    Given(CancellationToken),
    /// It was told, or it is over.
    Fired,
}

impl Live {
    pub(crate) fn new(record: Record, capture: EventCapture, queued: Option<FullName>) -> Self {
        Live { record, capture, queued, call: 0, cancel: Cancel::Fired }
    }

    /// A hook call begins. Answers with its number.
    pub(super) fn begin_call(&mut self) -> u32 {
        self.call = self.call.wrapping_add(1);
        self.cancel = Cancel::Unasked;
        self.call
    }

    /// The call is over or should end early. Answers with the token that tells it so, to be cancelled outside of the lock.
    pub(crate) fn end_call(&mut self) -> Option<CancellationToken> {
        match std::mem::replace(&mut self.cancel, Cancel::Fired) {
            Cancel::Given(token) => Some(token),
            Cancel::Unasked | Cancel::Fired => None,
        }
    }
}

impl Cell {
    /// Nothing rings through before the actor is started: its first turn comes by itself.
    pub(crate) fn new(uid: PodUid, queues: Arc<[RunQueue]>) -> Self {
        Cell {
            slot: Mutex::new(Slot::Unborn),
            signals: AtomicU8::new(QUEUED | RUNG),
            holds: AtomicU32::new(0),
            front: Front {
                uid,
                shown: AtomicU8::new(Published::NONE.to_word()),
                since: AtomicU64::new(0),
                worker: AtomicU64::new(WorkerId::NONE.to_word()),
                queues,
            },
        }
    }

    pub(crate) fn uid(&self) -> &PodUid {
        &self.front.uid
    }

    /// What the record showed after the last move that is over.
    pub(crate) fn shown(&self) -> Published {
        Published::from_word(self.front.shown.load(Ordering::Acquire))
    }

    /// The same, and when the pod came to where it stands, less up to 8 ns; `None` if it moves just now.
    pub(crate) fn shown_since(&self) -> Option<(Published, Time)> {
        let shown = self.shown();
        let since = self.front.since.load(Ordering::Acquire);
        let (nanos, stage) = (since & !STAGE, since & STAGE);
        (stage == shown.stage()).then(|| (shown, Time::from_nanos(nanos)))
    }

    /// Shows what the record became. To be called before the lock is given back, so that whoever asks after a move sees it.
    pub(crate) fn show(&self, locked: &MutexGuard<'_, Slot>) {
        self.show_as(locked, Published::of);
    }

    /// The same after a move in which the record kept its pod.
    pub(crate) fn show_move(&self, locked: &MutexGuard<'_, Slot>) {
        self.show_as(locked, |record| {
            let shown = self.shown().and_then(record);
            debug_assert_eq!(shown, Published::of(record), "a move gave the record another pod");
            shown
        });
    }

    fn show_as(&self, locked: &MutexGuard<'_, Slot>, shown: impl FnOnce(&Record) -> Published) {
        let (shown, since) = match &**locked {
            Slot::Live(live) => (shown(&live.record), live.record.last_move()),
            Slot::Unborn | Slot::Forgotten => (Published::NONE, Time::ZERO),
        };
        let before = self.shown();
        if before == shown {
            return;
        }
        if before.stage() != shown.stage() {
            self.front.since.store(since.as_nanos() & !STAGE | shown.stage(), Ordering::Release);
        }
        self.front.shown.store(shown.to_word(), Ordering::Release);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock()
    }

    /// Asks the record something; `None` if there is none.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&Record) -> T) -> Option<T> {
        match &*self.lock() {
            Slot::Live(live) => Some(question(&live.record)),
            Slot::Unborn | Slot::Forgotten => None,
        }
    }

    /// Whether there is a record of which something is true.
    pub(crate) fn look(&self, question: impl FnOnce(&Live) -> bool) -> bool {
        match &*self.lock() {
            Slot::Live(live) => question(live),
            Slot::Unborn | Slot::Forgotten => false,
        }
    }

    /// Gives the actor a turn unless somebody rang already and it has not looked yet. While its hook runs, one ring makes
    /// one needless turn and the rest of a burst none.
    pub(crate) fn ring(&self) {
        if self.signals.fetch_or(RUNG, Ordering::AcqRel) & RUNG == 0 {
            self.enqueue();
        }
    }

    /// Gives the actor a turn unless it has one coming.
    fn enqueue(&self) {
        if self.signals.fetch_or(QUEUED, Ordering::AcqRel) & QUEUED == 0 {
            WorkerId::from_word(self.front.worker.load(Ordering::Acquire)).schedule(&self.front.queues);
        }
    }

    /// The actor's turn begins: whoever wants it from now on puts it into the queue again. With `looks` it is about to look
    /// at its record too.
    ///
    /// Whoever rings after this swap puts the actor into the queue. Whoever rang before it is read by it, so that the look
    /// which follows sees what it rang for. A plain store would not do: it orders nothing before the look.
    pub(super) fn begin_turn(&self, looks: bool) {
        let heard = if looks { QUEUED | RUNG } else { QUEUED };
        self.signals.fetch_and(!heard, Ordering::AcqRel);
    }

    /// The actor is about to look: a ring from now on gives it another turn.
    pub(super) fn listen(&self) {
        self.signals.fetch_and(!RUNG, Ordering::AcqRel);
    }

    /// The actor is that worker from now on. To be told before the first turn of it.
    pub(super) fn runs_as(&self, worker: WorkerId) {
        self.front.worker.store(worker.to_word(), Ordering::Release);
    }

    pub(crate) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn release(&self) {
        if self.holds.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.ring();
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(Ordering::Acquire) > 0
    }
}

/// What a hook wakes: the actor has its turn and polls it.
impl ArcWake for Cell {
    fn wake_by_ref(cell: &Arc<Self>) {
        cell.enqueue();
    }
}

impl CallTokens for Cell {
    fn token(&self, call: u32) -> CancellationToken {
        if let Slot::Live(live) = &mut *self.lock()
            && live.call == call
        {
            match &live.cancel {
                Cancel::Given(token) => return token.clone(),
                Cancel::Unasked => {
                    let token = CancellationToken::new();
                    live.cancel = Cancel::Given(token.clone());
                    return token;
                }
                Cancel::Fired => {}
            }
        }
        let fired = CancellationToken::new();
        fired.cancel();
        fired
    }

    fn has_fired(&self, call: u32) -> bool {
        match &*self.lock() {
            Slot::Live(live) if live.call == call => match &live.cancel {
                Cancel::Unasked => false,
                Cancel::Given(token) => token.is_cancelled(),
                Cancel::Fired => true,
            },
            Slot::Live(_) | Slot::Unborn | Slot::Forgotten => true,
        }
    }
}
