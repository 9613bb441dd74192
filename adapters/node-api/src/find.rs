//! Finds the pod and the container that a request names.

use std::sync::Arc;

use podwright_actors::explain::PodFacts;
use podwright_actors::node::NodeQueries;
use podwright_core::containers::definition::Definition;
use podwright_model::ids::{ContainerId, FullName, PodUid, SandboxId};
use podwright_model::pod::PodObject;
use podwright_ports::{ContainerState, PodRuntimeStatus, SandboxState};

/// A pod that a request names.
pub(super) struct FoundPod {
    pub(super) object: Arc<PodObject>,
    pub(super) facts: PodFacts,
    /// The pod as the runtime reports it.
    runtime: Option<Arc<PodRuntimeStatus>>,
}

/// The pod of this name: the desired pod, or else a pod that still terminates.
pub(super) fn pod(node: &NodeQueries, namespace: &str, name: &str) -> Option<FoundPod> {
    let facts = node.explainer().named(&FullName::new(namespace, name)).into_iter().next()?;
    let runtime = node.observer().last(&facts.uid);
    Some(FoundPod { object: facts.object.clone()?, facts, runtime })
}

impl FoundPod {
    /// Whether the pod has this UID, or is the static pod of a mirror pod with this UID. Any pod matches if the request names no UID.
    pub(super) fn has_uid(&self, node: &NodeQueries, uid: Option<&str>) -> bool {
        let Some(uid) = uid.map(PodUid::new) else { return true };
        uid == self.facts.uid || node.known_uid(&uid).as_ref() == Some(&self.facts.uid)
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
