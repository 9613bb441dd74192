//! Metrics of the detection of runtime changes.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::histogram::{Histogram, REQUEST};
use crate::labels::label_values;
use crate::register::kubelet;

/// Containers by the state that the runtime reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunningContainers {
    /// Running.
    pub running: usize,
    /// Ended.
    pub exited: usize,
    /// Made but not started.
    pub created: usize,
    /// The runtime does not know.
    pub unknown: usize,
}

label_values! {
    enum ContainerState {
        Running = "running",
        Exited = "exited",
        Created = "created",
        Unknown = "unknown",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    container_state: ContainerState,
}

/// Metrics of the detection of runtime changes: relists and the runtime's event stream.
#[derive(Clone, Debug)]
pub struct PlegMetrics {
    relist: Histogram,
    relist_interval: Histogram,
    pod_relist: Histogram,
    discarded: Counter,
    last_seen: Gauge<f64, AtomicU64>,
    stream_errors: Counter,
    stream_successes: Counter,
    stream_latency: Histogram,
    running_pods: Gauge,
    containers: [Gauge; ContainerState::ALL.len()],
}

impl PlegMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        let containers: Family<StateLabel, Gauge> =
            kubelet(registry, "kubelet_running_containers", "Containers by state", Family::default());
        PlegMetrics {
            relist: kubelet(
                registry,
                "kubelet_pleg_relist_duration_seconds",
                "Seconds that a relist of all pods took",
                Histogram::new(REQUEST),
            ),
            relist_interval: kubelet(
                registry,
                "kubelet_pleg_relist_interval_seconds",
                "Seconds from the start of a relist to the start of the next",
                Histogram::new(REQUEST),
            ),
            pod_relist: kubelet(
                registry,
                "kubelet_pleg_pod_relist_duration_seconds",
                "Seconds that an on-demand relist of one pod took",
                Histogram::new(REQUEST),
            ),
            discarded: kubelet(
                registry,
                "kubelet_pleg_discard_events",
                "Pod events dropped because they were not handled in time",
                Counter::default(),
            ),
            last_seen: kubelet(
                registry,
                "kubelet_pleg_last_seen_seconds",
                "Unix time at which the relist was last active",
                Gauge::default(),
            ),
            stream_errors: kubelet(
                registry,
                "kubelet_evented_pleg_connection_error_count",
                "Failures of the stream of runtime events",
                Counter::default(),
            ),
            stream_successes: kubelet(
                registry,
                "kubelet_evented_pleg_connection_success_count",
                "Streams of runtime events obtained",
                Counter::default(),
            ),
            stream_latency: kubelet(
                registry,
                "kubelet_evented_pleg_connection_latency_seconds",
                "Seconds from the creation of a runtime event to its receipt",
                Histogram::new(REQUEST),
            ),
            running_pods: kubelet(registry, "kubelet_running_pods", "Pods whose sandbox runs", Gauge::default()),
            containers: ContainerState::ALL
                .map(|container_state| containers.get_or_create_owned(&StateLabel { container_state })),
        }
    }

    /// Records a relist of all pods.
    pub fn relisted(&self, took: Duration) {
        self.relist.observe(took);
    }

    /// Records the start of a relist of all pods, this long after the start of the previous one.
    pub fn relist_interval(&self, since_last_start: Duration) {
        self.relist_interval.observe(since_last_start);
    }

    /// Records an on-demand relist of one pod.
    pub fn pod_relisted(&self, took: Duration) {
        self.pod_relist.observe(took);
    }

    /// Counts a dropped event.
    pub fn discarded(&self) {
        self.discarded.inc();
    }

    /// Sets when the relist was last active. The health check calls this.
    pub fn last_seen(&self, since_unix_epoch: Duration) {
        self.last_seen.set(since_unix_epoch.as_secs_f64());
    }

    /// Counts an event stream that broke or could not be opened.
    pub fn stream_failed(&self) {
        self.stream_errors.inc();
    }

    /// Counts an opened event stream.
    pub fn stream_connected(&self) {
        self.stream_successes.inc();
    }

    /// Counts an event of the stream.
    pub fn stream_latency(&self, since_creation: Duration) {
        self.stream_latency.observe(since_creation);
    }

    /// Sets the number of pods with a running sandbox.
    pub fn running_pods(&self, pods: usize) {
        self.running_pods.set(pods as i64);
    }

    /// Sets the numbers of containers in all four states, including zeros (POD-W17).
    pub fn running_containers(&self, containers: RunningContainers) {
        let RunningContainers { running, exited, created, unknown } = containers;
        for (gauge, count) in self.containers.iter().zip([running, exited, created, unknown]) {
            gauge.set(count as i64);
        }
    }
}
