//! What the endpoints need of the node that they serve.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::PodStatus;
use podwright_model::ids::{FullName, PodUid};
use podwright_model::pod::PodObject;
use podwright_ports::PodRuntimeStatus;

/// The queries of a node that the node API needs. They change nothing.
pub trait ServedNode: Send + Sync + 'static {
    /// Every pod that is desired or has a record, sorted by full name. Among pods of one name the desired one comes first. May take long
    /// on a node with many pods, so blocking threads call it.
    fn pods(&self) -> Vec<ServedPod>;

    /// The pod of a full name: the desired pod, or else a pod that still terminates.
    fn named(&self, name: &FullName) -> Option<ServedPod>;

    /// The UID under which the node knows a pod. The UID of a mirror pod gives the UID of its static pod.
    fn known_uid(&self, uid: &PodUid) -> Option<PodUid>;

    /// The newest status of a pod.
    fn status(&self, uid: &PodUid) -> Option<Arc<PodStatus>>;

    /// The pod as the runtime last reported it.
    fn runtime_status(&self, uid: &PodUid) -> Option<Arc<PodRuntimeStatus>>;

    /// Waits until the statuses of the pods that ran before this node are known, or a limit is over. Cancel safe.
    fn adopted(&self) -> BoxFuture<'_, ()>;

    /// Whether the last housekeeping pass ended too long ago.
    fn is_housekeeping_late(&self) -> bool;
}

/// A pod of the node at one time.
#[derive(Clone, Debug)]
pub struct ServedPod {
    /// The pod's UID.
    pub uid: PodUid,
    /// The pod's full name.
    pub full_name: FullName,
    /// The pod's object; `None` for a runtime-only pod.
    pub object: Option<Arc<PodObject>>,
    /// The pod's newest status.
    pub status: Option<Arc<PodStatus>>,
}
