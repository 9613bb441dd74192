//! The clock of a simulation. It follows tokio's clock while an agent runs, and the runner advances it between two
//! agents. The time that the agent and the runtime read may also jump: ahead at any time, and back between two agents. A running agent
//! does not follow a clock that is set back.

use std::time::Duration;

use parking_lot::Mutex;
use podwright_model::time::Time;
use podwright_ports::Clock;
use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct SimClock(Mutex<ClockState>);

#[derive(Debug)]
struct ClockState {
    base: Time,
    since: Option<Instant>,
    jumps: Vec<Jump>,
    /// The number of jumps before the last start.
    jumps_before: usize,
}

#[derive(Clone, Copy, Debug)]
struct Jump {
    /// The time of the jump without all jumps.
    steady: Time,
    /// What the clock showed before it.
    before: Time,
    /// What the clock showed after it.
    after: Time,
}

impl ClockState {
    fn steady(&self) -> Time {
        self.base + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn now(&self) -> Time {
        let steady = self.steady();
        self.jumps.last().map_or(steady, |jump| jump.after + steady.since(jump.steady))
    }

    fn jump(&mut self, after: Time) {
        let (steady, before) = (self.steady(), self.now());
        self.jumps.push(Jump { steady, before, after });
    }
}

impl SimClock {
    pub(super) fn stopped_at(base: Time) -> Self {
        SimClock(Mutex::new(ClockState { base, since: None, jumps: Vec::new(), jumps_before: 0 }))
    }

    /// Follows the clock of the current tokio runtime from now on.
    pub(super) fn start(&self) {
        let mut state = self.0.lock();
        state.since = Some(Instant::now());
        state.jumps_before = state.jumps.len();
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
        let mut state = self.0.lock();
        let after = state.now() + time;
        state.jump(after);
    }

    /// Sets the stopped clock back.
    pub(super) fn set_back(&self, time: Duration) {
        let mut state = self.0.lock();
        let after = Time::ZERO + state.now().since(Time::ZERO + time);
        state.jump(after);
    }

    /// What the clock showed after its last jump since the last start.
    pub(super) fn last_jump(&self) -> Option<Time> {
        let state = self.0.lock();
        state.jumps[state.jumps_before..].last().map(|jump| jump.after)
    }

    /// The time without the jumps.
    pub(super) fn steady(&self) -> Time {
        self.0.lock().steady()
    }

    /// A time that the clock has shown, without the jumps before it. If the clock has shown it several times, the last one counts.
    pub(super) fn steady_of(&self, shown: Time) -> Time {
        let state = self.0.lock();
        let jump = state.jumps.iter().rfind(|jump| jump.after <= shown);
        jump.map_or(shown, |jump| jump.steady + shown.since(jump.after))
    }

    /// The latest time that the clock has shown.
    pub(super) fn latest(&self) -> Time {
        let state = self.0.lock();
        state.jumps.iter().map(|jump| jump.before).fold(state.now(), Time::max)
    }

    /// Whether the clock may have shown `earlier` after it had shown `later`, because it was set back in between. Only whole seconds count,
    /// as in the API.
    pub(super) fn was_set_back(&self, later: Time, earlier: Time) -> bool {
        let second = |time: Time| time.as_nanos() / 1_000_000_000;
        let state = self.0.lock();
        let mut after_later = state.jumps.iter().skip_while(|jump| second(jump.before) < second(later));
        after_later.any(|jump| second(jump.after) <= second(earlier))
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        self.0.lock().now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn clock_that_is_set_back_shows_earlier_times_while_its_steady_time_goes_on() {
        let clock = SimClock::stopped_at(at(100));
        clock.skip(seconds(10));
        clock.jump(seconds(1_000));
        clock.skip(seconds(5));
        assert_eq!((clock.now(), clock.steady(), clock.latest()), (at(1_115), at(115), at(1_115)));
        clock.set_back(seconds(50));
        clock.skip(seconds(1));
        assert_eq!((clock.now(), clock.steady(), clock.latest()), (at(1_066), at(116), at(1_115)));
        assert_eq!(clock.last_jump(), Some(at(1_065)));
        for (shown, steady) in [(105, 105), (1_065, 115), (1_066, 116)] {
            assert_eq!(clock.steady_of(at(shown)), at(steady), "{shown}");
        }
        let was_set_back = |later, earlier| clock.was_set_back(at(later), at(earlier));
        assert!(was_set_back(1_115, 1_065), "a run may have started at 1115 and ended at 1065");
        assert!(!was_set_back(1_116, 1_065), "the clock has not shown 1116");
        assert!(!was_set_back(1_115, 1_064), "it has not gone back so far");
    }
}
