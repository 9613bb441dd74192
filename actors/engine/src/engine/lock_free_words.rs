//! The lock-free words of a [cell](super::cell): the signals to its worker, its holds, the worker's address, and the state
//! that the record publishes to readers that do not take the cell's lock.
//!
//! The loom tests compile this file a second time over loom's atomics. So it takes its atomics from `super::primitives`, and
//! everything else it uses is a plain value.

use super::primitives::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::pod_worker::published::Published;
use crate::time::Time;

/// The worker has a turn coming: it is in its thread's run queue, or it has not had its first turn yet.
const QUEUED: u8 = 1;
/// The worker was woken and has not inspected its record since. Later wake-ups of a burst need no further turn.
const WOKEN: u8 = 2;

/// The signals to one worker.
///
/// Every method is a read-modify-write, also those that only clear a bit. A plain store would not do: it reads nothing, so the
/// inspection that follows it could miss the change that a wake-up announced.
#[derive(Debug)]
pub(super) struct WakeWord(AtomicU8);

impl WakeWord {
    /// The word of a worker that has not started. A wake-up does not queue it, because its scheduler gives it the first
    /// turn unasked.
    pub(super) fn new() -> Self {
        WakeWord(AtomicU8::new(QUEUED | WOKEN))
    }

    /// Announces a change that the worker has to inspect. True if the caller has to queue the worker.
    ///
    /// While a hook call is in progress the worker does not inspect its record, so the first wake-up costs one needless turn
    /// and the others of a burst cost none.
    #[must_use]
    pub(super) fn wake(&self) -> bool {
        self.0.fetch_or(WOKEN, Ordering::AcqRel) & WOKEN == 0 && self.enqueue()
    }

    /// Requests a turn without announcing a change to the record. True if the caller has to queue the worker.
    #[must_use]
    pub(super) fn enqueue(&self) -> bool {
        self.0.fetch_or(QUEUED, Ordering::AcqRel) & QUEUED == 0
    }

    /// The worker begins a turn: a request for a turn from now on queues it again. With `inspects`, the worker is also about
    /// to inspect its record.
    pub(super) fn begin_turn(&self, inspects: bool) {
        let cleared = if inspects { QUEUED | WOKEN } else { QUEUED };
        self.0.fetch_and(!cleared, Ordering::AcqRel);
    }

    /// The worker is about to inspect its record: a wake-up from now on gives it another turn.
    pub(super) fn begin_inspection(&self) {
        self.0.fetch_and(!WOKEN, Ordering::AcqRel);
    }
}

/// How many holders keep a worker from taking work.
#[derive(Debug)]
pub(super) struct HoldCount(AtomicU32);

impl HoldCount {
    pub(super) fn new() -> Self {
        HoldCount(AtomicU32::new(0))
    }

    pub(super) fn hold(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Drops one hold. True if it was the last one, so that the caller has to wake the worker.
    #[must_use]
    pub(super) fn release(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(super) fn is_held(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// Where a worker runs: the number of its thread's run queue, and its index in that thread's table of workers.
///
/// An address that was read before the worker moved to another thread does no harm. The worker that has the index by then gets
/// a turn in which it finds nothing to do. The worker that moved inspects its record in its first turn at the new address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkerId(u64);

impl WorkerId {
    /// The address of a worker that runs nowhere. No engine has that many run queues.
    pub(super) const NONE: WorkerId = WorkerId(u64::MAX);

    pub(super) fn new(queue: u32, index: u32) -> Self {
        WorkerId(u64::from(queue) << 32 | u64::from(index))
    }

    pub(super) fn queue(self) -> usize {
        (self.0 >> 32) as usize
    }

    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }
}

/// The [`WorkerId`] of a cell's worker.
#[derive(Debug)]
pub(super) struct WorkerWord(AtomicU64);

impl WorkerWord {
    pub(super) fn new() -> Self {
        WorkerWord(AtomicU64::new(WorkerId::NONE.0))
    }

    pub(super) fn load(&self) -> WorkerId {
        WorkerId(self.0.load(Ordering::Acquire))
    }

    pub(super) fn store(&self, id: WorkerId) {
        self.0.store(id.0, Ordering::Release);
    }
}

/// The lowest bits of the time of the last transition are replaced by [`Published::stage`].
const STAGE: u64 = 7;

/// What a record publishes: its [`Published`] word and the time of its last transition.
///
/// The two are separate atomics. The time carries the stage that it belongs to, so a reader never pairs the word of one
/// transition with the time of another. Only the holder of the cell's lock stores.
#[derive(Debug)]
pub(super) struct PublishedWord {
    published: AtomicU8,
    since: AtomicU64,
}

impl PublishedWord {
    pub(super) fn new() -> Self {
        PublishedWord { published: AtomicU8::new(Published::NONE.to_word()), since: AtomicU64::new(0) }
    }

    pub(super) fn load(&self) -> Published {
        Published::from_word(self.published.load(Ordering::Acquire))
    }

    /// The published word and the time of the last transition, rounded down to 8 ns. `None` while a transition is being
    /// published.
    pub(super) fn load_with_time(&self) -> Option<(Published, Time)> {
        let published = self.load();
        let since = self.since.load(Ordering::Acquire);
        let (nanos, stage) = (since & !STAGE, since & STAGE);
        (stage == published.stage()).then(|| (published, Time::from_nanos(nanos)))
    }

    /// Publishes a word that differs from the one of `before`. The time is stored first: a reader that sees the new word also
    /// sees its time.
    pub(super) fn store(&self, before: Published, published: Published, since: Time) {
        if before.stage() != published.stage() {
            self.since.store(since.as_nanos() & !STAGE | published.stage(), Ordering::Release);
        }
        self.published.store(published.to_word(), Ordering::Release);
    }
}
