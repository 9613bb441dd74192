//! The time of a simulation: tokio's while an agent lives, and what the runner says between two lives.

use std::time::Duration;

use parking_lot::Mutex;
use podwright_actors::ports::Clock;
use podwright_actors::time::Time;
use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct SimClock(Mutex<Standing>);

#[derive(Debug)]
struct Standing {
    base: Time,
    since: Option<Instant>,
}

impl SimClock {
    pub(super) fn standing_at(base: Time) -> Self {
        SimClock(Mutex::new(Standing { base, since: None }))
    }

    /// Goes on with the time of the tokio runtime that is entered.
    pub(super) fn run(&self) {
        self.0.lock().since = Some(Instant::now());
    }

    /// Stands still; the runtime is about to end.
    pub(super) fn stand(&self) {
        let base = self.now();
        *self.0.lock() = Standing { base, since: None };
    }

    /// Time in which no agent lives.
    pub(super) fn skip(&self, time: Duration) {
        let mut standing = self.0.lock();
        standing.base = standing.base + time;
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        let standing = self.0.lock();
        standing.base + standing.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}
