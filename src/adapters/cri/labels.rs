//! What a node writes on sandboxes and containers, and reads back after a restart: the kubelet's names
//! (`pkg/kubelet/types/labels.go`, `kuberuntime/labels.go`, kubelet 1.36), which other tools read too.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};
use podwright_actors::pod::{ContainerKind, PodObject};
use podwright_actors::ports::ContainerConfig;
use serde::Serialize;

/// Label: the pod's name.
pub(super) const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: its namespace.
pub(super) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: its UID. What has none is not a node's.
pub(super) const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: the container's name in the pod.
pub(super) const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Annotation: how often the container was started before.
pub(super) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: hash of the definition, in hexadecimal digits.
pub(super) const HASH: &str = "io.kubernetes.container.hash";
/// Annotation: where the container writes its last words.
pub(super) const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation: what stands for them where it wrote none.
pub(super) const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
const PORTS: &str = "io.kubernetes.container.ports";
const POD_DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
const POD_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// The message path of a container that names none, and the policy (API defaults).
pub(super) const DEFAULT_MESSAGE_PATH: &str = "/dev/termination-log";
const DEFAULT_MESSAGE_POLICY: &str = "File";
/// The policy that lets the end of the log stand for a missing message.
pub(super) const MESSAGE_FROM_LOG: &str = "FallbackToLogsOnError";

/// Finds all that belongs to one pod.
pub(super) fn selector(uid: &str) -> HashMap<String, String> {
    HashMap::from([(POD_UID.to_owned(), uid.to_owned())])
}

fn of_pod(pod: &PodObject) -> HashMap<String, String> {
    let mut labels = selector(&pod.uid().to_string());
    labels.insert(POD_NAME.to_owned(), pod.full_name().name().to_owned());
    labels.insert(POD_NAMESPACE.to_owned(), pod.full_name().namespace().to_owned());
    labels
}

/// The labels of a sandbox: the pod's own, and who it is.
pub(super) fn of_sandbox(pod: &PodObject) -> HashMap<String, String> {
    let own = pod.metadata().labels.clone().unwrap_or_default();
    own.into_iter().chain(of_pod(pod)).collect()
}

/// The annotations of a sandbox: the pod's own.
pub(super) fn annotations_of_sandbox(pod: &PodObject) -> HashMap<String, String> {
    pod.metadata().annotations.clone().unwrap_or_default().into_iter().collect()
}

/// The labels of a container.
pub(super) fn of_container(pod: &PodObject, name: &str) -> HashMap<String, String> {
    let mut labels = of_pod(pod);
    labels.insert(CONTAINER_NAME.to_owned(), name.to_owned());
    labels
}

/// What the labels and annotations say of a definition, from whichever list it stands in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said<'a> {
    pub(super) image: Option<&'a str>,
    pub(super) working_dir: Option<&'a str>,
    pub(super) message_path: Option<&'a str>,
    pub(super) message_policy: Option<&'a str>,
    pub(super) stdin: bool,
    pub(super) stdin_once: bool,
    pub(super) tty: bool,
    pre_stop: Option<&'a LifecycleHandler>,
    ports: &'a [ContainerPort],
}

macro_rules! said {
    ($container:expr) => {
        Said {
            image: $container.image.as_deref(),
            working_dir: $container.working_dir.as_deref(),
            message_path: $container.termination_message_path.as_deref(),
            message_policy: $container.termination_message_policy.as_deref(),
            stdin: $container.stdin.unwrap_or_default(),
            stdin_once: $container.stdin_once.unwrap_or_default(),
            tty: $container.tty.unwrap_or_default(),
            pre_stop: $container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref()),
            ports: $container.ports.as_deref().unwrap_or_default(),
        }
    };
}

impl<'a> Said<'a> {
    /// Of the container of a pod that has this kind and name; of nothing if there is none.
    pub(super) fn of(pod: &'a PodObject, kind: ContainerKind, name: &str) -> Self {
        let found = match kind {
            ContainerKind::Init => pod.init_containers().iter().find(|c| c.name == name).map(|c| said!(c)),
            ContainerKind::Regular => pod.containers().iter().find(|c| c.name == name).map(|c| said!(c)),
            ContainerKind::Ephemeral => pod.ephemeral_containers().iter().find(|c| c.name == name).map(|c| said!(c)),
        };
        found.unwrap_or_default()
    }

    /// Where the container writes its last words.
    pub(super) fn message_path(&self) -> &'a str {
        self.message_path.filter(|path| !path.is_empty()).unwrap_or(DEFAULT_MESSAGE_PATH)
    }
}

/// The annotations of a container.
pub(super) fn annotations_of_container(config: &ContainerConfig) -> HashMap<String, String> {
    let pod = &*config.pod;
    let said = Said::of(pod, config.kind, config.name.as_str());
    let policy = said.message_policy.filter(|policy| !policy.is_empty()).unwrap_or(DEFAULT_MESSAGE_POLICY);
    let mut annotations = HashMap::from(
        [
            (HASH, format!("{:x}", config.spec_hash)),
            (RESTART_COUNT, config.restart_count.to_string()),
            (MESSAGE_PATH, said.message_path().to_owned()),
            (MESSAGE_POLICY, policy.to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    let mut put = |key: &str, value: Option<String>| {
        annotations.extend(value.map(|value| (key.to_owned(), value)));
    };
    put(POD_DELETION_GRACE, pod.deletion_grace().map(|seconds| seconds.to_string()));
    put(POD_GRACE, pod.spec_grace().map(|seconds| seconds.to_string()));
    put(PRE_STOP, said.pre_stop.and_then(json));
    put(PORTS, (!said.ports.is_empty()).then_some(said.ports).and_then(json));
    annotations
}

fn json<T: Serialize + ?Sized>(value: &T) -> Option<String> {
    serde_json::to_string(value).ok()
}
