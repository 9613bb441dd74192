//! In-place resizes of pods.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::histogram::Histogram;
use crate::labels::label_values;
use crate::register::kubelet;

/// The upper bounds of a resize in milliseconds (upstream `PodResizeDurationMilliseconds`, kubelet 1.36).
const DURATION: [f64; 14] =
    [10., 50., 100., 500., 1000., 2000., 5000., 10_000., 20_000., 30_000., 60_000., 120_000., 300_000., 600_000.];

label_values! {
    /// The reason for a new decision on the resizes that wait.
    pub enum RetryTrigger {
        /// A resize is complete.
        PodResized = "pod_resized",
        /// A pod was updated.
        PodUpdated = "pod_updated",
        /// Pods were added.
        PodsAdded = "pods_added",
        /// Pods were removed.
        PodsRemoved = "pods_removed",
        /// The containers of a pod have ended.
        PodTerminated = "pod_terminated",
        /// Some time has passed.
        PeriodicRetry = "periodic_retry",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    resource: &'static str,
    requirement: &'static str,
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SuccessLabel {
    success: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DetailLabel {
    reason_detail: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TriggerLabel {
    retry_trigger: RetryTrigger,
}

/// In-place resizes of pods.
#[derive(Clone, Debug)]
pub struct ResizeMetrics {
    requested: Family<RequestLabels, Counter>,
    durations: Family<SuccessLabel, Histogram>,
    pending: Family<ReasonLabel, Gauge>,
    in_progress: Gauge,
    infeasible: Family<DetailLabel, Counter>,
    deferred_accepted: Family<TriggerLabel, Counter>,
}

impl ResizeMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        ResizeMetrics {
            requested: kubelet(
                registry,
                "kubelet_container_requested_resizes_total",
                "Number of requested resizes, counted at the container level",
                Family::default(),
            ),
            durations: kubelet(
                registry,
                "kubelet_pod_resize_duration_milliseconds",
                "Duration in milliseconds to actuate a pod resize",
                Family::new_with_constructor(|| Histogram::new(&DURATION)),
            ),
            pending: kubelet(
                registry,
                "kubelet_pod_pending_resizes",
                "Number of pending resizes for pods",
                Family::default(),
            ),
            in_progress: kubelet(
                registry,
                "kubelet_pod_in_progress_resizes",
                "Number of in-progress resizes for pods",
                Gauge::default(),
            ),
            infeasible: kubelet(
                registry,
                "kubelet_pod_infeasible_resizes_total",
                "Number of infeasible resizes for pods",
                Family::default(),
            ),
            deferred_accepted: kubelet(
                registry,
                "kubelet_pod_deferred_accepted_resizes_total",
                "Cumulative number of resizes that were accepted after being deferred",
                Family::default(),
            ),
        }
    }

    /// Counts a change that an update requests for a container: of `cpu` or `memory`, of `limits` or `requests`. The operation is
    /// `add`, `remove`, `increase` or `decrease`.
    pub fn requested(&self, resource: &'static str, requirement: &'static str, operation: &'static str) {
        self.requested.get_or_create(&RequestLabels { resource, requirement, operation }).inc();
    }

    /// Records the duration of a try to apply a resize.
    pub fn applied(&self, duration: Duration, success: bool) {
        let success = if success { "true" } else { "false" };
        self.durations.get_or_create(&SuccessLabel { success }).observe_millis(duration);
    }

    /// Sets the numbers of resizes that are deferred, infeasible and in progress.
    pub fn set_current(&self, deferred: usize, infeasible: usize, in_progress: usize) {
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        for (reason, count) in [("deferred", deferred), ("infeasible", infeasible)] {
            let label = ReasonLabel { reason };
            // A series appears with the first such resize.
            if count > 0 || self.pending.get(&label).is_some() {
                self.pending.get_or_create(&label).set(number(count));
            }
        }
        self.in_progress.set(number(in_progress));
    }

    /// Counts a resize that never becomes possible.
    pub fn infeasible(&self, reason_detail: &'static str) {
        self.infeasible.get_or_create(&DetailLabel { reason_detail }).inc();
    }

    /// Counts a resize that was deferred and then allocated.
    pub fn deferred_accepted(&self, retry_trigger: RetryTrigger) {
        self.deferred_accepted.get_or_create(&TriggerLabel { retry_trigger }).inc();
    }
}
