//! The pools that are to be compared with the API server, and when.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

/// The delay after the first failure of a pool. It doubles with each further one (client-go `DefaultTypedControllerRateLimiter`).
const FIRST_DELAY: Duration = Duration::from_millis(5);
/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(1000);
/// The pause between failures of all pools, beyond a burst.
const PAUSE: Duration = Duration::from_millis(100);
/// The failures that may follow each other without a pause.
const BURST: u32 = 100;

/// Pools with their due times. A pool is in the queue once, with its earliest due time.
#[derive(Debug, Default)]
pub(super) struct Queue {
    due: BTreeMap<String, Instant>,
    failures: HashMap<String, u32>,
    /// When the next failure would be due if there were no burst.
    paced: Option<Instant>,
}

impl Queue {
    pub(super) fn add(&mut self, pool: &str, at: Instant) {
        let due = self.due.entry(pool.to_owned()).or_insert(at);
        *due = at.min(*due);
    }

    /// The earliest due time.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    /// Takes the pool that has been due for the longest time.
    pub(super) fn take(&mut self, now: Instant) -> Option<String> {
        let (pool, _) = self.due.iter().filter(|(_, due)| **due <= now).min_by_key(|(_, due)| **due)?;
        let pool = pool.clone();
        self.due.remove(&pool);
        Some(pool)
    }

    /// Adds a pool whose sync failed.
    pub(super) fn retry(&mut self, pool: &str, now: Instant) {
        let failures = self.failures.entry(pool.to_owned()).or_default();
        let own = FIRST_DELAY.saturating_mul(1 << (*failures).min(30)).min(LONGEST_DELAY);
        *failures = failures.saturating_add(1);
        let paced = self.paced.unwrap_or(now).max(now);
        self.paced = Some(paced + PAUSE);
        let common = paced.saturating_duration_since(now).saturating_sub(PAUSE * (BURST - 1));
        self.add(pool, now + own.max(common));
    }

    /// Forgets the failures of a pool.
    pub(super) fn succeeded(&mut self, pool: &str) {
        self.failures.remove(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_is_due_at_the_earliest_of_its_times() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.add("a", start + Duration::from_secs(30));
        queue.add("b", start + Duration::from_secs(2));
        queue.add("a", start + Duration::from_secs(1));
        queue.add("a", start + Duration::from_secs(60));
        assert_eq!(queue.take(start), None);
        assert_eq!(queue.next_due(), Some(start + Duration::from_secs(1)));
        let later = start + Duration::from_secs(60);
        assert_eq!(
            [queue.take(later), queue.take(later), queue.take(later)],
            [Some("a".into()), Some("b".into()), None]
        );
    }

    #[test]
    fn delays_of_failures_double_until_a_success() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let mut delay = || {
            queue.retry("a", start);
            let due = queue.next_due().unwrap();
            queue.take(due).unwrap();
            due - start
        };
        let delays: Vec<_> = (0..19).map(|_| delay()).collect();
        assert_eq!(delays[..3], [5, 10, 20].map(Duration::from_millis));
        assert_eq!(delays[18], LONGEST_DELAY);
        queue.succeeded("a");
        queue.retry("a", start);
        assert_eq!(queue.next_due(), Some(start + FIRST_DELAY));
    }

    #[test]
    fn failures_of_many_pools_share_a_rate() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let mut delay = |pool: u32| {
            queue.retry(&pool.to_string(), start);
            queue.due[&pool.to_string()] - start
        };
        let delays: Vec<_> = (0..110).map(&mut delay).collect();
        assert_eq!(delays[99], FIRST_DELAY);
        assert_eq!(delays[109] - delays[108], PAUSE);
        assert_eq!(delays[109], PAUSE * 10);
    }
}
