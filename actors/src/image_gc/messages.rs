//! The message that the image collector handles.

use actix::Message;

/// Sent by the actor's own timer, at the start and then every five minutes: runs one round of image garbage collection. No
/// reply. A second round right after the first removes nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(super) struct CollectImages;
