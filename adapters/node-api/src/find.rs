//! Finds the pod and the container that a request names.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use podwright_core::containers::definition::Definition;
use podwright_model::ids::{ContainerId, FullName, PodUid, SandboxId};
use podwright_model::pod::PodObject;
use podwright_ports::{ContainerState, PodRuntimeStatus, SandboxState};

use super::served_node::ServedNode;

/// A pod that a request names.
pub(super) struct FoundPod {
    pub(super) object: Arc<PodObject>,
    /// The newest status of the pod.
    pub(super) status: Option<Arc<PodStatus>>,
    /// The pod as the runtime reports it.
    runtime: Option<Arc<PodRuntimeStatus>>,
}

/// The pod of this name: the desired pod, or else a pod that still terminates.
pub(super) fn pod(node: &dyn ServedNode, namespace: &str, name: &str) -> Option<FoundPod> {
    let pod = node.named(&FullName::new(namespace, name))?;
    let runtime = node.runtime_status(&pod.uid);
    Some(FoundPod { object: pod.object?, status: pod.status, runtime })
}

impl FoundPod {
    /// Whether the pod has this UID, or is the static pod of a mirror pod with this UID. Any pod matches if the request names no UID.
    pub(super) fn has_uid(&self, node: &dyn ServedNode, uid: Option<&str>) -> bool {
        let Some(uid) = uid.map(PodUid::new) else { return true };
        uid == *self.object.uid() || node.known_uid(&uid).as_ref() == Some(self.object.uid())
    }

    /// The run of a container, if it runs now.
    pub(super) fn running(&self, container: &str) -> Option<ContainerId> {
        running(self.runtime.as_deref()?, container)
    }

    /// The pod's sandbox, if it is ready.
    pub(super) fn sandbox(&self) -> Option<SandboxId> {
        sandbox(self.runtime.as_deref()?)
    }

    /// Whether the container of this name has a terminal (field `tty`). `None` if the pod has no such container.
    pub(super) fn has_terminal(&self, container: &str) -> Option<bool> {
        Definition::find(&self.object, container).map(Definition::tty)
    }
}

fn running(status: &PodRuntimeStatus, container: &str) -> Option<ContainerId> {
    status.runs(container).find(|run| run.state == ContainerState::Running).map(|run| run.id.clone())
}

fn sandbox(status: &PodRuntimeStatus) -> Option<SandboxId> {
    status.sandboxes.iter().find(|sandbox| sandbox.state == SandboxState::Ready).map(|sandbox| sandbox.id.clone())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::{BoxFuture, ready};
    use serde_json::json;

    use super::super::served_node::ServedPod;
    use super::*;

    /// A node with one static pod, whose mirror pod has the UID `mirror`.
    struct StaticPod(Option<Arc<PodObject>>);

    impl ServedNode for StaticPod {
        fn pods(&self) -> Vec<ServedPod> {
            let (uid, full_name) = (PodUid::new("static"), FullName::new("test", "web"));
            vec![ServedPod { uid, full_name, object: self.0.clone(), status: None }]
        }

        fn named(&self, name: &FullName) -> Option<ServedPod> {
            self.pods().into_iter().find(|pod| pod.full_name == *name)
        }

        fn known_uid(&self, uid: &PodUid) -> Option<PodUid> {
            (*uid == PodUid::new("mirror")).then(|| PodUid::new("static"))
        }

        fn status(&self, _: &PodUid) -> Option<Arc<PodStatus>> {
            None
        }

        fn runtime_status(&self, _: &PodUid) -> Option<Arc<PodRuntimeStatus>> {
            None
        }

        fn adopted(&self) -> BoxFuture<'_, ()> {
            ready(()).boxed()
        }

        fn is_housekeeping_late(&self) -> bool {
            false
        }
    }

    #[test]
    fn static_pod_has_the_uid_of_its_mirror_pod_too() {
        let object =
            json!({"metadata": {"name": "web", "namespace": "test", "uid": "static"}, "spec": {"containers": []}});
        let node = StaticPod(Some(PodObject::new(serde_json::from_value(object).unwrap()).unwrap()));
        let found = pod(&node, "test", "web").unwrap();
        for (uid, is_it) in [(None, true), (Some("static"), true), (Some("mirror"), true), (Some("other"), false)] {
            assert_eq!(found.has_uid(&node, uid), is_it, "{uid:?}");
        }
        assert!(pod(&node, "test", "other").is_none());
    }

    #[test]
    fn runtime_only_pod_is_not_found() {
        assert!(pod(&StaticPod(None), "test", "web").is_none());
    }
}
