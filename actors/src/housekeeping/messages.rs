//! The messages that housekeeping handles.

use actix::Message;

use super::PassError;

/// Asks for one housekeeping pass: compare the desired pods, the engine's records and the runtime's pods, and stop, restart or
/// forget the pods that differ. Sent by the embedder through [`NodeHandle`](crate::node::NodeHandle). The reply is the result
/// of the pass. Passes do not overlap: a pass that is requested during another one begins after it. A second pass right after
/// the first changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "Result<(), PassError>")]
pub(crate) struct RunPass;

/// Sent by the actor itself, every two seconds and when a pass is needed earlier. No reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(super) struct PassDue;
