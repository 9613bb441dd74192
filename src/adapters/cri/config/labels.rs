//! What a node writes on sandboxes and containers, and reads back after a restart: the kubelet's names
//! (`pkg/kubelet/types/labels.go`, `kuberuntime/labels.go`, kubelet 1.36), which other tools read too.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Container;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::ContainerConfig;
use serde::Serialize;

use super::facts::Layout;

/// Label: the pod's name.
pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: its namespace.
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: its UID. What has none is not a node's.
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: the container's name in the pod.
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Annotation: how often the container was started before.
pub(crate) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: hash of the definition, in hexadecimal digits.
pub(crate) const HASH: &str = "io.kubernetes.container.hash";
/// Annotation: where the container writes its last words.
pub(crate) const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation: what stands for them where it wrote none.
pub(crate) const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
const PORTS: &str = "io.kubernetes.container.ports";
const POD_DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
const POD_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// The message path of a container that names none, and the policy (API defaults).
const DEFAULT_MESSAGE_PATH: &str = "/dev/termination-log";
const DEFAULT_MESSAGE_POLICY: &str = "File";
/// The policy that lets the end of the log stand for a missing message.
pub(crate) const MESSAGE_FROM_LOG: &str = "FallbackToLogsOnError";

/// Label: the directory of the agent that made it. Another agent may use the same runtime, a kubelet for one, or a second
/// one of ours with another directory: each leaves alone what is not its own.
const OWNER: &str = "podwright.io/root";

/// Finds all that belongs to an agent, or to one pod of it.
pub(crate) fn selector(layout: &Layout, uid: Option<&str>) -> HashMap<String, String> {
    let owner = layout.pods.parent().unwrap_or(&layout.pods).display().to_string();
    let uid = uid.map(|uid| (POD_UID.to_owned(), uid.to_owned()));
    uid.into_iter().chain([(OWNER.to_owned(), owner)]).collect()
}

fn of_pod(layout: &Layout, pod: &PodObject) -> HashMap<String, String> {
    let mut labels = selector(layout, Some(&pod.uid().to_string()));
    labels.insert(POD_NAME.to_owned(), pod.full_name().name().to_owned());
    labels.insert(POD_NAMESPACE.to_owned(), pod.full_name().namespace().to_owned());
    labels
}

/// The labels of a sandbox: the pod's own, and who it is.
pub(super) fn of_sandbox(layout: &Layout, pod: &PodObject) -> HashMap<String, String> {
    let own = pod.metadata().labels.clone().unwrap_or_default();
    own.into_iter().chain(of_pod(layout, pod)).collect()
}

/// The annotations of a sandbox: the pod's own.
pub(super) fn annotations_of_sandbox(pod: &PodObject) -> HashMap<String, String> {
    pod.metadata().annotations.clone().unwrap_or_default().into_iter().collect()
}

/// The labels of a container: who it is. The pod's own labels are on the sandbox alone.
pub(super) fn of_container(layout: &Layout, pod: &PodObject, name: &str) -> HashMap<String, String> {
    let mut labels = of_pod(layout, pod);
    labels.insert(CONTAINER_NAME.to_owned(), name.to_owned());
    labels
}

/// Where a container writes its last words.
pub(super) fn message_path(container: &Container) -> String {
    match container.termination_message_path.as_deref() {
        None | Some("") => DEFAULT_MESSAGE_PATH.to_owned(),
        Some(path) => super::mounts::absolute(path),
    }
}

/// The annotations of a container: what is needed to see whether it changed, and to stop it when its spec is gone.
pub(super) fn annotations_of_container(config: &ContainerConfig, container: &Container) -> HashMap<String, String> {
    let pod = &*config.pod;
    let policy = container.termination_message_policy.as_deref().filter(|policy| !policy.is_empty());
    let pre_stop = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let ports = container.ports.as_ref().filter(|ports| !ports.is_empty());
    [
        (HASH, Some(format!("{:x}", config.spec_hash))),
        (RESTART_COUNT, Some(config.restart_count.to_string())),
        (MESSAGE_PATH, Some(message_path(container))),
        (MESSAGE_POLICY, Some(policy.unwrap_or(DEFAULT_MESSAGE_POLICY).to_owned())),
        (POD_DELETION_GRACE, pod.deletion_grace().map(|seconds| seconds.to_string())),
        (POD_GRACE, pod.spec_grace().map(|seconds| seconds.to_string())),
        (PRE_STOP, pre_stop.and_then(json)),
        (PORTS, ports.and_then(json)),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key.to_owned(), value?)))
    .collect()
}

/// How long a container may take to stop whose spec is gone, in seconds, as its annotations tell.
pub(crate) fn grace(annotations: &HashMap<String, String>) -> Option<u64> {
    [POD_DELETION_GRACE, POD_GRACE].into_iter().find_map(|key| annotations.get(key)?.parse().ok())
}

fn json<T: Serialize>(value: &T) -> Option<String> {
    serde_json::to_string(value).ok()
}
