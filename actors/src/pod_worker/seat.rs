//! The place of one worker: it stays taken until the worker ends, whatever happens to the worker's future.

use std::sync::Arc;

use super::cell::Cell;
use crate::engine::{Inner, WeakInner};

/// Travels with a worker, from the offer to a thread until the worker's end. Dropped before that, it calls for another
/// one: on the next thread if this one never began, and from the record if it did.
pub(crate) struct Seat {
    engine: WeakInner,
    cell: Arc<Cell>,
    stage: Stage,
}

enum Stage {
    /// Offered to the pod's first, second, ... choice of a thread.
    Offered(usize),
    Working,
    Ended,
}

impl Seat {
    pub(crate) fn offered(engine: WeakInner, cell: Arc<Cell>, choice: usize) -> Self {
        Seat { engine, cell, stage: Stage::Offered(choice) }
    }

    /// The thread took it.
    pub(super) fn begin(&mut self) {
        self.stage = Stage::Working;
    }

    /// The worker came to its end.
    pub(super) fn end(&mut self) {
        self.stage = Stage::Ended;
    }

    pub(super) fn cell(&self) -> &Arc<Cell> {
        &self.cell
    }

    /// The engine, unless it is gone or going.
    pub(super) fn engine(&self) -> Option<Arc<Inner>> {
        self.engine.upgrade().filter(|engine| !engine.is_closing())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(engine) = self.engine() else { return };
        match self.stage {
            Stage::Offered(choice) => engine.employ(&self.cell, choice + 1),
            Stage::Working => engine.replace_worker(&self.cell),
            Stage::Ended => {}
        }
    }
}
