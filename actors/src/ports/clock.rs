//! Reading the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// The system's wall clock, for what is compared with the times of other programs. Where it jumps ahead, because it was set
/// or the machine slept, this one follows within half a second; where it is set back, this one goes on as if nothing had
/// happened, until the other has caught up.
#[derive(Debug)]
pub struct SystemClock {
    start: std::time::Instant,
    /// Nanoseconds from the epoch to `start`, by the wall clock as it is now.
    wall: AtomicU64,
    /// Nanoseconds after `start` when the wall clock was last looked at.
    looked: AtomicU64,
}

/// How often the wall clock is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// What is slewed or measured apart is no jump.
const JUMP: Duration = Duration::from_secs(1);

impl SystemClock {
    /// Starts from the system's wall clock.
    pub fn new() -> Self {
        SystemClock { start: std::time::Instant::now(), wall: AtomicU64::new(wall_clock()), looked: AtomicU64::new(0) }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Time {
        let elapsed = nanos(self.start.elapsed());
        let looked = self.looked.load(Ordering::Relaxed);
        if elapsed.saturating_sub(looked) >= nanos(LOOK) {
            self.looked.store(elapsed, Ordering::Relaxed);
            // Read before the other: what holds the thread up between the two looks like no jump ahead.
            let shown = wall_clock();
            let wall = follow(self.wall.load(Ordering::Relaxed), shown, nanos(self.start.elapsed()));
            // Of several that look at once the one that saw most counts: time does not go back.
            self.wall.fetch_max(wall, Ordering::Relaxed);
        }
        Time::from_nanos(self.wall.load(Ordering::Relaxed) + elapsed)
    }
}

/// Where the epoch lies before the start, once the wall clock shows `wall` so long after it.
fn follow(before: u64, wall: u64, elapsed: u64) -> u64 {
    let seen = wall.saturating_sub(elapsed);
    if seen > before.saturating_add(nanos(JUMP)) { seen } else { before }
}

fn wall_clock() -> u64 {
    nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Clock for TokioClock {
    fn now(&self) -> Time {
        self.wall + self.start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_clock_that_is_set_is_followed_ahead_and_not_back() {
        let start = 1000 * SECOND;
        assert_eq!(follow(start, 1010 * SECOND, 10 * SECOND), start);
        assert_eq!(follow(start, 1010 * SECOND + SECOND / 2, 10 * SECOND), start, "slewed");
        let ahead = follow(start, 5010 * SECOND, 10 * SECOND);
        assert_eq!(ahead, 5000 * SECOND);
        assert_eq!(follow(ahead, 1020 * SECOND, 20 * SECOND), ahead, "set back");
    }

    #[test]
    fn it_tells_the_wall_clocks_time() {
        let clock = SystemClock::new();
        let apart = clock.now().as_nanos().abs_diff(wall_clock());
        assert!(apart < 5 * SECOND, "{apart} ns");
    }
}
