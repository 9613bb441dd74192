//! The clock of a simulation. It follows tokio's clock while an agent runs, and the runner advances it between two
//! agents.

use std::time::Duration;

use parking_lot::Mutex;
use podwright_actors::ports::Clock;
use podwright_actors::time::Time;
use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct SimClock(Mutex<ClockState>);

#[derive(Debug)]
struct ClockState {
    base: Time,
    since: Option<Instant>,
}

impl SimClock {
    pub(super) fn stopped_at(base: Time) -> Self {
        SimClock(Mutex::new(ClockState { base, since: None }))
    }

    /// Follows the clock of the current tokio runtime from now on.
    pub(super) fn start(&self) {
        self.0.lock().since = Some(Instant::now());
    }

    /// Stops the clock, before its tokio runtime is dropped.
    pub(super) fn stop(&self) {
        let base = self.now();
        *self.0.lock() = ClockState { base, since: None };
    }

    /// Advances the stopped clock.
    pub(super) fn skip(&self, time: Duration) {
        let mut state = self.0.lock();
        state.base = state.base + time;
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        let state = self.0.lock();
        state.base + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}
