//! Notices that the wall clock was set, or that the machine slept.

use std::time::Duration;

use parking_lot::Mutex;
use podwright_model::time::Time;
use tokio::time::Instant;

/// A smaller difference is no jump: the system slews its clock, and the two clocks are not read at the same time.
const JUMP: Duration = Duration::from_secs(1);

/// Compares the wall clock with the clock of tokio, which never jumps.
#[derive(Debug)]
pub(super) struct ClockJumps(
    /// The last readings of both clocks.
    Mutex<(Instant, Time)>,
);

impl ClockJumps {
    pub(super) fn new(wall: Time) -> Self {
        ClockJumps(Mutex::new((Instant::now(), wall)))
    }

    /// Whether the wall clock has jumped since the last call.
    pub(super) fn has_jumped(&self, wall: Time) -> bool {
        let now = Instant::now();
        let (last, last_wall) = std::mem::replace(&mut *self.0.lock(), (now, wall));
        let expected = last_wall + now.duration_since(last);
        wall.since(expected).max(expected.since(wall)) > JUMP
    }
}
