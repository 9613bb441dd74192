//! How often the slices of a pool are written. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_actors::Time;

/// The time between two comparisons that write, after a burst.
const EVERY: Duration = Duration::from_secs(1);
/// The number of comparisons in a burst, which need not wait.
const BURST: u32 = 10;

/// The pools that were written recently, each with the time at which its next write would be due if bursts were not allowed.
#[derive(Debug, Default)]
pub(super) struct WritePace(BTreeMap<String, Time>);

impl WritePace {
    /// Slices of a pool were written.
    pub(super) fn wrote(&mut self, pool: &str, now: Time) {
        self.0.retain(|_, next| *next > now);
        let next = self.0.entry(pool.to_owned()).or_insert(now);
        *next = *next + EVERY;
    }

    /// How long the next comparison of a pool waits.
    pub(super) fn wait(&self, pool: &str, now: Time) -> Duration {
        let ahead = self.0.get(pool).map(|next| next.since(now)).unwrap_or_default();
        ahead.saturating_sub(EVERY * (BURST - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_is_written_once_a_second_after_a_burst() {
        let (mut pace, at) = (WritePace::default(), |second: u64| Time::from_secs(100 + second));
        for _ in 0..10 {
            assert_eq!(pace.wait("p", at(0)), Duration::ZERO);
            pace.wrote("p", at(0));
        }
        assert_eq!((pace.wait("p", at(0)), pace.wait("q", at(0))), (EVERY, Duration::ZERO));
        assert_eq!(pace.wait("p", at(1)), Duration::ZERO);
        pace.wrote("p", at(1));
        assert_eq!(pace.wait("p", at(1)), EVERY);
        pace.wrote("q", at(100));
        assert_eq!(pace.0.len(), 1, "a pool that was not written for a while is forgotten");
    }
}
