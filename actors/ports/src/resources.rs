//! The resources that a pod needs beyond CPU, memory and volumes: the devices of its claims.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::PodStatus;

use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;

/// The result of an operation on the resources of a pod.
pub type ResourceFuture<'a> = BoxFuture<'a, Result<(), ResourceError>>;

/// Prepares and releases the resources of pods: a phase after the volumes and before the sandbox, and one between "all containers
/// have stopped" and the terminal status.
pub trait ResourcePhase: Send + Sync + 'static {
    /// Makes the resources of a pod ready. Called before each sandbox of the pod is created, even if they are ready, and before a
    /// container starts in a sandbox in which it has not run, unless they are [prepared](ResourcePhase::is_prepared).
    ///
    /// If the future is dropped, the operation goes on.
    ///
    /// # Errors
    /// [`ResourceError`] if a resource is not ready. The sync of the pod fails and is retried.
    fn prepare<'a>(&'a self, pod: &'a Arc<PodObject>) -> ResourceFuture<'a>;

    /// Whether this agent has made the resources of a pod ready. After a restart of the agent nothing is prepared until a call of
    /// [`prepare`](ResourcePhase::prepare) has succeeded, although the containers of the pod may run.
    fn is_prepared(&self, pod: &PodObject) -> bool;

    /// Reports that a container cannot be created, because a device of the pod is missing on the node. The resources of the pod then no
    /// longer count as prepared.
    fn devices_lost(&self, pod: &PodObject) {
        let _ = pod;
    }

    /// The names of the CDI devices of a container, each once.
    ///
    /// # Errors
    /// [`ResourceError`] if the resources of the pod are not ready. The container is not started.
    fn container_devices(&self, pod: &PodObject, container: &str) -> Result<Vec<String>, ResourceError>;

    /// Gives the resources of a pod back. Called after the last container of the pod has stopped, and for a pod without containers.
    ///
    /// If the future is dropped, the operation goes on.
    ///
    /// # Errors
    /// [`ResourceError`] if a resource is still held. The pod keeps its phase, and the call is repeated without end.
    fn release<'a>(&'a self, uid: &'a PodUid) -> ResourceFuture<'a>;

    /// Whether the pod still holds resources. Until it holds none, its status does not become terminal.
    fn holds(&self, uid: &PodUid) -> bool;

    /// Releases the resources of pods that `is_active` rejects: pods that have ended without a call of
    /// [`release`](ResourcePhase::release). Called regularly after all sources have delivered, and soon after
    /// [`changed`](ResourcePhase::changed) has returned such a pod that is released, or whose next try is due by
    /// [`ended_pods`](ResourcePhase::ended_pods). Returns at once, with the pods that earlier calls have released since the last call.
    fn reconcile(&self, is_active: &dyn Fn(&PodUid) -> bool) -> Vec<PodUid>;

    /// The pods that [`reconcile`](ResourcePhase::reconcile) has not released yet, each with the time of the next try, or `None`
    /// while a try runs.
    fn ended_pods(&self) -> Vec<(PodUid, Option<Time>)> {
        Vec::new()
    }

    /// What the pod waits for now.
    fn waits(&self, uid: &PodUid) -> Vec<ResourceWait>;

    /// Adds the health of the pod's resources to the container statuses of `status`. What is released already is taken from
    /// `previous`, the last status of the pod.
    fn fill_status(&self, pod: &PodObject, previous: Option<&PodStatus>, status: &mut PodStatus) {
        let _ = (pod, previous, status);
    }

    /// Waits until the result of [`fill_status`](ResourcePhase::fill_status) changes for any pod, until
    /// [`prepare`](ResourcePhase::prepare) or [`release`](ResourcePhase::release) may succeed after it failed, or until
    /// [`reconcile`](ResourcePhase::reconcile) has a pod to release or to return. Returns these pods, each once, to be synced at once.
    /// No change is lost: changes that come meanwhile are returned by the next call. Cancel safe.
    fn changed(&self) -> BoxFuture<'_, Vec<PodUid>> {
        std::future::pending().boxed()
    }
}

/// Something that a pod waits for before its resources are ready or released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceWait {
    /// Whether the pod waits for the release.
    pub is_release: bool,
    /// The resource, such as a ResourceClaim by namespace and name; empty if it is not known.
    pub resource: String,
    /// Who must act, such as a DRA driver. `None` if that is not known, or if an operation of another pod comes first.
    pub driver: Option<String>,
    /// Since when.
    pub since: Time,
    /// How often it failed.
    pub tries: u32,
    /// The last error; `None` before the first try has ended.
    pub error: Option<String>,
}

/// The resources of a pod are not ready, or still held.
#[derive(Debug)]
pub struct ResourceError(Box<dyn Error + Send + Sync>);

impl ResourceError {
    /// An error because of `source`.
    pub fn new(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ResourceError(source.into())
    }
}

impl fmt::Display for ResourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The error stands for its source.
impl Error for ResourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
