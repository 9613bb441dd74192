//! Limits how often something happens. Pure.

use std::time::{Duration, Instant};

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many times at once, after a pause.
    pub burst: u32,
    /// The time for each further one.
    pub every: Duration,
}

/// What happened lately, as the time at which the whole burst is possible again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace(Option<Instant>);

impl Pace {
    /// How long the next one has to wait. It is zero within the burst.
    pub fn wait(&self, rate: Rate, now: Instant) -> Duration {
        let whole = rate.every * rate.burst.saturating_sub(1);
        self.backlog(now).saturating_sub(whole)
    }

    /// Counts one more, which happens after its [`wait`](Pace::wait).
    pub fn count(&mut self, rate: Rate, now: Instant) {
        self.0 = Some(now + self.backlog(now) + rate.every);
    }

    /// Whether the whole burst is possible, as for a new value.
    pub(crate) fn is_rested(&self, now: Instant) -> bool {
        self.backlog(now).is_zero()
    }

    fn backlog(&self, now: Instant) -> Duration {
        self.0.map_or(Duration::ZERO, |rested| rested.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_at_once_and_each_further_one_waits_for_its_time() {
        let (rate, start) = (Rate { burst: 3, every: Duration::from_millis(100) }, Instant::now());
        let (mut pace, mut waits) = (Pace::default(), Vec::new());
        for _ in 0..5 {
            waits.push(pace.wait(rate, start).as_millis());
            pace.count(rate, start);
        }
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        let later = |millis| start + Duration::from_millis(millis);
        assert_eq!(pace.wait(rate, later(250)).as_millis(), 50);
        assert_eq!(pace.wait(rate, later(300)).as_millis(), 0);
        assert!(!pace.is_rested(later(499)) && pace.is_rested(later(500)));
        assert_eq!(pace.wait(rate, later(9000)).as_millis(), 0);
        pace.count(rate, later(9000));
        assert!(pace.is_rested(later(9100)), "a pause does not add to the burst");
    }
}
