//! Reading the time.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::time::Time;

/// Tells the time. Never goes back.
///
/// It is read while the engine holds locks, so it must answer at once, and must not ask the engine or anything that does.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Time;
}

/// The wall clock as it stood when this was made, carried on by tokio's clock: it never goes back, and it stands still
/// while tokio's time is paused.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    wall: Time,
    start: tokio::time::Instant,
}

impl TokioClock {
    /// Starts from the system's wall clock.
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        TokioClock::starting_at(Time::ZERO + wall)
    }

    /// Starts from a given instant.
    pub fn starting_at(wall: Time) -> Self {
        TokioClock { wall, start: tokio::time::Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        TokioClock::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Time {
        self.wall + self.start.elapsed()
    }
}
