//! Decides when the next request for an event may be sent, so that all events of a node together have a rate. Pure.

use std::num::NonZeroU32;
use std::time::Duration;

/// How fast the events of a node are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRate {
    /// The requests in each second (the kubelet's `eventRecordQPS`).
    pub per_second: NonZeroU32,
    /// The requests that are sent at once after a pause (the kubelet's `eventBurst`).
    pub burst: NonZeroU32,
}

/// Tokens for requests. All times are since the same moment.
#[derive(Debug)]
pub(super) struct TokenBucket {
    /// The time in which one token comes back.
    interval: Duration,
    /// The time in which an empty bucket becomes full.
    depth: Duration,
    /// When the bucket is full again. A bucket that owes tokens is full later than after its `depth`.
    full_at: Duration,
}

impl TokenBucket {
    /// A full bucket.
    pub(super) fn new(rate: EventRate) -> Self {
        let interval = Duration::from_secs(1) / rate.per_second.get();
        TokenBucket { interval, depth: interval * rate.burst.get(), full_at: Duration::ZERO }
    }

    /// Takes a token at `now`. Returns how long the request has to wait for it.
    pub(super) fn take(&mut self, now: Duration) -> Duration {
        self.full_at = self.full_at.max(now) + self.interval;
        (self.full_at - now).saturating_sub(self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_then_one_request_in_each_interval() {
        let rate = EventRate { per_second: NonZeroU32::new(50).unwrap(), burst: NonZeroU32::new(3).unwrap() };
        let mut bucket = TokenBucket::new(rate);
        let mut take = |millis: u64| bucket.take(Duration::from_millis(millis)).as_millis();
        assert_eq!([0, 0, 0, 0, 0].map(&mut take), [0, 0, 0, 20, 40]);
        // The two requests that wait have tokens of later. The next one follows them.
        assert_eq!(take(30), 30);
        assert_eq!(take(80), 0);
        assert_eq!([10_000, 10_000, 10_000, 10_000].map(&mut take), [0, 0, 0, 20], "a pause fills the bucket");
    }
}
