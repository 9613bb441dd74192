//! Metrics of the pod workers.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::histogram::{CONTAINERS, Histogram, REQUEST};
use crate::labels::label_values;
use crate::register::kubelet;

label_values! {
    /// The kind of an update that a pod worker handled.
    pub enum OperationType {
        /// The pod is new to its source.
        Create = "create",
        /// The pod's source changed it.
        Update = "update",
        /// A resync.
        Sync = "sync",
        /// A termination.
        Kill = "kill",
        /// The end of the cleanup, or the decision that a pod can never start.
        Terminated = "terminated",
    }
}

/// Metrics of the pod workers. A clone is one pointer, so that each worker can hold its own.
#[derive(Clone, Debug)]
pub struct PodWorkerMetrics(Arc<PodWorkerMetricsInner>);

#[derive(Debug)]
struct PodWorkerMetricsInner {
    /// By [`OperationType`]. Looked up once, at registration, because a lookup in the family takes a lock that all pods
    /// share.
    duration: [Histogram; OperationType::ALL.len()],
    start_duration: Histogram,
    containers_per_pod: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation_type: OperationType,
}

impl PodWorkerMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        let duration: Family<Operation, Histogram> = kubelet(
            registry,
            "kubelet_pod_worker_duration_seconds",
            "Seconds from the dispatch of a pod's change to the end of its handling, by kind of change",
            Family::new_with_constructor(Histogram::request),
        );
        PodWorkerMetrics(Arc::new(PodWorkerMetricsInner {
            duration: OperationType::ALL
                .map(|operation_type| duration.get_or_create_owned(&Operation { operation_type })),
            start_duration: kubelet(
                registry,
                "kubelet_pod_worker_start_duration_seconds",
                "Seconds from first seeing a pod to the first setup by its worker",
                Histogram::new(REQUEST),
            ),
            containers_per_pod: kubelet(
                registry,
                "kubelet_containers_per_pod_count",
                "Regular containers of each pod that was allowed to start",
                Histogram::new(CONTAINERS),
            ),
        }))
    }

    /// Records a handled update with any outcome, `took` after its dispatch began. Updates without a start time (from a
    /// replay) are not recorded. Takes no lock and allocates nothing.
    pub fn worked(&self, operation: OperationType, took: Duration) {
        self.0.duration[operation as usize].observe(took);
    }

    /// Records a worker's first setup of its pod. The worker measures it, so that a create that was merged with a later
    /// update still counts (POD-W18).
    pub fn started(&self, since_first_seen: Duration) {
        self.0.start_duration.observe(since_first_seen);
    }

    /// Counts a pod with this many regular containers that is allowed to start.
    pub fn allowed_to_start(&self, containers: usize) {
        self.0.containers_per_pod.observe_count(containers);
    }
}
