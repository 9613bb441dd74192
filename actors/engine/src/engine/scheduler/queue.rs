//! The run queue of one thread: its inbox for other threads, and the receiver of its scheduler.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::task::Waker;

use super::Scheduler;
use super::inbox::Inbox;
use crate::engine::EngineInner;
use crate::engine::cell::Cell;
use crate::engine::lock_free_words::WorkerId;

/// The run queue of one thread. A wake-up of one of the thread's workers, and a request for a new worker on the thread, are
/// pushed into this queue. It has cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct RunQueue(Inbox<WorkerStart>);

/// A request to start a worker.
#[derive(Debug)]
pub(super) struct WorkerStart {
    pub(super) cell: Arc<Cell>,
    /// How many threads have refused the request.
    choice: usize,
}

impl Default for RunQueue {
    fn default() -> Self {
        RunQueue(Inbox::new())
    }
}

impl RunQueue {
    /// Gives a worker a turn. Does nothing if the worker runs nowhere.
    pub(in crate::engine) fn schedule(queues: &[RunQueue], worker: WorkerId) {
        if let Some(queue) = queues.get(worker.queue()) {
            queue.0.push_turn(worker.index());
        }
    }

    /// Requests a worker for a pod that has none. False if the thread has ended.
    pub(in crate::engine) fn start(&self, cell: &Arc<Cell>, choice: usize) -> bool {
        self.0.push_start(WorkerStart { cell: cell.clone(), choice })
    }

    /// Has the scheduler check whether its engine is closing.
    pub(in crate::engine) fn wake(&self) {
        self.0.wake();
    }

    /// Whether the inbox may contain something.
    pub(super) fn is_filled(&self) -> bool {
        self.0.is_filled()
    }
}

/// The receiving end of a run queue. Its scheduler owns it.
///
/// If it is dropped before the engine closes, its thread has ended. It then closes the queue and requests workers on other threads
/// for the pods whose requests it did not take.
pub(in crate::engine) struct RunQueueReceiver {
    engine: Weak<EngineInner>,
    queues: Arc<[RunQueue]>,
    number: u32,
    /// Whether the scheduler may spin on the queue before it parks.
    pub(super) may_spin: bool,
}

impl RunQueueReceiver {
    /// The receiver of queue `number`.
    pub(in crate::engine) fn new(
        engine: Weak<EngineInner>,
        queues: Arc<[RunQueue]>,
        number: u32,
        may_spin: bool,
    ) -> Self {
        RunQueueReceiver { engine, queues, number, may_spin }
    }

    /// Runs the scheduler of the queue's workers, as a task of the thread that runs the workers.
    pub(in crate::engine) fn run(self) -> impl Future<Output = ()> {
        Scheduler::new(self)
    }

    /// The engine; `None` if it is closing or was dropped.
    pub(super) fn engine(&self) -> Option<Arc<EngineInner>> {
        self.engine.upgrade().filter(|engine| !engine.is_closing())
    }

    pub(super) fn queue(&self) -> &RunQueue {
        &self.queues[self.number as usize]
    }

    /// The address of the worker at an index of this scheduler's table.
    pub(super) fn worker_id(&self, index: u32) -> WorkerId {
        WorkerId::new(self.number, index)
    }

    /// See [`Inbox::take`].
    pub(super) fn take(&self, turns: &mut Vec<u32>) -> Option<Vec<WorkerStart>> {
        self.queue().0.take(turns)
    }

    /// See [`Inbox::park`].
    pub(super) fn park(&self, waker: &Waker) -> bool {
        self.queue().0.park(waker)
    }
}

impl Drop for RunQueueReceiver {
    fn drop(&mut self) {
        let refused = self.queue().0.close();
        if let Some(engine) = self.engine() {
            for WorkerStart { cell, choice } in refused {
                engine.start_worker(&cell, choice + 1);
            }
        }
    }
}
