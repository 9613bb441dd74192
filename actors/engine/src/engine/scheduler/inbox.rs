//! The inbox of a thread's run queue: a lock, and a flag for a scheduler that spins on it without the lock.
//!
//! The loom tests compile this file a second time over loom's atomics and lock, which it takes from `super::primitives`.

use std::task::Waker;

use super::primitives::{AtomicBool, Mutex, Ordering};

/// Turns of workers, and requests `S` to start a worker. Any thread adds to it; one scheduler takes from it.
#[derive(Debug)]
pub(super) struct Inbox<S> {
    content: Mutex<Content<S>>,
    /// Whether something was pushed since the scheduler took everything. Stored only under the lock.
    filled: AtomicBool,
}

/// The lock is held only for one push, or for taking everything.
#[derive(Debug)]
struct Content<S> {
    /// The workers that have a turn coming, by their index in the scheduler's table.
    turns: Vec<u32>,
    starts: Vec<S>,
    /// The scheduler's waker, while the scheduler is parked.
    parked: Option<Waker>,
    closed: bool,
}

impl<S> Content<S> {
    const fn new() -> Self {
        Content { turns: Vec::new(), starts: Vec::new(), parked: None, closed: false }
    }
}

impl<S> Inbox<S> {
    pub(super) fn new() -> Self {
        Inbox { content: Mutex::new(Content::new()), filled: AtomicBool::new(false) }
    }

    /// Gives a worker a turn.
    pub(super) fn push_turn(&self, index: u32) {
        self.push(|content| content.turns.push(index));
    }

    /// Requests a worker. False if the inbox is closed.
    pub(super) fn push_start(&self, start: S) -> bool {
        self.push(|content| content.starts.push(start))
    }

    /// Has the scheduler check whether its engine is closing.
    pub(super) fn wake(&self) {
        self.push(|_| {});
    }

    fn push(&self, push: impl FnOnce(&mut Content<S>)) -> bool {
        let mut content = self.content.lock();
        if content.closed {
            return false;
        }
        push(&mut content);
        self.filled.store(true, Ordering::Release);
        let parked = content.parked.take();
        drop(content);
        if let Some(parked) = parked {
            parked.wake();
        }
        true
    }

    /// Whether there may be something to take.
    pub(super) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Appends the workers that have a turn coming, and returns the requests for workers. `None` if nothing was pushed.
    pub(super) fn take(&self, turns: &mut Vec<u32>) -> Option<Vec<S>> {
        if !self.is_filled() {
            return None;
        }
        let mut content = self.content.lock();
        self.filled.store(false, Ordering::Release);
        if turns.is_empty() {
            // Both buffers are used again.
            std::mem::swap(&mut content.turns, turns);
        } else {
            turns.append(&mut content.turns);
        }
        Some(std::mem::take(&mut content.starts))
    }

    /// Parks the scheduler: the next push wakes it. False if something was pushed already.
    pub(super) fn park(&self, waker: &Waker) -> bool {
        let mut content = self.content.lock();
        if self.is_filled() {
            return false;
        }
        content.parked = Some(waker.clone());
        true
    }

    /// Refuses every later push, and returns the requests that were not taken.
    pub(super) fn close(&self) -> Vec<S> {
        std::mem::replace(&mut *self.content.lock(), Content { closed: true, ..Content::new() }).starts
    }
}
