//! Texts of whole pods: their events, their conditions and their reasons for failure.

use super::format;
use crate::pod::PodObject;

/// The event of a sandbox that is replaced (`kuberuntime/kuberuntime_manager.go`, `SyncPod`).
pub const SANDBOX_CHANGED: &str = "Pod sandbox changed, it will be killed and re-created.";

/// The event of a sandbox that cannot be created (`kuberuntime/kuberuntime_manager.go`, `SyncPod`).
pub fn no_sandbox(error: &str) -> String {
    format!("Failed to create pod sandbox: {error}")
}

/// The event of resources that are not ready before the sandbox (`kubelet/kuberuntime/kuberuntime_manager.go`, `SyncPod`).
pub fn resources_not_prepared(error: &str) -> String {
    format!("Failed to prepare dynamic resources: prepare dynamic resources: {error}")
}

/// The event of resources that cannot be given back. A kubelet has no such event.
pub fn resources_not_released(error: &str) -> String {
    format!("Failed to unprepare dynamic resources: {error}")
}

/// The event of a new sandbox without a status (`kuberuntime/kuberuntime_manager.go`, `SyncPod`).
pub fn no_sandbox_status(error: &str) -> String {
    format!("Unable to get pod sandbox status: {error}")
}

/// The start of the event of a pod that waits for the runtime's network (`kubelet.go`, `SyncPod`).
pub const NETWORK_NOT_READY: &str = "network is not ready";

/// A condition of the runtime that is not met. `what` is `container runtime` or `container runtime network` (`kubelet.go`,
/// `updateRuntimeUp`; `container/runtime.go`, `RuntimeCondition.String`).
pub fn runtime_condition(what: &str, kind: &str, reason: &str, message: &str) -> String {
    format!("{what} not ready: {kind}=false reason:{reason} message:{message}")
}

/// The event of a pod whose cgroup cannot be made (`kubelet.go`, `SyncPod`).
pub fn no_cgroup(error: &str) -> String {
    format!("unable to ensure pod container exists: {error}")
}

/// The event of a pod that cannot be stopped (`kubelet.go`, `SyncTerminatingPod`).
pub fn not_killed(error: &str) -> String {
    format!("error killing pod: {error}")
}

/// One error of [`not_killed`]. `action` is `KillContainer` or `KillPodSandbox` (`container/sync_result.go`, `Error`).
pub fn kill_failed(action: &str, target: &str, error: &str) -> String {
    format!("failed to \"{action}\" for {} with {action}Error: {}", format::quoted(target), format::quoted(error))
}

/// The event of a pod whose status cannot be read (`pod_workers.go`, `podWorkerLoop`).
pub fn no_status(error: &str) -> String {
    format!("error determining status: {error}")
}

/// The event of a second pod of one name in one source (`config/config.go`, `filterInvalidPods`).
pub fn duplicate_name(pod: &PodObject, source: &str) -> String {
    let name = pod.full_name();
    let full_name = format::quoted(&format!("{}_{}", name.name(), name.namespace()));
    format!("Error validating pod {} from {source} due to duplicate pod name {full_name}, ignoring", format::pod(pod))
}

/// The event of a pod that an eviction did not stop in time (`pod_workers.go`, `killPodNow`).
pub const GRACE_PERIOD_EXCEEDED: &str = "Container runtime did not kill the pod within specified grace period.";

/// The event and the message of a pod that exceeded its active deadline (`active_deadline.go`, `ShouldEvict`).
pub const DEADLINE_EXCEEDED: &str = "Pod was active on the node longer than the specified deadline";

/// The event on a pod whose policy needs the cluster's name servers on a node without them (`network/dns/dns.go`, `GetPodDNS`).
pub fn no_cluster_dns_of(pod: &PodObject) -> String {
    format!("pod: {}. {NO_CLUSTER_DNS}", format::quoted(&format::pod(pod)))
}

/// The event on the node for the same pod (`network/dns/dns.go`, `GetPodDNS`).
pub const NO_CLUSTER_DNS: &str = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" \
                                  policy. Falling back to \"Default\" policy.";

/// The event of search domains that are left out (`network/dns/dns.go`, `formDNSSearchFitsLimits`).
pub fn search_limits(applied: &[String]) -> String {
    let applied = applied.join(" ");
    format!(
        "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {applied}"
    )
}

/// The event of name servers that are left out (`network/dns/dns.go`, `formDNSNameserversFitsLimits`).
pub fn nameserver_limits(applied: &[String]) -> String {
    let applied = applied.join(" ");
    format!(
        "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {applied}"
    )
}

/// The message of a rejected pod; its event has only `why` (`kubelet.go`, `rejectPod`).
pub fn rejected(why: &str) -> String {
    format!("Pod was rejected: {why}")
}

/// The rejection of a pod while the node shuts down (`nodeshutdown/nodeshutdown_manager_linux.go`, `Admit`).
pub const NODE_SHUTS_DOWN: &str = "Pod was rejected as the node is shutting down.";

/// The message of a pod that a node shutdown stops, in its status and its condition `DisruptionTarget`
/// (`nodeshutdown/nodeshutdown_manager.go`, `killPods`).
pub const NODE_SHUT_DOWN: &str = "Pod was terminated in response to imminent node shutdown.";

/// The message of a condition that waits for containers. `unmet` is `incomplete` or `unready` (`status/generate.go`,
/// `GeneratePodInitializedCondition`, `GenerateContainersReadyCondition`).
pub fn waits_for_containers(unknown: &[&str], unmet: &str, waits: &[&str]) -> String {
    let part = |what: &str, names: &[&str]| {
        (!names.is_empty()).then(|| format!("containers with {what} status: {}", format::list(names)))
    };
    let parts: Vec<String> = [part("unknown", unknown), part(unmet, waits)].into_iter().flatten().collect();
    parts.join(", ")
}

/// A readiness gate without its condition (`status/generate.go`, `GeneratePodReadyCondition`).
pub fn no_gate(gate: &str) -> String {
    format!("corresponding condition of pod readiness gate {} does not exist.", format::quoted(gate))
}

/// A readiness gate whose condition is not True (`status/generate.go`, `GeneratePodReadyCondition`).
pub fn closed_gate(gate: &str, status: &str) -> String {
    format!("the status of pod readiness gate {} is not \"True\", but {status}", format::quoted(gate))
}

/// The message of the condition `AllContainersRestarting` (`status/generate.go`, `GenerateAllContainersRestartingCondition`).
pub const RESTART_ALL_STARTED: &str = "container exited with restart policy rule";
