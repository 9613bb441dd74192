//! The messages of evictions. The first two come from the eviction actor's own timers and have no reply.

use actix::Message;

/// Measures the pods that have a limit, and evicts those that exceed one. A pod that is still being measured is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(super) struct MeasurePods;

/// Compares the available resources of the node with their thresholds, and evicts at most one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(super) struct CheckResources;

/// Sent by the evictor to housekeeping while the node lacks disk space: remove all dead containers of the pods that have ended, besides
/// those that every pass removes. The reply comes after the removals. A second request right after the first removes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(crate) struct RemoveDeadContainers;
