//! The message of evictions to housekeeping.

use actix::Message;

/// Sent by the evictor to housekeeping while the node lacks disk space: remove all dead containers of the pods that have ended, besides
/// those that every pass removes. The reply comes after the removals. A second request right after the first removes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(crate) struct RemoveDeadContainers;
