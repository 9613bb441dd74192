//! The messages that the eviction actor handles. Both come from its own timers and have no reply.

use actix::Message;

/// Measures the pods that have a limit, and evicts those that exceed one. A pod that is still being measured is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(super) struct MeasurePods;

/// Compares the available resources of the node with their thresholds, and evicts at most one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(super) struct CheckResources;
