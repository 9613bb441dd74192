//! Reasons and messages of pods that admission refuses or preempts.

use super::format;

/// The pod's label `kubernetes.io/os` names another operating system (`lifecycle/predicate.go`, `Admit`).
pub const OS_LABEL_DIFFERS: (&str, &str) = (
    "PodOSSelectorNodeLabelDoesNotMatch",
    "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
);

/// The pod's `spec.os` names another operating system (`lifecycle/predicate.go`, `Admit`).
pub const OS_NOT_SUPPORTED: (&str, &str) =
    ("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS");

/// The pod needs strict supplemental groups, which the runtime does not support (`lifecycle/predicate.go`, `Admit`).
pub const STRICT_GROUPS_NOT_SUPPORTED: (&str, &str) =
    ("SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node");

/// The node's labels do not match the pod's selector or required affinity
/// (`pkg/scheduler/framework/plugins/nodeaffinity/node_affinity.go`).
pub const NODE_AFFINITY: (&str, &str) = ("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");

/// The pod's `spec.nodeName` names another node (`pkg/scheduler/framework/plugins/nodename/node_name.go`).
pub const NODE_NAME: (&str, &str) = ("NodeName", "node(s) didn't match the requested node name");

/// Another pod uses one of the pod's host ports (`pkg/scheduler/framework/plugins/nodeports/node_ports.go`).
pub const NODE_PORTS: (&str, &str) = ("NodePorts", "node(s) didn't have free ports for the requested pod ports");

/// The pod does not tolerate a taint (`pkg/scheduler/framework/plugins/tainttoleration/taint_toleration.go`).
pub const TAINT_TOLERATION: (&str, &str) = ("TaintToleration", "node(s) had taints that the pod didn't tolerate");

/// The message of a predicate that failed (`lifecycle/predicate.go`, `PredicateFailureError`).
pub fn predicate_failed(name: &str, why: &str) -> String {
    format!("Predicate {name} failed: {why}")
}

/// The reason of a pod for which the node has too little of a resource (`lifecycle/predicate.go`, `Admit`).
pub fn out_of_reason(resource: &str) -> String {
    format!("OutOf{resource}")
}

/// The message of a pod for which the node has too little of a resource (`lifecycle/predicate.go`, `InsufficientResourceError`).
/// CPU is in thousandths of a core.
pub fn out_of(resource: &str, requested: i64, used: i64, capacity: i64) -> String {
    format!("Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}")
}

/// The reason of a pod with a sysctl that is not allowed (`sysctl/allowlist.go`, `ForbiddenReason`).
pub const SYSCTL_FORBIDDEN: &str = "SysctlForbidden";

/// A sysctl that is in no list (`sysctl/allowlist.go`, `Admit`, `validateSysctl`).
pub fn sysctl_not_allowed(sysctl: &str) -> String {
    format!("forbidden sysctl: {} not allowlisted", format::quoted(sysctl))
}

/// A sysctl of a namespace that the pod shares with the host. `namespace` is `ipc` or `net` (`sysctl/allowlist.go`,
/// `validateSysctl`).
pub fn sysctl_of_host(sysctl: &str, namespace: &str) -> String {
    format!("forbidden sysctl: {} not allowed with host {namespace} enabled", format::quoted(sysctl))
}

/// The reason of a pod with an AppArmor profile that the node cannot enforce (`lifecycle/handlers.go`, `AppArmorNotAdmittedReason`).
pub const APP_ARMOR: &str = "AppArmor";

/// The message of such a pod (`lifecycle/handlers.go`, `appArmorAdmitHandler.Admit`).
pub fn app_armor(why: &str) -> String {
    format!("Cannot enforce AppArmor: {why}")
}

/// The node's kernel has no AppArmor (`pkg/security/apparmor/validate.go`, `validateHost`).
pub const APP_ARMOR_NOT_ENABLED: &str = "AppArmor is not enabled on the host";

/// A local profile without a name (`pkg/security/apparmor/validate.go`, `Validate`).
pub fn app_armor_profile_empty(profile: &str) -> String {
    format!("invalid empty AppArmor profile name: {}", format::quoted(profile))
}

/// The reason of a critical pod for which no other pods can make room (`lifecycle/predicate.go`, `Admit`).
pub const UNEXPECTED_ADMISSION_ERROR: &str = "UnexpectedAdmissionError";

/// The message of such a pod. Each missing resource has its amount; CPU is in thousandths of a core (`lifecycle/predicate.go`,
/// `Admit`; `preemption/preemption.go`, `evictPodsToFreeRequests`, `getPodsToPreempt`, `toString`).
pub fn no_room(missing: &[(String, i64)]) -> String {
    let missing: String =
        missing.iter().map(|(resource, amount)| format!("(res: {resource}, q: {amount}), ")).collect();
    format!(
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to \
         preempt: no set of running pods found to reclaim resources: [{missing}]"
    )
}

/// The reason of a preempted pod, in its status and its event (`events/event.go`, `PreemptContainer`).
pub const PREEMPTING: &str = "Preempting";

/// The message of a preempted pod, in its status and its event (`preemption/preemption.go`).
pub const PREEMPTED: &str = "Preempted in order to admit critical pod";

/// The message of a preempted pod's condition `DisruptionTarget` (`preemption/preemption.go`, `evictPodsToFreeRequests`).
pub const PREEMPTED_CONDITION: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";
