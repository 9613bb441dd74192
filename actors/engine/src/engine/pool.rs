//! The actix arbiters that the pod workers run on, each with a run queue and a scheduler.

use std::hash::BuildHasher;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, mpsc};
use std::thread;

use actix::{Arbiter, ArbiterHandle, System};

use super::EngineInner;
use super::config::Threads;
use crate::engine::cell::Cell;
use crate::engine::scheduler::{RunQueue, RunQueueReceiver};

/// The engine's threads could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartEngineError {
    /// The operating system refused a thread.
    #[error("cannot start the engine's thread")]
    Thread(#[source] io::Error),
    /// [`Threads::Current`] was requested on a thread without an actix arbiter.
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
    /// The actix system that ends with the engine; absent if the engine runs on an arbiter of its host.
    system: Option<System>,
}

impl Pool {
    pub(super) fn start(threads: Threads) -> Result<Self, StartEngineError> {
        match threads {
            Threads::Current => {
                let arbiter = Arbiter::try_current().ok_or(StartEngineError::NoArbiter)?;
                Ok(Pool::new(vec![arbiter], None))
            }
            Threads::Own(count) => Pool::start_threads(count),
        }
    }

    fn new(arbiters: Vec<ArbiterHandle>, system: Option<System>) -> Self {
        let queues = arbiters.iter().map(|_| RunQueue::default()).collect();
        Pool { arbiters, queues, system }
    }

    fn start_threads(count: NonZeroUsize) -> Result<Self, StartEngineError> {
        let (ready, started) = mpsc::channel();
        thread::Builder::new()
            .name("podwright".to_owned())
            .spawn(move || {
                let runner = System::new();
                let arbiters = runner.block_on(async {
                    // The system's own thread is the first arbiter, so that the engine has exactly `count` threads.
                    let mut arbiters = vec![Arbiter::current()];
                    arbiters.extend((1..count.get()).map(|_| Arbiter::new().handle()));
                    arbiters
                });
                if ready.send(Pool::new(arbiters, Some(System::current()))).is_ok()
                    && let Err(error) = runner.run()
                {
                    tracing::error!(%error, "engine thread failed");
                }
            })
            .map_err(StartEngineError::Thread)?;
        started.recv().map_err(|_| StartEngineError::Died)
    }

    /// Starts a scheduler on each arbiter.
    pub(super) fn start_schedulers(&self, engine: &Arc<EngineInner>) {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        // A thread that spins on its run queue occupies a core. One core must be left to the threads that fill the queue.
        let may_spin = self.system.is_some() && self.arbiters.len() < cores;
        for (number, arbiter) in (0..).zip(&self.arbiters) {
            let receiver = RunQueueReceiver::new(Arc::downgrade(engine), self.queues.clone(), number, may_spin);
            arbiter.spawn_fn(move || drop(actix::spawn(receiver.run())));
        }
    }

    pub(super) fn queues(&self) -> &Arc<[RunQueue]> {
        &self.queues
    }

    /// Requests a worker for a pod from the thread of the pod's `choice`-th choice, or from the next thread that still runs. The
    /// first choice depends only on the UID. False if no thread runs.
    pub(super) fn start_worker(&self, cell: &Arc<Cell>, choice: usize) -> bool {
        let count = self.queues.len();
        let hash = foldhash::fast::FixedState::with_seed(0).hash_one(cell.uid());
        let first = usize::try_from(hash % count.max(1) as u64).unwrap_or(0);
        (choice..count).any(|choice| self.queues[(first + choice) % count].start(cell, choice))
    }

    pub(super) fn stop(&self) {
        // A scheduler on the host's arbiter does not end with a system of the engine's. It is woken to see that its engine closes.
        self.queues.iter().for_each(RunQueue::wake);
        if let Some(system) = &self.system {
            system.stop();
        }
    }
}
