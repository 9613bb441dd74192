//! Metrics of the graceful node shutdown.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::register::kubelet;

/// The times at which the last graceful shutdown began and ended.
#[derive(Clone, Debug)]
pub struct ShutdownMetrics {
    start: Gauge<f64, AtomicU64>,
    end: Gauge<f64, AtomicU64>,
}

impl ShutdownMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        ShutdownMetrics {
            start: kubelet(
                registry,
                "kubelet_graceful_shutdown_start_time_seconds",
                "Unix time at which the last graceful shutdown began",
                Gauge::default(),
            ),
            end: kubelet(
                registry,
                "kubelet_graceful_shutdown_end_time_seconds",
                "Unix time at which the last graceful shutdown ended; zero while one is under way",
                Gauge::default(),
            ),
        }
    }

    /// Sets the begin of a shutdown, as the time since the Unix epoch, and resets the end.
    pub fn started(&self, since_unix_epoch: Duration) {
        self.end.set(0.0);
        self.start.set(since_unix_epoch.as_secs_f64());
    }

    /// Sets the end of the shutdown, as the time since the Unix epoch.
    pub fn ended(&self, since_unix_epoch: Duration) {
        self.end.set(since_unix_epoch.as_secs_f64());
    }
}
