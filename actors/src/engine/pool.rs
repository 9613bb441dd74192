//! The arbiters that pod workers run on.

use std::hash::BuildHasher;
use std::io;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::thread;

use actix::{Arbiter, ArbiterHandle, System};

use super::config::Threads;
use crate::ids::PodUid;

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
    /// The system to stop with the engine; absent where the engine is a guest on somebody's arbiter.
    system: Option<System>,
}

impl Pool {
    pub(super) fn start(threads: Threads) -> Result<Self, StartEngineError> {
        match threads {
            Threads::Current => {
                let arbiter = Arbiter::try_current().ok_or(StartEngineError::NoArbiter)?;
                Ok(Pool { arbiters: vec![arbiter], system: None })
            }
            Threads::Own(count) => Pool::start_own(count),
        }
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
                if ready.send(Pool { arbiters, system: Some(System::current()) }).is_ok()
                    && let Err(error) = runner.run()
                {
                    tracing::error!(%error, "engine thread failed");
                }
            })
            .map_err(StartEngineError::Thread)?;
        started.recv().map_err(|_| StartEngineError::Died)
    }

    /// How many choices a pod has.
    pub(super) fn choices(&self) -> usize {
        self.arbiters.len()
    }

    /// Runs something on the arbiter that is a pod's n-th choice, if that one lives. If not, it is dropped.
    pub(super) fn spawn(&self, uid: &PodUid, choice: usize, work: impl FnOnce() + Send + 'static) {
        let count = self.arbiters.len();
        let hash = foldhash::fast::FixedState::with_seed(0).hash_one(uid);
        let first = usize::try_from(hash % count.max(1) as u64).unwrap_or(0);
        self.arbiters[(first + choice) % count].spawn_fn(work);
    }

    pub(super) fn stop(&self) {
        if let Some(system) = &self.system {
            system.stop();
        }
    }
}
