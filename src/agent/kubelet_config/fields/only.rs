//! The fields of which the agent does only some values, and the remedy for any other value.
//!
//! The comment above each row says what the field is in a kubelet, for whoever makes it a setting.

use super::Kind::{Any, Bool, Duration, Number, Text, TextMap, Texts};
use super::{Field, only};

const NO_CPU_MANAGER: &str = "no container has exclusive CPUs: leave it out";
const NO_TOPOLOGY: &str = "there is no topology manager: leave it out";
const NO_OTHER_CGROUP: &str =
    "the agent limits the cgroups of pods only: leave it out, and limit the slices of systemd";

/// The fields of `KubeletConfiguration`.
pub(super) static FIELDS: &[Field] = &[
    // Whether a client of the node API without credentials is the user system:anonymous.
    only(
        "authentication.anonymous.enabled",
        "anonymous-auth",
        Bool,
        &["false"],
        "the node API has no anonymous clients: set false, and give clients a certificate or a token",
    ),
    // Whether the API server checks the tokens of clients of the node API (TokenReview).
    only(
        "authentication.webhook.enabled",
        "authentication-token-webhook",
        Bool,
        &["true"],
        "the node API always asks the API server about tokens: set true",
    ),
    // Who decides what a client of the node API may do: nobody (AlwaysAllow) or the API server (Webhook).
    only(
        "authorization.mode",
        "authorization-mode",
        Text,
        &["", "Webhook"],
        "the node API always asks the API server whether a client may do what it requests: set Webhook",
    ),
    // Whether the cgroups of pods are below a cgroup for each QoS class.
    only("cgroupsPerQOS", "cgroups-per-qos", Bool, &["true"], "each QoS class has its cgroup: set true"),
    // Whether a limit of CPU becomes a quota of the container's cgroup.
    only(
        "cpuCFSQuota",
        "cpu-cfs-quota",
        Bool,
        &["true"],
        "limits of CPU time are always enforced: set true, or remove the limits from the pods",
    ),
    // The period of that quota, from 1ms to 1s (feature gate CustomCPUCFSQuotaPeriod).
    only(
        "cpuCFSQuotaPeriod",
        "cpu-cfs-quota-period",
        Duration,
        &["100ms"],
        "the period of CPU limits is 100ms: leave it out",
    ),
    // Which containers have exclusive CPUs: none, or those of Guaranteed pods that request whole CPUs (static).
    only("cpuManagerPolicy", "cpu-manager-policy", Text, &["", "none"], NO_CPU_MANAGER),
    // Variants of the policy static, such as full-pcpus-only.
    only("cpuManagerPolicyOptions", "cpu-manager-policy-options", TextMap('='), &[""], NO_CPU_MANAGER),
    // The longest delay of a restart, from 1s to 5m (feature gate KubeletCrashLoopBackOffMax).
    only(
        "crashLoopBackOff.maxContainerRestartPeriod",
        "",
        Duration,
        &["5m0s"],
        "a container that fails again and again restarts after at most five minutes: leave it out",
    ),
    // Whether a controller attaches the volumes of claims, and not the node itself.
    only(
        "enableControllerAttachDetach",
        "enable-controller-attach-detach",
        Bool,
        &["true"],
        "the agent attaches no volumes: set true",
    ),
    // Whether the node API serves logs, exec, attach, port-forward and the list of running pods.
    only(
        "enableDebuggingHandlers",
        "enable-debugging-handlers",
        Bool,
        &["true"],
        "the node API always serves logs and exec to clients that may use them: set true, or set enableServer to false",
    ),
    // Whether the node API answers queries of the logs of services (feature gate NodeLogQuery).
    only("enableSystemLogQuery", "", Bool, &["false"], "the node API does not serve logs of the node: set false"),
    // Which cgroups get limits: pods, system-reserved, kube-reserved, or none.
    only(
        "enforceNodeAllocatable",
        "enforce-node-allocatable",
        Texts,
        &["pods"],
        "the agent limits the pods and no other processes: set [pods], and limit the slices of systemd for the others",
    ),
    // The cgroup that kubeReserved limits, if enforceNodeAllocatable has kube-reserved.
    only("kubeReservedCgroup", "kube-reserved-cgroup", Text, &[""], NO_OTHER_CGROUP),
    // Whether requests and limits of ephemeral-storage count.
    only(
        "localStorageCapacityIsolation",
        "local-storage-capacity-isolation",
        Bool,
        &["true"],
        "limits of ephemeral storage are always enforced: set true",
    ),
    // Which containers have memory of chosen NUMA nodes: none, or those of Guaranteed pods (Static).
    only(
        "memoryManagerPolicy",
        "memory-manager-policy",
        Text,
        &["", "None"],
        "no container has memory of one NUMA node: set None",
    ),
    // Whether a request of memory becomes memory.min or memory.low of the cgroup (feature gate MemoryQoS).
    only(
        "memoryReservationPolicy",
        "",
        Text,
        &["", "None"],
        "requests of memory do not protect it from the kernel: set None",
    ),
    // How long the lease of the node lasts without a renewal. A fourth of it is the time between two renewals.
    only("nodeLeaseDurationSeconds", "", Number, &["0", "40"], "the lease of the node lasts 40 s: leave it out"),
    // The directory of the logs of containers.
    only(
        "podLogsDir",
        "",
        Text,
        &["", "/var/log/pods", "/var/log/pods/"],
        "logs of a node with the default root directory are in /var/log/pods: leave it out",
    ),
    // How much of the memory that higher QoS classes request is kept from the lower ones, in percent.
    only(
        "qosReserved",
        "qos-reserved",
        TextMap('='),
        &[""],
        "no memory is reserved for the Guaranteed class: leave it out",
    ),
    // A port without TLS that serves what the node API serves for reading, to everybody.
    only(
        "readOnlyPort",
        "read-only-port",
        Number,
        &["0"],
        "the agent has no port without authentication: set 0, and use the node API with a token",
    ),
    // The reserved memory of each NUMA node, for the memory manager policy Static.
    only("reservedMemory", "reserved-memory", Any, &[""], "no container has memory of one NUMA node: leave it out"),
    // The CPUs for the system by their numbers, instead of the CPU of systemReserved and kubeReserved.
    only(
        "reservedSystemCPUs",
        "reserved-cpus",
        Text,
        &[""],
        "no CPU is reserved by its number: leave it out, and use systemReserved",
    ),
    // Whether to run the pods of the manifests and exit. It is deprecated.
    only("runOnce", "runonce", Bool, &["false"], "use podwright run --until-finished"),
    // Whether only one process of a container ends when its memory is used up: memory.oom.group of its cgroup.
    only(
        "singleProcessOOMKill",
        "",
        Bool,
        &["false"],
        "all processes of a container end together when its memory is used up: leave it out",
    ),
    // The headers of the requests to staticPodURL.
    only(
        "staticPodURLHeader",
        "manifest-url-header",
        Any,
        &[""],
        "the agent reads headers from a protected file: leave it out, and use podwright run --manifest-url-header-file",
    ),
    // The cgroup for the processes of the system that are in no cgroup.
    only(
        "systemCgroups",
        "system-cgroups",
        Text,
        &[""],
        "the agent moves no process of the system into a cgroup: leave it out",
    ),
    // The cgroup that systemReserved limits, if enforceNodeAllocatable has system-reserved.
    only("systemReservedCgroup", "system-reserved-cgroup", Text, &[""], NO_OTHER_CGROUP),
    // The key exchanges that the node API accepts.
    only("tlsCurvePreferences", "", Any, &[""], "the node API chooses the key exchange: leave it out"),
    // Whether the CPUs, the memory and the devices of a container have to be on one NUMA node.
    only("topologyManagerPolicy", "topology-manager-policy", Text, &["", "none"], NO_TOPOLOGY),
    // Variants of that policy, such as prefer-closest-numa-nodes.
    only("topologyManagerPolicyOptions", "topology-manager-policy-options", TextMap('='), &[""], NO_TOPOLOGY),
    // The collector of the traces (OpenTelemetry over gRPC).
    only("tracing.endpoint", "", Text, &[""], "the agent sends no traces: leave it out"),
    // How many IDs the user namespace of a pod has: a multiple of 65536.
    only("userNamespaces.idsPerPod", "", Number, &["65536"], "the user namespace of a pod has 65536 IDs: leave it out"),
];
