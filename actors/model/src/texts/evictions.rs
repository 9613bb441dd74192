//! Texts of evictions: the message of the pod, of its event and of its condition. All are from `eviction/helpers.go` and
//! `eviction/eviction_manager.go`; each names the function. Every text ends with a space.

use super::format::{list, quoted};

/// The reason of an evicted pod, of its event, and of a pod that is rejected under pressure (`Reason`).
pub const EVICTED: &str = "Evicted";
/// The condition of a node that is low on memory (`core/v1`, `NodeMemoryPressure`).
pub const MEMORY_PRESSURE: &str = "MemoryPressure";
/// The condition of a node that is low on disk space or inodes (`core/v1`, `NodeDiskPressure`).
pub const DISK_PRESSURE: &str = "DiskPressure";
/// The condition of a node that is low on process ids (`core/v1`, `NodePIDPressure`).
pub const PID_PRESSURE: &str = "PIDPressure";
/// The reason and the message of the condition `MemoryPressure` that is true (`nodestatus/setters.go`, `MemoryPressureCondition`).
pub const INSUFFICIENT_MEMORY: (&str, &str) =
    ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available");
/// The reason and the message of the condition `MemoryPressure` that is false (`MemoryPressureCondition`).
pub const SUFFICIENT_MEMORY: (&str, &str) = ("KubeletHasSufficientMemory", "kubelet has sufficient memory available");
/// The reason and the message of the condition `DiskPressure` that is true (`DiskPressureCondition`).
pub const HAS_DISK_PRESSURE: (&str, &str) = ("KubeletHasDiskPressure", "kubelet has disk pressure");
/// The reason and the message of the condition `DiskPressure` that is false (`DiskPressureCondition`).
pub const HAS_NO_DISK_PRESSURE: (&str, &str) = ("KubeletHasNoDiskPressure", "kubelet has no disk pressure");
/// The reason and the message of the condition `PIDPressure` that is true (`PIDPressureCondition`).
pub const INSUFFICIENT_PID: (&str, &str) = ("KubeletHasInsufficientPID", "kubelet has insufficient PID available");
/// The reason and the message of the condition `PIDPressure` that is false (`PIDPressureCondition`).
pub const SUFFICIENT_PID: (&str, &str) = ("KubeletHasSufficientPID", "kubelet has sufficient PID available");
/// The resource that memory is counted as (`core/v1`, `ResourceMemory`).
pub const MEMORY: &str = "memory";
/// The resource that processes are counted as (`resourcePids`).
pub const PIDS: &str = "pids";
/// The resource that bytes on disk are counted as (`core/v1`, `ResourceEphemeralStorage`).
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// The resource that files are counted as (`resourceInodes`).
pub const INODES: &str = "inodes";

/// The annotation with the containers that use more than they request, separated by commas (`OffendingContainersKey`).
pub const OFFENDING_CONTAINERS: &str = "offending_containers";
/// The annotation with what these containers use, separated by commas (`OffendingContainersUsageKey`).
pub const OFFENDING_CONTAINERS_USAGE: &str = "offending_containers_usage";
/// The annotation with a pod that has a memory request of its own (`OffendingPodKey`).
pub const OFFENDING_POD: &str = "offending_pod";
/// The annotation with what this pod uses (`OffendingPodUsageKey`).
pub const OFFENDING_POD_USAGE: &str = "offending_pod_usage";
/// The annotation with the resource that the node lacks (`StarvedResourceKey`).
pub const STARVED_RESOURCE: &str = "starved_resource";

/// An emptyDir that is larger than its limit (`emptyDirLimitEviction`).
pub fn empty_dir_limit(volume: &str, limit: &str) -> String {
    format!("Usage of EmptyDir volume {} exceeds the limit {}. ", quoted(volume), quoted(limit))
}

/// A pod whose files are larger than the limits of its containers together (`podEphemeralStorageLimitEviction`).
pub fn pod_limit(limit: &str) -> String {
    format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ")
}

/// A container whose files are larger than its limit (`containerEphemeralStorageLimitEviction`).
pub fn container_limit(container: &str, limit: &str) -> String {
    format!("Container {container} exceeded its local ephemeral storage limit {}. ", quoted(limit))
}

/// The start of the message of a pod that is evicted because the node is short of a resource (`evictionMessage`).
pub fn node_low(resource: &str, threshold: &str, available: &str) -> String {
    format!("The node was low on resource: {resource}. Threshold quantity: {threshold}, available: {available}. ")
}

/// The part of the same message for a container that uses more than it requests (`evictionMessage`).
pub fn larger_consumption(container: &str, used: &str, request: &str, resource: &str) -> String {
    format!("Container {container} was using {used}, request is {request}, has larger consumption of {resource}. ")
}

/// The part of the same message for a pod with a memory request of its own (`evictionMessage`).
pub fn larger_pod_consumption(pod: &str, used: &str, request: &str, resource: &str) -> String {
    format!("Pod {pod} was using {used}, request is {request}, has larger consumption of {resource}. ")
}

/// The event of the node before it reclaims a resource (`synchronize`).
pub fn reclaims(resource: &str) -> String {
    format!("Attempting to reclaim {resource}")
}

/// The rejection of a pod while the node has these conditions (`Admit`).
pub fn node_had_condition(conditions: &[&str]) -> String {
    format!("The node had condition: {}. ", list(conditions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_messages_end_with_a_space() {
        for (text, expected) in [
            (empty_dir_limit("cache", "1Mi"), "Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". "),
            (pod_limit("3Gi"), "Pod ephemeral local storage usage exceeds the total limit of containers 3Gi. "),
            (container_limit("app", "1Gi"), "Container app exceeded its local ephemeral storage limit \"1Gi\". "),
            (
                node_low(EPHEMERAL_STORAGE, "46993491787", "45494108Ki")
                    + &larger_consumption("app", "108Ki", "0", EPHEMERAL_STORAGE),
                "The node was low on resource: ephemeral-storage. Threshold quantity: 46993491787, available: 45494108Ki. \
                 Container app was using 108Ki, request is 0, has larger consumption of ephemeral-storage. ",
            ),
            (node_had_condition(&[DISK_PRESSURE]), "The node had condition: [DiskPressure]. "),
        ] {
            assert_eq!(text, expected);
        }
    }
}
