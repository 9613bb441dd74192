//! How often the API server is called for the slices of a pool. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_model::time::Time;

/// The time between two syncs that call the API server, after a burst.
const EVERY: Duration = Duration::from_secs(1);
/// The number of syncs in a burst, which need not wait.
const BURST: u32 = 10;

/// The pools for which the API server was called recently, each with the time at which its next sync would be due if bursts were not allowed.
#[derive(Debug, Default)]
pub(super) struct CallPace(BTreeMap<String, Time>);

impl CallPace {
    /// A sync of a pool has called the API server. It may have failed.
    pub(super) fn called(&mut self, pool: &str, now: Time) {
        self.0.retain(|_, next| *next > now);
        let next = self.0.entry(pool.to_owned()).or_insert(now);
        *next = *next + EVERY;
    }

    /// How long the next sync of a pool waits.
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
        let (mut pace, at) = (CallPace::default(), |second: u64| Time::from_secs(100 + second));
        for _ in 0..10 {
            assert_eq!(pace.wait("p", at(0)), Duration::ZERO);
            pace.called("p", at(0));
        }
        assert_eq!((pace.wait("p", at(0)), pace.wait("q", at(0))), (EVERY, Duration::ZERO));
        assert_eq!(pace.wait("p", at(1)), Duration::ZERO);
        pace.called("p", at(1));
        assert_eq!(pace.wait("p", at(1)), EVERY);
        pace.called("q", at(100));
        assert_eq!(pace.0.len(), 1, "a pool without calls for a while is forgotten");
    }
}
