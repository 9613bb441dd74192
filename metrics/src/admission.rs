//! Refused, evicted and preempted pods.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::histogram::Histogram;
use crate::labels::label_values;
use crate::register::kubelet;

/// The rejection reasons with a series of their own (`kubelet.go`, Kubernetes 1.36). The others share two series, so
/// that the number of series is bounded.
const REJECTION_REASONS: [&str; 21] = [
    "AppArmor",
    "Evicted",
    "InitContainerRestartPolicyForbidden",
    "InvalidNodeInfo",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodFeatureUnsupported",
    "PodLevelResourcesNotSupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
    "UnknownReason",
    "VolumeAttachmentLimitExceeded",
    "node(s) had taints that the pod didn't tolerate",
];

label_values! {
    /// The resource that was short when a pod was evicted.
    pub enum EvictionSignal {
        /// The node's memory.
        MemoryAvailable = "memory.available",
        /// The memory that pods may use.
        AllocatableMemoryAvailable = "allocatableMemory.available",
        /// The space for volumes and logs.
        NodeFsAvailable = "nodefs.available",
        /// The inodes for volumes and logs.
        NodeFsInodesFree = "nodefs.inodesFree",
        /// The space for images.
        ImageFsAvailable = "imagefs.available",
        /// The inodes for images.
        ImageFsInodesFree = "imagefs.inodesFree",
        /// The space for writable layers.
        ContainerFsAvailable = "containerfs.available",
        /// The inodes for writable layers.
        ContainerFsInodesFree = "containerfs.inodesFree",
        /// The process ids.
        PidAvailable = "pid.available",
        /// The limit of a container's local storage.
        EphemeralContainerFsLimit = "ephemeralcontainerfs.limit",
        /// The limit of a pod's local storage.
        EphemeralPodFsLimit = "ephemeralpodfs.limit",
        /// The size limit of an emptyDir.
        EmptyDirFsLimit = "emptydirfs.limit",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EvictionLabel {
    eviction_signal: EvictionSignal,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PreemptionLabel {
    preemption_signal: String,
}

/// Refused, evicted and preempted pods.
#[derive(Clone, Debug)]
pub struct AdmissionMetrics {
    rejections: Family<ReasonLabel, Counter>,
    evictions: Family<EvictionLabel, Counter>,
    stats_age: Family<EvictionLabel, Histogram>,
    preemptions: Family<PreemptionLabel, Counter>,
}

impl AdmissionMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        AdmissionMetrics {
            rejections: kubelet(
                registry,
                "kubelet_admission_rejections_total",
                "Pods that this node refused to admit, by reason",
                Family::default(),
            ),
            evictions: kubelet(registry, "kubelet_evictions", "Pods evicted, by what ran short", Family::default()),
            stats_age: kubelet(
                registry,
                "kubelet_eviction_stats_age_seconds",
                "Age of the measurement that an eviction was decided by",
                Family::new_with_constructor(Histogram::request),
            ),
            preemptions: kubelet(
                registry,
                "kubelet_preemptions",
                "Pods stopped to make room for a more important one, by the resource it lacked",
                Family::default(),
            ),
        }
    }

    /// Counts a rejected pod. An unknown reason counts as `OutOfExtendedResources` if it names a resource (`OutOf...`),
    /// else as `Other`.
    pub fn rejected(&self, reason: &str) {
        let reason = match REJECTION_REASONS.iter().find(|known| **known == reason) {
            Some(known) => known,
            None if reason.starts_with("OutOf") => "OutOfExtendedResources",
            None => "Other",
        };
        self.rejections.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Counts an evicted pod.
    pub fn evicted(&self, eviction_signal: EvictionSignal) {
        self.evictions.get_or_create(&EvictionLabel { eviction_signal }).inc();
    }

    /// Records the age of the measurement that led to an eviction.
    pub fn eviction_stats_age(&self, eviction_signal: EvictionSignal, age: Duration) {
        self.stats_age.get_or_create(&EvictionLabel { eviction_signal }).observe(age);
    }

    /// Counts a preempted pod. `resource` is the first one that the incoming pod lacked; empty if none was named.
    pub fn preempted(&self, resource: &str) {
        self.preemptions.get_or_create(&PreemptionLabel { preemption_signal: resource.to_owned() }).inc();
    }
}
