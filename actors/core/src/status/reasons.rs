//! Condition types and reasons that other programs read, spelled as in the kubelet (1.36).

/// A sandbox exists in which containers can start.
pub(super) const READY_TO_START: &str = "PodReadyToStartContainers";
/// All init containers have completed.
pub(super) const INITIALIZED: &str = "Initialized";
/// Every container is ready.
pub(super) const CONTAINERS_READY: &str = "ContainersReady";
/// The pod can serve requests.
pub(super) const READY: &str = "Ready";
/// The pod has a node.
pub(super) const SCHEDULED: &str = "PodScheduled";
/// All containers are being removed and restarted (KEP-5532).
pub(super) const ALL_RESTARTING: &str = "AllContainersRestarting";
/// A resize waits.
pub const RESIZE_PENDING: &str = "PodResizePending";
/// A resize is in progress.
pub const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";
/// The pod is terminated by a disruption. Other programs set this condition too, so it is never generated from
/// containers.
pub(crate) const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Whether the node sets a condition type.
pub(super) fn is_owned(condition_type: &str) -> bool {
    matches!(
        condition_type,
        SCHEDULED
            | READY
            | INITIALIZED
            | CONTAINERS_READY
            | READY_TO_START
            | RESIZE_PENDING
            | RESIZE_IN_PROGRESS
            | ALL_RESTARTING
    )
}

pub(super) const CONTAINERS_NOT_INITIALIZED: &str = "ContainersNotInitialized";
pub(super) const CONTAINERS_NOT_READY: &str = "ContainersNotReady";
pub(super) const UNKNOWN_CONTAINER_STATUSES: &str = "UnknownContainerStatuses";
pub(super) const READINESS_GATES_NOT_READY: &str = "ReadinessGatesNotReady";
pub(super) const POD_COMPLETED: &str = "PodCompleted";
pub(super) const POD_FAILED: &str = "PodFailed";
pub(super) const RESTART_ALL_STARTED: &str = "RestartAllContainersStarted";

pub(super) const CONTAINER_CREATING: &str = "ContainerCreating";
pub(super) const POD_INITIALIZING: &str = "PodInitializing";
pub(super) const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";
pub(super) const COMPLETED: &str = "Completed";
pub(super) const ERROR: &str = "Error";
/// The reason of a pod that lost its sandbox before all its containers started. podwright's own.
pub(super) const SANDBOX_LOST: &str = "SandboxLost";
/// The reason of a pod that exceeded its active deadline, in its status and its event.
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";

/// The exit code of a container whose exit was not observed: that of a kill.
pub(super) const UNKNOWN_EXIT: i32 = 137;
/// The reason of a pod that failed because its node shut down (upstream `nodeShutdownReason`, kubelet 1.36).
pub const TERMINATED: &str = "Terminated";
/// The reason of a pod that was rejected during a shutdown of its node (upstream `NodeShutdownNotAdmittedReason`, kubelet 1.36).
pub const NODE_SHUTDOWN: &str = "NodeShutdown";
