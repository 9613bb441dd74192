//! Labels and annotations of sandboxes and containers. The agent writes them, and reads them after a restart. The names are the
//! kubelet's (`pkg/kubelet/types/labels.go`, `kuberuntime/labels.go`, kubelet 1.36); other tools read them too.

use std::collections::{HashMap, HashSet};

use podwright_core::containers::definition::Definition;
use podwright_model::ids::PodUid;
use podwright_model::pod::{PodObject, SOURCE_ANNOTATION};
use podwright_ports::ContainerConfig;
use serde::Serialize;

use super::mounts::absolute_path;
use crate::layout::Layout;
use crate::v1;

/// Label: the pod's name.
pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: the pod's namespace.
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: the pod's UID. A sandbox or container without it belongs to no pod.
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: the container's name in the pod.
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Annotation: the container's restart count.
pub(crate) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: the hash of the container's definition, in hexadecimal digits.
pub(crate) const HASH: &str = "io.kubernetes.container.hash";
/// Annotation: the path in the container to which it writes its termination message.
pub(crate) const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation: whether the end of the log replaces an empty termination message.
pub(crate) const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
const PORTS: &str = "io.kubernetes.container.ports";
const POD_DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
const POD_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// The default message path and message policy (API defaults).
const DEFAULT_MESSAGE_PATH: &str = "/dev/termination-log";
const DEFAULT_MESSAGE_POLICY: &str = "File";
/// The message policy under which the end of the log replaces an empty termination message.
pub(crate) const MESSAGE_FROM_LOG: &str = "FallbackToLogsOnError";

/// Label: the root directory of the agent that created the sandbox or container. A kubelet, or a second agent with another root
/// directory, may use the same runtime. Each agent ignores the sandboxes and containers of the others.
const OWNER: &str = "podwright.io/root";

/// A label selector for all sandboxes or containers of this agent, or for those of one of its pods.
pub(crate) fn selector(layout: &Layout, uid: Option<&str>) -> HashMap<String, String> {
    of_uid(uid).into_iter().chain([(OWNER.to_owned(), owner_of(layout))]).collect()
}

/// A label selector for the sandboxes or containers of one pod, or of all pods, whoever created them.
pub(crate) fn selector_of_all(uid: Option<&str>) -> HashMap<String, String> {
    of_uid(uid).into_iter().collect()
}

fn of_uid(uid: Option<&str>) -> Option<(String, String)> {
    uid.map(|uid| (POD_UID.to_owned(), uid.to_owned()))
}

/// Whether a sandbox or container belongs to this agent: this agent created it, or a kubelet did and its pod is `adopted`.
pub(crate) fn is_of_agent(layout: &Layout, labels: &[v1::LabelEntry], adopted: &HashSet<PodUid>) -> bool {
    match owner(labels) {
        Some(owner) => owner == owner_of(layout),
        None => v1::value(labels, POD_UID).is_some_and(|uid| adopted.contains(&PodUid::new(uid))),
    }
}

/// The root directory of the agent that created a sandbox or container. `None` for those of a kubelet, which has no such label.
pub(crate) fn owner(labels: &[v1::LabelEntry]) -> Option<&str> {
    v1::value(labels, OWNER)
}

fn owner_of(layout: &Layout) -> String {
    layout.pods.parent().unwrap_or(&layout.pods).display().to_string()
}

fn of_pod(layout: &Layout, pod: &PodObject) -> HashMap<String, String> {
    let mut labels = selector(layout, Some(&pod.uid().to_string()));
    labels.insert(POD_NAME.to_owned(), pod.full_name().name().to_owned());
    labels.insert(POD_NAMESPACE.to_owned(), pod.full_name().namespace().to_owned());
    labels
}

/// The labels of a sandbox: the pod's own labels and the pod's identity.
pub(super) fn of_sandbox(layout: &Layout, pod: &PodObject) -> HashMap<String, String> {
    let own = pod.metadata().labels.clone().unwrap_or_default();
    own.into_iter().chain(of_pod(layout, pod)).collect()
}

/// The annotations of a sandbox: the pod's own annotations.
pub(super) fn annotations_of_sandbox(pod: &PodObject) -> HashMap<String, String> {
    pod.metadata().annotations.clone().unwrap_or_default().into_iter().collect()
}

/// The labels of a container: its identity. Only the sandbox has the pod's own labels.
pub(super) fn of_container(layout: &Layout, pod: &PodObject, name: &str) -> HashMap<String, String> {
    let mut labels = of_pod(layout, pod);
    labels.insert(CONTAINER_NAME.to_owned(), name.to_owned());
    labels
}

/// The path in the container to which it writes its termination message.
pub(super) fn message_path(container: Definition<'_>) -> String {
    match container.message_path() {
        None | Some("") => DEFAULT_MESSAGE_PATH.to_owned(),
        Some(path) => absolute_path(path),
    }
}

/// The annotations of a container. With them the agent recognizes a changed definition, and stops the container after the pod's
/// spec is gone.
pub(super) fn annotations_of_container(config: &ContainerConfig, container: Definition<'_>) -> HashMap<String, String> {
    let pod = &*config.pod;
    let policy = container.message_policy().filter(|policy| !policy.is_empty());
    let pre_stop = container.lifecycle().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let ports = Some(container.ports()).filter(|ports| !ports.is_empty());
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

/// The grace period in seconds that a container's annotations record. Used after the pod's spec is gone.
pub(crate) fn grace<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Option<u64> {
    [POD_DELETION_GRACE, POD_GRACE].into_iter().find_map(|key| annotation(key)?.parse().ok())
}

/// Whether the annotations of a sandbox, which are those of its pod, are of a pod from a file or a URL.
pub(crate) fn is_static(annotations: &[v1::LabelEntry]) -> bool {
    v1::value(annotations, SOURCE_ANNOTATION).is_some_and(|source| source != "api")
}

fn json<T: Serialize + ?Sized>(value: &T) -> Option<String> {
    serde_json::to_string(value).ok()
}
