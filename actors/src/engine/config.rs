//! The settings of an engine.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::pod_worker::step::ERROR_BACKOFF;

/// The settings of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// The time after a successful sync until the pod is synced again, before jitter of up to one half. Default: 60 s (upstream
    /// `syncFrequency`).
    pub resync: Duration,
    /// The time after a failed hook call until the hook is called again, before jitter of up to one half. Default: 10 s
    /// (upstream `backOffPeriod`).
    pub error_backoff: Duration,
    /// The threads that the pod workers run on.
    pub threads: Threads,
    /// The seed of the jitter, for runs that repeat; random if absent.
    pub seed: Option<u64>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            resync: Duration::from_secs(60),
            error_backoff: ERROR_BACKOFF,
            threads: Threads::default(),
            seed: None,
        }
    }
}

/// The threads that the pod workers run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// That many threads, started and ended by the engine.
    Own(NonZeroUsize),
    /// The thread of the actix arbiter that starts the engine, which fails on a thread without one. All workers share that thread,
    /// and follow its tokio clock if that clock is paused.
    Current,
}

impl Default for Threads {
    /// One thread less than there are cores, which leaves a core to the callers of the engine; at least one thread.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Threads::Own(NonZeroUsize::new(cores.saturating_sub(1)).unwrap_or(NonZeroUsize::MIN))
    }
}
