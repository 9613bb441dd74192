//! The clock of a simulation. It follows tokio's clock while an agent runs, and the runner advances it between two
//! agents. The time that the agent and the runtime read may also jump ahead.

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
    /// The jumps so far: the time that the clock showed after each, and its length.
    jumps: Vec<(Time, Duration)>,
}

impl ClockState {
    fn steady(&self) -> Time {
        self.base + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl SimClock {
    pub(super) fn stopped_at(base: Time) -> Self {
        SimClock(Mutex::new(ClockState { base, since: None, jumps: Vec::new() }))
    }

    /// Follows the clock of the current tokio runtime from now on.
    pub(super) fn start(&self) {
        self.0.lock().since = Some(Instant::now());
    }

    /// Stops the clock, before its tokio runtime is dropped.
    pub(super) fn stop(&self) {
        let mut state = self.0.lock();
        state.base = state.steady();
        state.since = None;
    }

    /// Advances the stopped clock.
    pub(super) fn skip(&self, time: Duration) {
        let mut state = self.0.lock();
        state.base = state.base + time;
    }

    /// Sets the clock ahead, as a correction of the machine's clock does.
    pub(super) fn jump(&self, time: Duration) {
        let at = self.now() + time;
        self.0.lock().jumps.push((at, time));
    }

    /// What the clock showed after its last jump.
    pub(super) fn last_jump(&self) -> Option<Time> {
        self.0.lock().jumps.last().map(|(at, _)| *at)
    }

    /// The time without the jumps.
    pub(super) fn steady(&self) -> Time {
        self.0.lock().steady()
    }

    /// A time that the clock has shown, without the jumps before it.
    pub(super) fn steady_of(&self, shown: Time) -> Time {
        let state = self.0.lock();
        let jumped: Duration = state.jumps.iter().filter(|(at, _)| *at <= shown).map(|(_, time)| *time).sum();
        Time::ZERO + shown.since(Time::ZERO + jumped)
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        let state = self.0.lock();
        state.steady() + state.jumps.iter().map(|(_, time)| *time).sum::<Duration>()
    }
}
