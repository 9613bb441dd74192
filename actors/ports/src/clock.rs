//! Clocks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use podwright_model::time::Time;

/// Reads the time. The time never goes back, except that of [`WallClock`].
///
/// The engine reads the clock while it holds locks. An implementation must answer at once and must not call the engine.
pub trait Clock: Send + Sync + 'static {
    /// The current time, in nanoseconds since the Unix epoch.
    fn now(&self) -> Time;
}

/// A clock that reads the system's wall clock once and then follows tokio's clock. It never goes back, and it does
/// not advance while tokio's time is paused.
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

    /// Starts from the given time.
    pub fn starting_at(wall: Time) -> Self {
        TokioClock { wall, start: tokio::time::Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        TokioClock::new()
    }
}

/// The system's wall clock, for times that are compared with those of other programs.
///
/// If the wall clock jumps ahead, because it was set or the machine slept, this clock follows within 0.5 s. If the wall
/// clock is set back, this clock runs on unchanged until the wall clock has caught up.
#[derive(Debug)]
pub struct SystemClock {
    start: std::time::Instant,
    /// The wall-clock time of `start`, in nanoseconds since the epoch, as of the last reading.
    wall: AtomicU64,
    /// When the wall clock was last read, in nanoseconds after `start`.
    read_at: AtomicU64,
}

/// The system's wall clock as it is: if it is set back, this clock goes back too. For work that depends on times that other programs
/// set. Whoever uses it must notice such a jump.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Time {
        Time::from_nanos(wall_clock())
    }
}

/// How often the wall clock is read.
const READ_EVERY: Duration = Duration::from_millis(500);
/// A smaller difference is no jump: the system slews its clock, and the two clocks are not read at the same time.
const JUMP: Duration = Duration::from_secs(1);

impl SystemClock {
    /// Starts at the wall clock's current time.
    pub fn new() -> Self {
        SystemClock { start: std::time::Instant::now(), wall: AtomicU64::new(wall_clock()), read_at: AtomicU64::new(0) }
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
        let read_at = self.read_at.load(Ordering::Relaxed);
        if elapsed.saturating_sub(read_at) >= nanos(READ_EVERY) {
            self.read_at.store(elapsed, Ordering::Relaxed);
            // Read the wall clock first: a delay of the thread between the two readings must not look like a jump
            // ahead.
            let wall = wall_clock();
            let wall = follow(self.wall.load(Ordering::Relaxed), wall, nanos(self.start.elapsed()));
            // If several threads read at once, the latest time wins, so that time does not go back.
            self.wall.fetch_max(wall, Ordering::Relaxed);
        }
        Time::from_nanos(self.wall.load(Ordering::Relaxed) + elapsed)
    }
}

/// The epoch time of the start, in nanoseconds: `wall` is the wall clock's reading `elapsed` nanoseconds after the
/// start.
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
    fn wall_clock_jumps_are_followed_ahead_and_not_back() {
        let start = 1000 * SECOND;
        assert_eq!(follow(start, 1010 * SECOND, 10 * SECOND), start);
        assert_eq!(follow(start, 1010 * SECOND + SECOND / 2, 10 * SECOND), start, "slewed");
        let ahead = follow(start, 5010 * SECOND, 10 * SECOND);
        assert_eq!(ahead, 5000 * SECOND);
        assert_eq!(follow(ahead, 1020 * SECOND, 20 * SECOND), ahead, "set back");
    }

    #[test]
    fn a_wall_clock_reads_the_systems_time() {
        for now in [SystemClock::new().now(), WallClock.now()] {
            let apart = now.as_nanos().abs_diff(wall_clock());
            assert!(apart < 5 * SECOND, "{apart} ns");
        }
    }
}
