//! A thread's run queue as others see it: workers that have a turn coming, and pods that need a worker.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use super::Scheduler;
use crate::engine::cell::Cell;
use crate::engine::{Inner, WeakInner};

/// The run queue of one thread. Whoever wants something of the thread's workers puts it in here.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct RunQueue {
    inbox: Mutex<Inbox>,
    /// Whether there is something in the inbox, for who watches it without its lock. True whenever the inbox is not empty,
    /// but for the moment in which its receiver is about to empty it.
    filled: AtomicBool,
}

/// The lock is held for the time of a push or of taking all.
#[derive(Debug, Default)]
struct Inbox {
    /// Workers that have a turn coming, each by its place in the scheduler's table.
    ready: Vec<u32>,
    /// Pods without a worker.
    starts: Vec<Start>,
    /// The scheduler's own waker, while it sleeps.
    sleeper: Option<Waker>,
    closed: bool,
}

/// A worker to be started.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) cell: Arc<Cell>,
    /// How many threads were asked before.
    choice: usize,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.starts.is_empty()
    }
}

/// Where a worker runs, as one number: the run queue in the upper half, the place in its scheduler's table in the lower.
///
/// A number that somebody read before the worker went elsewhere does no harm. The worker that has the place by then gets a
/// turn too many, which it takes for one that others forestalled; and the one that was meant has its first turn at the new
/// place by itself, and sees there what it was to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct WorkerId(u64);

impl WorkerId {
    /// Of a worker that runs nowhere.
    pub(in crate::engine) const NONE: WorkerId = WorkerId(u64::MAX);

    fn new(queue: u32, place: u32) -> Self {
        WorkerId(u64::from(queue) << 32 | u64::from(place))
    }

    /// As it is stored.
    pub(in crate::engine) const fn to_word(self) -> u64 {
        self.0
    }

    /// From how it was stored.
    pub(in crate::engine) const fn from_word(word: u64) -> Self {
        WorkerId(word)
    }

    /// Gives the worker there a turn.
    pub(in crate::engine) fn schedule(self, queues: &[RunQueue]) {
        let (queue, place) = ((self.0 >> 32) as usize, self.0 as u32);
        if let Some(queue) = queues.get(queue) {
            queue.put(|inbox| inbox.ready.push(place));
        }
    }
}

impl RunQueue {
    fn put(&self, put: impl FnOnce(&mut Inbox)) {
        let mut inbox = self.inbox.lock();
        if inbox.closed {
            return;
        }
        if inbox.is_empty() {
            self.filled.store(true, Ordering::Release);
        }
        put(&mut inbox);
        let sleeper = inbox.sleeper.take();
        drop(inbox);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    /// Asks for a worker for a pod that has none. False if the thread is no more.
    pub(crate) fn start(&self, cell: &Arc<Cell>, choice: usize) -> bool {
        let mut taken = false;
        self.put(|inbox| {
            taken = true;
            inbox.starts.push(Start { cell: cell.clone(), choice });
        });
        taken
    }

    /// Has the scheduler look whether its engine is still there.
    pub(crate) fn wake(&self) {
        self.put(|_| {});
    }

    /// Whether the inbox may have something.
    pub(super) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }
}

/// The end of a run queue that takes out, held by its scheduler. Dropped before the engine's end, because the thread ends, it
/// closes the queue and sees to it that the pods in it get workers elsewhere.
pub(crate) struct Receiver {
    engine: WeakInner,
    queues: Arc<[RunQueue]>,
    number: u32,
    /// Whether to watch the queue for a moment before going to sleep.
    pub(super) may_watch: bool,
}

impl Receiver {
    /// Of queue `number`.
    pub(crate) fn new(engine: WeakInner, queues: Arc<[RunQueue]>, number: u32, may_watch: bool) -> Self {
        Receiver { engine, queues, number, may_watch }
    }

    /// Schedules the workers of the queue, as a task on the thread that shall run them.
    pub(crate) fn run(self) -> impl Future<Output = ()> {
        Scheduler::new(self)
    }

    /// The engine, unless it is gone or going.
    pub(super) fn engine(&self) -> Option<Arc<Inner>> {
        self.engine.upgrade().filter(|engine| !engine.is_closing())
    }

    pub(super) fn queue(&self) -> &RunQueue {
        &self.queues[self.number as usize]
    }

    /// The number of a worker at a place of this scheduler's table.
    pub(super) fn id(&self, place: u32) -> WorkerId {
        WorkerId::new(self.number, place)
    }

    /// Appends the workers that have a turn coming, and answers with those to be started. `None` if there was nothing.
    pub(super) fn take(&self, ready: &mut Vec<u32>) -> Option<Vec<Start>> {
        let queue = self.queue();
        if !queue.filled.swap(false, Ordering::AcqRel) {
            return None;
        }
        let mut inbox = queue.inbox.lock();
        match ready.is_empty() {
            // So that both buffers are used again.
            true => std::mem::swap(&mut inbox.ready, ready),
            false => ready.append(&mut inbox.ready),
        }
        Some(std::mem::take(&mut inbox.starts))
    }

    /// Lets the scheduler be woken by what comes. False if something came already.
    pub(super) fn sleep(&self, waker: &Waker) -> bool {
        let mut inbox = self.queue().inbox.lock();
        if !inbox.is_empty() {
            return false;
        }
        inbox.sleeper = Some(waker.clone());
        true
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let left = std::mem::replace(&mut *self.queue().inbox.lock(), Inbox { closed: true, ..Inbox::default() });
        if let Some(engine) = self.engine() {
            for Start { cell, choice } in left.starts {
                engine.start_worker(&cell, choice + 1);
            }
        }
    }
}
