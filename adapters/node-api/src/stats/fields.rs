//! The answer of `/stats/summary` (`k8s.io/kubelet/pkg/apis/stats/v1alpha1`, 1.36). Fields without a value are absent.

use serde::Serialize;

use super::network::NetworkStats;

/// The statistics of the node and its pods.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Summary {
    pub(super) node: NodeStats,
    pub(super) pods: Vec<PodStats>,
}

impl Summary {
    /// Removes what a kubelet does not report in its short answer (`GetCPUAndMemoryStats`, `pkg/kubelet/server/stats/summary.go`, 1.36).
    pub(super) fn shorten(&mut self) {
        let node = &mut self.node;
        (node.rlimit, node.used.io) = (None, None);
        let of_pods = self.pods.iter_mut().flat_map(|pod| {
            (pod.processes, pod.used.io) = (None, None);
            &mut pod.containers
        });
        for container in of_pods.chain(&mut node.system_containers) {
            (container.rootfs, container.used.io) = (None, None);
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeStats {
    pub(super) node_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) system_containers: Vec<ContainerStats>,
    pub(super) start_time: String,
    #[serde(flatten)]
    pub(super) used: ResourceUsage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<NetworkStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) runtime: Option<ImageStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rlimit: Option<RlimitStats>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodStats {
    pub(super) pod_ref: PodReference,
    pub(super) start_time: String,
    pub(super) containers: Vec<ContainerStats>,
    #[serde(flatten)]
    pub(super) used: ResourceUsage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<NetworkStats>,
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub(super) volumes: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub(super) ephemeral_storage: Option<FsStats>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub(super) processes: Option<ProcessStats>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ProcessStats {
    pub(super) process_count: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PodReference {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContainerStats {
    pub(super) name: String,
    pub(super) start_time: String,
    /// Seconds since the epoch.
    #[serde(skip)]
    pub(super) started: f64,
    #[serde(flatten)]
    pub(super) used: ResourceUsage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rootfs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) logs: Option<FsStats>,
}

/// The file systems of the images and of the writable layers.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ImageStats {
    pub(super) image_fs: FsStats,
    pub(super) container_fs: FsStats,
}

/// One volume of a pod.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct VolumeStats {
    #[serde(flatten)]
    pub(super) space: FsStats,
    pub(super) name: String,
}

/// CPU time, memory, disks and swap space.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ResourceUsage {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap: Option<SwapStats>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CpuStats {
    pub(super) time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_core_nano_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) psi: Option<PsiStats>,
    /// Milliseconds since the epoch.
    #[serde(skip)]
    pub(super) at: i64,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemoryStats {
    pub(super) time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) psi: Option<PsiStats>,
    /// Milliseconds since the epoch.
    #[serde(skip)]
    pub(super) at: i64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct IoStats {
    pub(super) time: String,
    pub(super) psi: PsiStats,
}

/// For how long processes waited for a resource.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PsiStats {
    pub(super) full: PsiData,
    pub(super) some: PsiData,
}

/// A time in microseconds, and parts of the last 10, 60 and 300 s in percent.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PsiData {
    pub(super) total: u64,
    pub(super) avg10: f64,
    pub(super) avg60: f64,
    pub(super) avg300: f64,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SwapStats {
    pub(super) time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap_available_bytes: Option<u64>,
    pub(super) swap_usage_bytes: u64,
    /// Milliseconds since the epoch.
    #[serde(skip)]
    pub(super) at: i64,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FsStats {
    pub(super) time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes_used: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct RlimitStats {
    pub(super) time: String,
    pub(super) maxpid: u64,
    pub(super) curproc: u64,
}
