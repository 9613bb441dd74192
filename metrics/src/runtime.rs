//! Calls to the container runtime.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::histogram::{Histogram, RUNTIME_CALL};
use crate::labels::label_values;
use crate::register::kubelet;

label_values! {
    /// A call of the container runtime interface, by the name that the kubelet's metrics have for it
    /// (`instrumented_services.go`, Kubernetes 1.36).
    pub enum RuntimeOperation {
        /// `Version`.
        Version = "version",
        /// `Status`.
        Status = "status",
        /// `RunPodSandbox`.
        RunPodSandbox = "run_podsandbox",
        /// `StopPodSandbox`.
        StopPodSandbox = "stop_podsandbox",
        /// `RemovePodSandbox`.
        RemovePodSandbox = "remove_podsandbox",
        /// `PodSandboxStatus`.
        PodSandboxStatus = "podsandbox_status",
        /// `ListPodSandbox`.
        ListPodSandbox = "list_podsandbox",
        /// `PodSandboxStats`.
        PodSandboxStats = "podsandbox_stats",
        /// `ListPodSandboxStats`.
        ListPodSandboxStats = "list_podsandbox_stats",
        /// `ListPodSandboxMetrics`.
        ListPodSandboxMetrics = "list_podsandbox_metrics",
        /// `ListMetricDescriptors`.
        ListMetricDescriptors = "list_metric_descriptors",
        /// `CreateContainer`.
        CreateContainer = "create_container",
        /// `StartContainer`.
        StartContainer = "start_container",
        /// `StopContainer`.
        StopContainer = "stop_container",
        /// `RemoveContainer`.
        RemoveContainer = "remove_container",
        /// `ListContainers`.
        ListContainers = "list_containers",
        /// `ContainerStatus`.
        ContainerStatus = "container_status",
        /// `UpdateContainerResources`.
        UpdateContainer = "update_container",
        /// `ReopenContainerLog`.
        ReopenContainerLog = "reopen_container_log",
        /// `ContainerStats`.
        ContainerStats = "container_stats",
        /// `ListContainerStats`.
        ListContainerStats = "list_container_stats",
        /// `CheckpointContainer`.
        CheckpointContainer = "checkpoint_container",
        /// `GetContainerEvents`.
        GetContainerEvents = "get_container_events",
        /// `ExecSync`.
        ExecSync = "exec_sync",
        /// `Exec`.
        Exec = "exec",
        /// `Attach`.
        Attach = "attach",
        /// `PortForward`.
        PortForward = "port_forward",
        /// `RuntimeConfig`.
        RuntimeConfig = "runtime_config",
        /// `UpdateRuntimeConfig`.
        UpdateRuntimeConfig = "update_runtime_config",
        /// `ListImages`.
        ListImages = "list_images",
        /// `ImageStatus`.
        ImageStatus = "image_status",
        /// `PullImage`.
        PullImage = "pull_image",
        /// `RemoveImage`.
        RemoveImage = "remove_image",
        /// `ImageFsInfo`.
        ImageFsInfo = "image_fs_info",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation_type: RuntimeOperation,
}

/// Metrics of the calls to the container runtime. An operation has series after its first call.
#[derive(Clone, Debug)]
pub struct RuntimeMetrics {
    operations: Family<OperationLabel, Counter>,
    duration: Family<OperationLabel, Histogram>,
    errors: Family<OperationLabel, Counter>,
}

impl RuntimeMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        RuntimeMetrics {
            operations: kubelet(
                registry,
                "kubelet_runtime_operations_total",
                "Calls to the container runtime",
                Family::default(),
            ),
            duration: kubelet(
                registry,
                "kubelet_runtime_operations_duration_seconds",
                "Seconds that calls to the container runtime took",
                Family::new_with_constructor(|| Histogram::new(RUNTIME_CALL)),
            ),
            errors: kubelet(
                registry,
                "kubelet_runtime_operations_errors_total",
                "Calls to the container runtime that failed",
                Family::default(),
            ),
        }
    }

    /// Records a call, with an error if `failed`.
    pub fn called(&self, operation_type: RuntimeOperation, took: Duration, failed: bool) {
        let labels = OperationLabel { operation_type };
        self.operations.get_or_create(&labels).inc();
        self.duration.get_or_create(&labels).observe(took);
        if failed {
            self.errors.get_or_create(&labels).inc();
        }
    }
}
