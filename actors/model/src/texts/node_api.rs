//! Texts of the answers of the node API.

use super::format::{list, quoted};

/// The request has no valid credentials (`server/server.go`, `InstallAuthFilter`).
pub const UNAUTHORIZED: &str = "Unauthorized";
/// No pod of this name runs (`server/server.go`, `getExec`).
pub const NO_POD: &str = "pod does not exist";
/// The pod of this name has another UID (`server/server.go`, `getPortForward`).
pub const OTHER_POD: &str = "pod not found";
/// A stream carries nothing (`cri-streaming/pkg/streaming/remotecommand`, `NewOptions`).
pub const NO_STREAM: &str = "you must specify at least 1 of stdin, stdout, stderr";
/// `/logs` is not served (`server/server.go`, `InstallSystemLogHandler`).
pub const LOGS_DISABLED: &str = "logs endpoint is disabled.\n";
/// `/debug/pprof` is not served (`server/server.go`, `InstallProfilingHandler`).
pub const PROFILING_DISABLED: &str = "profiling endpoint is disabled.\n";
/// `/debug/flags` is not served (`server/server.go`, `InstallDebugFlagsHandler`).
pub const FLAGS_DISABLED: &str = "flags endpoint is disabled.\n";
/// The query of a request for a log has a value of a wrong type (`server/server.go`, `getContainerLogs`).
pub const UNDECODABLE_QUERY: &str = "{\"message\": \"Unable to decode query.\"}";
/// The query of a request for a log has values that are out of range, or exclude each other (`server/server.go`, `getContainerLogs`).
pub const INVALID_QUERY: &str = "{\"message\": \"Invalid request.\"}";
/// The check of the sync loop fails (`kubelet.go`, `SyncLoopHealthCheck`).
pub const SYNC_LOOP_LATE: &str = "sync Loop took longer than expected";

/// The user has no permission (`server/server.go`, `InstallAuthFilter`).
pub fn forbidden(user: &str, verb: &str, subresources: &[&str]) -> String {
    format!("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)={})\n", list(subresources))
}

/// The API server does not answer whether the user has the permission (`server/server.go`, `InstallAuthFilter`).
pub fn authorization_error(user: &str, verb: &str, subresource: &str) -> String {
    format!("Authorization error (user={user}, verb={verb}, resource=nodes, subresource={subresource})")
}

/// No pod of this name has a log (`server/server.go`, `getContainerLogs`).
pub fn no_pod(name: &str) -> String {
    format!("pod {} does not exist", quoted(name))
}

/// The spec of the pod has no such container (`server/server.go`, `getContainerLogs`).
pub fn no_container(container: &str, pod: &str) -> String {
    format!("container {} not found in pod {}", quoted(container), quoted(pod))
}

/// No such container runs (`kubelet_pods.go`, `GetExec`).
pub fn container_not_found(container: &str) -> String {
    format!("container not found ({})", quoted(container))
}

/// The spec of the pod has no such container (`kubelet_pods.go`, `GetAttach`).
pub fn no_container_to_attach(container: &str, full_name: &str) -> String {
    format!("container {container} not found in pod {full_name}")
}

/// No sandbox of the pod runs (`kubelet_pods.go`, `GetPortForward`).
pub fn pod_not_found(full_name: &str) -> String {
    format!("pod not found ({})", quoted(full_name))
}

/// The spec of the pod has no container of this name (`server/server.go`, `checkpoint`).
pub fn no_such_container(container: &str) -> String {
    format!("container {container} does not exist")
}

/// The container does not run (`kubelet.go`, `CheckpointContainer`).
pub fn container_to_checkpoint(container: &str) -> String {
    format!("container {container} not found")
}

/// The checkpoint cannot be written (`server/server.go`, `checkpoint`).
pub fn checkpoint_failed(namespace: &str, pod: &str, container: &str, why: &str) -> String {
    format!("checkpointing of {namespace}/{pod}/{container} failed ({why})")
}

/// The status of the pod does not list the container (`kubelet_pods.go`, `validateContainerLogStatus`).
pub fn not_available(container: &str, pod: &str) -> String {
    format!("container {} in pod {} is not available", quoted(container), quoted(pod))
}

/// The container has no run before this one (`kubelet_pods.go`, `validateContainerLogStatus`).
pub fn no_previous(container: &str, pod: &str) -> String {
    format!("previous terminated container {} in pod {} not found", quoted(container), quoted(pod))
}

/// The container has not started (`kubelet_pods.go`, `validateContainerLogStatus`).
pub fn waiting_to_start(container: &str, pod: &str, reason: Option<&str>) -> String {
    let subject = format!("container {} in pod {} is waiting to start", quoted(container), quoted(pod));
    match reason {
        Some("ErrImagePull") => format!("{subject}: image can't be pulled"),
        Some("ImagePullBackOff") => format!("{subject}: trying and failing to pull image"),
        Some(reason) => format!("{subject}: {reason}"),
        None => format!("{subject} - no logs yet"),
    }
}
