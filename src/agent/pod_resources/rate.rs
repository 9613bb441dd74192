//! Limits the rate of calls to the socket.

use std::time::Duration;

use tokio::time::Instant;

/// The time in which one further call is admitted, for a rate of 100 per second (upstream `DefaultQPS`, kubelet 1.36).
const INTERVAL: Duration = Duration::from_millis(10);
/// The number of calls that are admitted at once after a pause (upstream `DefaultBurstTokens`, kubelet 1.36).
const BURST: u32 = 10;

/// Limits the calls of all clients together.
#[derive(Debug)]
pub(super) struct CallRate {
    /// When a full burst is admitted again. `None` before the first call.
    recovered: Option<Instant>,
}

impl CallRate {
    pub(super) fn new() -> Self {
        CallRate { recovered: None }
    }

    /// Whether a call at this time may be answered.
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        let recovered = self.recovered.map_or(now, |recovered| recovered.max(now)) + INTERVAL;
        let is_admitted = recovered - now <= INTERVAL * BURST;
        if is_admitted {
            self.recovered = Some(recovered);
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_admitted_then_one_call_in_each_interval() {
        let start = Instant::now();
        let mut rate = CallRate::new();
        let mut admitted = |after: u64| {
            let now = start + Duration::from_millis(after);
            (0..20).filter(|_| rate.admit(now)).count()
        };
        assert_eq!([0, 5, 10, 40, 45, 10_000].map(&mut admitted), [10, 0, 1, 3, 0, 10]);
    }
}
