//! The events of the node, and the reasons and messages of its condition `Ready`. The texts of the other conditions are in
//! [`evictions`](super::evictions).

/// The agent has started (`kubelet.go`, `BirthCry`).
pub const STARTING: (&str, &str) = ("Starting", "Starting kubelet.");
/// The limits of all pods together are set (`cm/node_container_manager_linux.go`, `enforceNodeAllocatableCgroups`).
pub const ALLOCATABLE_ENFORCED: (&str, &str) =
    ("NodeAllocatableEnforced", "Updated Node Allocatable limit across pods");
/// The reason of the event about a machine that has rebooted (`events/event.go`, `NodeRebooted`).
pub const REBOOTED: &str = "Rebooted";

/// The reason and the message of the condition `Ready` that is true (`nodestatus/setters.go`, `ReadyCondition`).
pub const READY: (&str, &str) = ("KubeletReady", "kubelet is posting ready status");
/// The reason of the condition `Ready` that is false (`nodestatus/setters.go`, `ReadyCondition`).
pub const NOT_READY: &str = "KubeletNotReady";
/// The runtime has not been listed yet (`runtime.go`, `runtimeErrors`).
pub const RUNTIME_NOT_CHECKED: &str = "container runtime status check may not have completed yet";
/// The runtime does not answer (`runtime.go`, `runtimeErrors`).
pub const RUNTIME_DOWN: &str = "container runtime is down";
/// The machine shuts down (`nodeshutdown/nodeshutdown_manager_linux.go`, `ShutdownStatus`).
pub const SHUTTING_DOWN: &str = "node is shutting down";

/// The event when `Ready` becomes true (`events/event.go`).
pub const NODE_READY: &str = "NodeReady";
/// The event when `Ready` becomes false (`events/event.go`).
pub const NODE_NOT_READY: &str = "NodeNotReady";
/// The event when pods may be scheduled to the node again (`events/event.go`).
pub const NODE_SCHEDULABLE: &str = "NodeSchedulable";
/// The event when no pods may be scheduled to the node (`events/event.go`).
pub const NODE_NOT_SCHEDULABLE: &str = "NodeNotSchedulable";

/// The message of the events about conditions and about scheduling (`kubelet_node_status.go`, `recordNodeStatusEvent`).
pub fn status_is_now(node: &str, event: &str) -> String {
    format!("Node {node} status is now: {event}")
}

/// The message about a machine that has rebooted (`nodestatus/setters.go`, `MachineInfo`).
pub fn rebooted(node: &str, boot_id: &str) -> String {
    format!("Node {node} has been rebooted, boot id: {boot_id}")
}

/// The message of a status without resources that the scheduler needs (`nodestatus/setters.go`, `ReadyCondition`).
pub fn missing_capacity(resources: &[&str]) -> String {
    format!("missing node capacity for resources: {}", resources.join(", "))
}

/// The message of the condition `Ready` for several problems (`k8s.io/apimachinery/pkg/util/errors`, `NewAggregate`): equal problems
/// count once, and brackets enclose more than one.
pub fn aggregate(problems: &[String]) -> String {
    let mut different: Vec<&str> = Vec::new();
    for problem in problems {
        if !different.contains(&problem.as_str()) {
            different.push(problem);
        }
    }
    match different.as_slice() {
        [one] => (*one).to_owned(),
        all => format!("[{}]", all.join(", ")),
    }
}
