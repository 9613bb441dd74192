//! Metrics of the statuses and their writes.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::histogram::{Histogram, STATUS_SYNC};
use crate::labels::ContainerType;
use crate::register::kubelet;

/// Metrics of the statuses and their writes.
#[derive(Clone, Debug)]
pub struct StatusMetrics {
    sync: Histogram,
    terminated_containers: Family<Terminated, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Terminated {
    container_type: ContainerType,
    exit_code: i32,
    reason: String,
}

impl StatusMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        StatusMetrics {
            sync: kubelet(
                registry,
                "kubelet_pod_status_sync_duration_seconds",
                "Seconds from the first change of a pod's status that was not sent yet to its write",
                Histogram::new(STATUS_SYNC),
            ),
            terminated_containers: kubelet(
                registry,
                "kubelet_terminated_containers_total",
                "Containers that were seen to end, by exit code and reason",
                Family::default(),
            ),
        }
    }

    /// Records a status that reached the API server, after the time since its first unwritten change. The caller resets
    /// that time with the write (POD-W16).
    pub fn synced(&self, since_first_unsent_change: Duration) {
        self.sync.observe(since_first_unsent_change);
    }

    /// Counts a container that terminated.
    pub fn container_terminated(&self, container_type: ContainerType, exit_code: i32, reason: &str) {
        let labels = Terminated { container_type, exit_code, reason: reason.to_owned() };
        self.terminated_containers.get_or_create(&labels).inc();
    }
}
