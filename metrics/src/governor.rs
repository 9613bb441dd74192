//! Metrics of the start governor.

use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::histogram::{Histogram, START_WAIT};
use crate::register::podwright;

/// Metrics of the start governor.
#[derive(Clone, Debug)]
pub struct GovernorMetrics {
    waiting: Gauge,
    limit: Gauge,
    wait: Histogram,
}

impl GovernorMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        GovernorMetrics {
            waiting: podwright(
                registry,
                "podwright_starts_waiting",
                "Starts of sandboxes and containers that wait for the start governor",
                Gauge::default(),
            ),
            limit: podwright(
                registry,
                "podwright_start_limit",
                "Starts of sandboxes and containers that may run at once, by the runtime's latency",
                Gauge::default(),
            ),
            wait: podwright(
                registry,
                "podwright_start_wait_seconds",
                "Seconds that the start of a sandbox or container waited for its turn",
                Histogram::new(START_WAIT),
            ),
        }
    }

    /// Sets the number of waiting starts and the limit of concurrent starts.
    pub fn starts(&self, waiting: usize, limit: usize) {
        self.waiting.set(waiting as i64);
        self.limit.set(limit as i64);
    }

    /// Records how long a start waited before it was granted.
    pub fn waited(&self, waited: Duration) {
        self.wait.observe(waited);
    }
}
