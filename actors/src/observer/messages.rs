//! The messages that the observer handles. It sends [`RuntimePodChanged`](crate::dispatcher::RuntimePodChanged) and
//! [`RuntimeHealthChanged`](crate::dispatcher::RuntimeHealthChanged).

use actix::Message;

use crate::ids::PodUid;

/// Sent by the task that follows the runtime's events: something may have changed in a pod. The observer reads the pod. The
/// reply comes once the pod is marked to be read. Several hints for one pod that arrive before its read lead to one read.
#[derive(Clone, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(crate) struct PodHint {
    pub(crate) uid: PodUid,
}

/// Sent by the task that follows the runtime's events: hints may have been lost. The observer relists at its next turn. No
/// reply; repeating it changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(crate) struct HintsLost;

/// Sent by the observer's own timer, each second: relists if a relist is due, and reads again the pods whose last read failed.
/// No reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(crate) struct RelistTurn;
