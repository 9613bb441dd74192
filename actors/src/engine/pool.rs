//! The arbiters that pod workers run on, each with a run queue.

use std::hash::BuildHasher;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, mpsc};
use std::thread;

use actix::{Arbiter, ArbiterHandle, System};

use super::Inner;
use super::config::Threads;
use crate::engine::cell::Cell;
use crate::engine::scheduler::{Receiver, RunQueue};

/// The engine's threads cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartEngineError {
    /// The system refused a thread.
    #[error("cannot start the engine's thread")]
    Thread(#[source] io::Error),
    /// [`Threads::Current`] was asked for where no actix arbiter runs.
    #[error("no actix arbiter runs on this thread: start the engine inside one, or use `Threads::Own`")]
    NoArbiter,
    /// The thread ended before it was ready.
    #[error("the engine's thread ended before it was ready")]
    Died,
}

#[derive(Debug)]
pub(super) struct Pool {
    arbiters: Vec<ArbiterHandle>,
    /// One for each arbiter.
    queues: Arc<[RunQueue]>,
    /// The system to stop with the engine; absent where the engine is a guest on somebody's arbiter.
    system: Option<System>,
}

impl Pool {
    pub(super) fn start(threads: Threads) -> Result<Self, StartEngineError> {
        match threads {
            Threads::Current => {
                let arbiter = Arbiter::try_current().ok_or(StartEngineError::NoArbiter)?;
                Ok(Pool::of(vec![arbiter], None))
            }
            Threads::Own(count) => Pool::start_own(count),
        }
    }

    fn of(arbiters: Vec<ArbiterHandle>, system: Option<System>) -> Self {
        let queues = arbiters.iter().map(|_| RunQueue::default()).collect();
        Pool { arbiters, queues, system }
    }

    fn start_own(count: NonZeroUsize) -> Result<Self, StartEngineError> {
        let (ready, started) = mpsc::channel();
        thread::Builder::new()
            .name("podwright".to_owned())
            .spawn(move || {
                let runner = System::new();
                let arbiters = runner.block_on(async {
                    // The system's thread is the first arbiter, so that `count` is the number of threads.
                    let mut arbiters = vec![Arbiter::current()];
                    arbiters.extend((1..count.get()).map(|_| Arbiter::new().handle()));
                    arbiters
                });
                if ready.send(Pool::of(arbiters, Some(System::current()))).is_ok()
                    && let Err(error) = runner.run()
                {
                    tracing::error!(%error, "engine thread failed");
                }
            })
            .map_err(StartEngineError::Thread)?;
        started.recv().map_err(|_| StartEngineError::Died)
    }

    /// Starts a scheduler on each arbiter.
    pub(super) fn begin(&self, engine: &Arc<Inner>) {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        // A thread that watches its queue takes a core, which must not be the one of whoever fills the queue.
        let may_watch = self.system.is_some() && self.arbiters.len() < cores;
        for (number, arbiter) in (0..).zip(&self.arbiters) {
            let receiver = Receiver::new(Arc::downgrade(engine), self.queues.clone(), number, may_watch);
            arbiter.spawn_fn(move || drop(actix::spawn(receiver.run())));
        }
    }

    pub(super) fn queues(&self) -> &Arc<[RunQueue]> {
        &self.queues
    }

    /// Asks the thread that is the pod's n-th choice for a worker, or the first after it that is still there. False if there
    /// is none.
    pub(super) fn start_worker(&self, cell: &Arc<Cell>, choice: usize) -> bool {
        let count = self.queues.len();
        let hash = foldhash::fast::FixedState::with_seed(0).hash_one(cell.uid());
        let first = usize::try_from(hash % count.max(1) as u64).unwrap_or(0);
        (choice..count).any(|choice| self.queues[(first + choice) % count].start(cell, choice))
    }

    pub(super) fn stop(&self) {
        // On a thread that is not ours the scheduler has to see for itself that its engine is gone.
        self.queues.iter().for_each(RunQueue::wake);
        if let Some(system) = &self.system {
            system.stop();
        }
    }
}
