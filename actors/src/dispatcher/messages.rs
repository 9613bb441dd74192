//! The messages that the dispatcher handles.

use actix::Message;

use crate::ids::PodUid;
use crate::ports::SourceUpdate;
use crate::probe_manager::ProbeChange;

/// Sent by a source: the pods that it desires now, or why it has not read them yet.
///
/// The reply comes once the update is accepted. While the runtime is unhealthy, the dispatcher accepts up to
/// [`SOURCE_CHANNEL_DEPTH`](crate::ports::SOURCE_CHANNEL_DEPTH) updates and applies them later, in their order; the reply to
/// a further update comes once enough earlier updates have been applied. Sending the same set again changes nothing.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct AcceptUpdate(pub(super) SourceUpdate);

/// Sent by the probe manager: a probe of a container has a new result. No reply. Repeating it changes nothing.
impl Message for ProbeChange {
    type Result = ();
}

/// Sent by the observer: the containers or sandboxes of a pod changed in the runtime. The pod's worker syncs the pod again.
/// No reply. Several of these messages that arrive before the worker's turn lead to one sync.
#[derive(Clone, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(crate) struct RuntimePodChanged {
    /// The pod.
    pub(crate) uid: PodUid,
}

/// Sent by the node: an object that a pod refers to has changed, or the health of a device of the pod. The pod's worker syncs the pod
/// again. Several of these messages that arrive before the worker's turn lead to one sync. No reply.
#[derive(Clone, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(crate) struct PodObjectsChanged {
    /// The pod.
    pub(crate) uid: PodUid,
}

/// Sent by the observer: the runtime became healthy or unhealthy. The dispatcher reads the current health from the observer,
/// and applies source updates only while the runtime is healthy. No reply. Repeating it changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(crate) struct RuntimeHealthChanged;

/// Sent by a shutdown of the node: whether new pods are refused with the reason `NodeShutdown`. The reply comes once the
/// change is in force. Repeating it changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(crate) struct RefuseNewPods {
    /// True when a shutdown begins, false when it was cancelled.
    pub(crate) refuse: bool,
}
