//! Settings of an engine.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::pod_worker::step::ERROR_BACKOFF;

/// Settings of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// How long after a success a pod is looked at again, before jitter of up to a half. Default: 60 s (upstream
    /// `syncFrequency`).
    pub resync: Duration,
    /// How long after an error a pod is tried again, before jitter of up to a half. Default: 10 s.
    pub error_backoff: Duration,
    /// Where the workers run.
    pub threads: Threads,
    /// Seed of the jitter, for runs that can be repeated; random if absent.
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

/// Where the workers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// On threads of the engine's own.
    Own(NonZeroUsize),
    /// On the actix arbiter that starts the engine; it must be there. All is then on one thread, and follows its time if
    /// that is paused.
    Current,
}

impl Default for Threads {
    /// As many as there are cores, less one for whoever sends updates, and at least one.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Threads::Own(NonZeroUsize::new(cores.saturating_sub(1)).unwrap_or(NonZeroUsize::MIN))
    }
}
