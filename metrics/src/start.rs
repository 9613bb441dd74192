//! Metrics of the start times of pods.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::histogram::{Histogram, POD_START};
use crate::register::{kubelet, kubelet_internal};

/// Metrics of the start times of pods.
#[derive(Clone, Debug)]
pub struct StartMetrics {
    start: Histogram,
    sli: Histogram,
    total: Histogram,
    first_network_pod: Gauge<f64, AtomicU64>,
}

impl StartMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        StartMetrics {
            start: kubelet(
                registry,
                "kubelet_pod_start_duration_seconds",
                "Seconds from first seeing a pod to its phase Running",
                Histogram::new(POD_START),
            ),
            sli: kubelet(
                registry,
                "kubelet_pod_start_sli_duration_seconds",
                "Seconds from the creation of a stateless pod to all its containers seen running, without image pulls \
                 and init containers",
                Histogram::new(POD_START),
            ),
            total: kubelet(
                registry,
                "kubelet_pod_start_total_duration_seconds",
                "Seconds from the creation of a pod to all its containers seen running, in total",
                Histogram::new(POD_START),
            ),
            first_network_pod: kubelet_internal(
                registry,
                "kubelet_first_network_pod_start_sli_duration_seconds",
                "Seconds that the first pod with a pod network took to start, without image pulls and init containers",
                Gauge::default(),
            ),
        }
    }

    /// Records a pod's change from Pending to Running. Call it only on that change, and only for a pod whose first-seen
    /// time is known (POD-W15).
    pub fn running(&self, since_first_seen: Duration) {
        self.start.observe(since_first_seen);
    }

    /// Records a running pod that counts for the service level objective: the time since its creation without pulls and
    /// init containers. Once per pod.
    pub fn sli(&self, duration: Duration) {
        self.sli.observe(duration);
    }

    /// Records a running pod: the time since its creation. Once per pod.
    pub fn total(&self, since_creation: Duration) {
        self.total.observe(since_creation);
    }

    /// The value given to [`sli`](Self::sli) for the first pod on the pod network.
    pub fn first_network_pod(&self, duration: Duration) {
        self.first_network_pod.set(duration.as_secs_f64());
    }
}
