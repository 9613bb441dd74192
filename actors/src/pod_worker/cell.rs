//! The place where one record lives: its lock, and the bell that wakes its actor.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::state::Record;
use super::tape::Tape;
use crate::ids::{FullName, PodUid};

/// One pod's cell. Nothing awaits under its lock, and who holds it touches no other cell and not the map of cells.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) uid: PodUid,
    slot: Mutex<Slot>,
    /// Whether the actor was woken and has not looked yet: one wake-up serves a burst.
    rung: AtomicBool,
    /// How many want the actor to take no work.
    holds: AtomicU32,
    bell: AtomicWaker,
}

/// What is in a cell.
#[derive(Debug)]
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
    pub(crate) tape: Tape,
    /// The full name a static pod queued for: the one it came with, should it be renamed later.
    pub(crate) queued: Option<FullName>,
    /// Cancels the running hook call.
    pub(crate) cancel: Option<CancellationToken>,
}

impl Cell {
    pub(crate) fn new(uid: PodUid) -> Self {
        Cell {
            uid,
            slot: Mutex::new(Slot::Unborn),
            rung: AtomicBool::new(false),
            holds: AtomicU32::new(0),
            bell: AtomicWaker::new(),
        }
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

    /// Wakes the actor unless it was woken already and has not looked yet.
    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.bell.wake();
        }
    }

    /// The actor is about to look: a ring from now on wakes it again.
    pub(crate) fn listen(&self, waker: &Waker) {
        self.bell.register(waker);
        // Whoever rings after this swap finds the waker that was just registered. Whoever rang before it is read by it, so
        // that the look which follows sees what it rang for. A plain store would not do: it orders nothing before the look.
        self.rung.swap(false, Ordering::AcqRel);
    }

    /// The actor waits for its hook and looks at nothing else; it only lets itself be woken by [`shut`](Self::shut).
    pub(crate) fn doze(&self, waker: &Waker) {
        self.bell.register(waker);
    }

    /// Wakes the actor whatever it does, so that it sees that the engine is gone.
    pub(crate) fn shut(&self) {
        self.bell.wake();
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
