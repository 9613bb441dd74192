//! Sandboxes, containers, images and lifecycle handlers.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::histogram::{Histogram, IMAGE_PULL};
use crate::labels::{ContainerType, label_values};
use crate::register::kubelet;

label_values! {
    /// Size classes of images (`pkg/kubelet/metrics`, Kubernetes 1.36).
    enum ImageSize {
        Unknown = "N/A",
        To10M = "0-10MB",
        To100M = "10MB-100MB",
        To500M = "100MB-500MB",
        To1G = "500MB-1GB",
        To5G = "1GB-5GB",
        To10G = "5GB-10GB",
        To20G = "10GB-20GB",
        To30G = "20GB-30GB",
        To40G = "30GB-40GB",
        To60G = "40GB-60GB",
        To100G = "60GB-100GB",
        Above = "GT100GB",
    }
}

label_values! {
    /// Why an image was removed (`image_gc_manager.go`, Kubernetes 1.36).
    pub enum ImageRemoval {
        /// The image was unused for too long.
        Age = "age",
        /// The disk is too full.
        Space = "space",
    }
}

impl ImageSize {
    /// The class of a size. A bound belongs to the class below it; 0 means an unknown size.
    fn of(bytes: u64) -> Self {
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        const UPPER_BOUNDS: [u64; ImageSize::ALL.len() - 1] = [
            0,
            10 * MIB,
            100 * MIB,
            500 * MIB,
            GIB,
            5 * GIB,
            10 * GIB,
            20 * GIB,
            30 * GIB,
            40 * GIB,
            60 * GIB,
            100 * GIB,
        ];
        // There is one more class than bounds.
        ImageSize::ALL[UPPER_BOUNDS.partition_point(|bound| *bound < bytes)]
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabel {
    container_type: ContainerType,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StartErrorLabels {
    code: String,
    container_type: ContainerType,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandlerLabel {
    runtime_handler: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SizeLabel {
    image_size_in_bytes: ImageSize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: ImageRemoval,
}

/// Sandboxes, containers, images and lifecycle handlers.
#[derive(Clone, Debug)]
pub struct ContainerMetrics {
    started_pods: Counter,
    started_pods_errors: Counter,
    started_user_namespaced_pods: Counter,
    started_user_namespaced_pods_errors: Counter,
    started_containers: Family<TypeLabel, Counter>,
    started_containers_errors: Family<StartErrorLabels, Counter>,
    managed_ephemeral_containers: Gauge,
    run_podsandbox_duration: Family<HandlerLabel, Histogram>,
    run_podsandbox_errors: Family<HandlerLabel, Counter>,
    http_fallbacks: Counter,
    sleeps_cut_short: Counter,
    image_pull_duration: Family<SizeLabel, Histogram>,
    images_removed: Family<ReasonLabel, Counter>,
}

impl ContainerMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        ContainerMetrics {
            started_pods: kubelet(
                registry,
                "kubelet_started_pods_total",
                "Attempts to create a sandbox",
                Counter::default(),
            ),
            started_pods_errors: kubelet(
                registry,
                "kubelet_started_pods_errors_total",
                "Attempts to create a sandbox that failed",
                Counter::default(),
            ),
            started_user_namespaced_pods: kubelet(
                registry,
                "kubelet_started_user_namespaced_pods_total",
                "Attempts to create a sandbox with a user namespace",
                Counter::default(),
            ),
            started_user_namespaced_pods_errors: kubelet(
                registry,
                "kubelet_started_user_namespaced_pods_errors_total",
                "Attempts to create a sandbox with a user namespace that failed",
                Counter::default(),
            ),
            started_containers: kubelet(
                registry,
                "kubelet_started_containers_total",
                "Attempts to start a container",
                Family::default(),
            ),
            started_containers_errors: kubelet(
                registry,
                "kubelet_started_containers_errors_total",
                "Attempts to start a container that failed, by reason",
                Family::default(),
            ),
            managed_ephemeral_containers: kubelet(
                registry,
                "kubelet_managed_ephemeral_containers",
                "Ephemeral containers in the pods of this node",
                Gauge::default(),
            ),
            run_podsandbox_duration: kubelet(
                registry,
                "kubelet_run_podsandbox_duration_seconds",
                "Seconds that the runtime took to run a sandbox, by runtime handler",
                Family::new_with_constructor(Histogram::request),
            ),
            run_podsandbox_errors: kubelet(
                registry,
                "kubelet_run_podsandbox_errors_total",
                "Sandboxes that the runtime failed to run, by runtime handler",
                Family::default(),
            ),
            http_fallbacks: kubelet(
                registry,
                "kubelet_lifecycle_handler_http_fallbacks_total",
                "Lifecycle hooks by HTTPS that were repeated by HTTP",
                Counter::default(),
            ),
            sleeps_cut_short: kubelet(
                registry,
                "kubelet_sleep_action_terminated_early_total",
                "Sleep hooks that ended before their time",
                Counter::default(),
            ),
            image_pull_duration: kubelet(
                registry,
                "kubelet_image_pull_duration_seconds",
                "Seconds that image pulls took, by size of the image",
                Family::new_with_constructor(|| Histogram::new(IMAGE_PULL)),
            ),
            images_removed: kubelet(
                registry,
                "kubelet_image_garbage_collected_total",
                "Images that nothing used and that were removed, because of their age or to make room",
                Family::default(),
            ),
        }
    }

    /// Counts an attempt to create a sandbox; `user_namespace` for a pod in its own user namespace.
    pub fn pod_started(&self, user_namespace: bool) {
        self.started_pods.inc();
        if user_namespace {
            self.started_user_namespaced_pods.inc();
        }
    }

    /// Counts a sandbox that could not be created. Do not call it if the pod's termination was requested during the attempt.
    pub fn pod_start_failed(&self, user_namespace: bool) {
        self.started_pods_errors.inc();
        if user_namespace {
            self.started_user_namespaced_pods_errors.inc();
        }
    }

    /// Counts an attempt to start a container whose backoff has ended.
    pub fn container_started(&self, container_type: ContainerType) {
        self.started_containers.get_or_create(&TypeLabel { container_type }).inc();
    }

    /// Counts a container that could not be started; `code` is the error's reason, such as
    /// `CreateContainerConfigError`.
    pub fn container_start_failed(&self, container_type: ContainerType, code: &str) {
        let labels = StartErrorLabels { code: code.to_owned(), container_type };
        self.started_containers_errors.get_or_create(&labels).inc();
    }

    /// Sets the number of ephemeral containers in all pods of the node.
    pub fn ephemeral_containers(&self, containers: usize) {
        self.managed_ephemeral_containers.set(containers as i64);
    }

    /// Records a runtime call that created a sandbox, with an error if `failed`. An empty handler is the runtime's
    /// default.
    pub fn sandbox_run(&self, runtime_handler: &str, took: Duration, failed: bool) {
        let labels = HandlerLabel { runtime_handler: runtime_handler.to_owned() };
        self.run_podsandbox_duration.get_or_create(&labels).observe(took);
        if failed {
            self.run_podsandbox_errors.get_or_create(&labels).inc();
        }
    }

    /// Counts a lifecycle hook that fell back from HTTPS to HTTP.
    pub fn http_fallback(&self) {
        self.http_fallbacks.inc();
    }

    /// Counts a sleep hook that ended early.
    pub fn sleep_cut_short(&self) {
        self.sleeps_cut_short.inc();
    }

    /// Counts an unused image that was removed.
    pub fn image_removed(&self, reason: ImageRemoval) {
        self.images_removed.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Records an image pull; `took` includes the wait for other pulls. Zero bytes mean an unknown size.
    pub fn image_pulled(&self, bytes: u64, took: Duration) {
        self.image_pull_duration.get_or_create(&SizeLabel { image_size_in_bytes: ImageSize::of(bytes) }).observe(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_a_size_class_belongs_to_the_class_below() {
        let table = [
            (0, "N/A"),
            (1, "0-10MB"),
            (10 << 20, "0-10MB"),
            ((10 << 20) + 1, "10MB-100MB"),
            (600 << 20, "500MB-1GB"),
            (1 << 30, "500MB-1GB"),
            (2 << 30, "1GB-5GB"),
            (100 << 30, "60GB-100GB"),
            ((100 << 30) + 1, "GT100GB"),
            (u64::MAX, "GT100GB"),
        ];
        for (bytes, class) in table {
            assert_eq!(ImageSize::of(bytes).as_str(), class, "{bytes}");
        }
    }
}
