//! The settings of an engine.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::pod_worker::step::ERROR_BACKOFF;

/// The settings of an engine. [`EngineConfig::default`] has the kubelet's values, and each setting has a setter.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct EngineConfig {
    /// The time after a successful sync until the pod is synced again, before jitter.
    pub resync: Duration,
    pub(crate) error_backoff: Duration,
    pub(crate) threads: Threads,
    pub(crate) seed: Option<u64>,
}

impl EngineConfig {
    /// The time after a successful sync until the pod is synced again, before jitter of up to one half. By default 60 s
    /// (upstream `syncFrequency`).
    pub fn resync(mut self, period: Duration) -> Self {
        self.resync = period;
        self
    }

    /// The time after a failed hook call until the hook is called again, and the time after which a static pod that waits for its
    /// full name is tried again, before jitter of up to one half. By default 10 s (upstream `backOffPeriod`).
    pub fn error_backoff(mut self, time: Duration) -> Self {
        self.error_backoff = time;
        self
    }

    /// The threads that the pod workers run on. By default one thread less than there are cores.
    pub fn threads(mut self, threads: Threads) -> Self {
        self.threads = threads;
        self
    }

    /// The seed of the jitter, for runs that repeat. By default it is random.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }
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
