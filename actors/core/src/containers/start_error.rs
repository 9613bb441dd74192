//! The last start error of a container. The pod's status shows it as a waiting reason until a start succeeds.

use crate::ids::ContainerId;
use crate::time::Time;

/// Why the last start of a container failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    /// The waiting reason, spelled as in the kubelet (`CrashLoopBackOff`, `ErrImagePull`).
    pub reason: &'static str,
    /// The error message, for people.
    pub message: String,
    /// When starts began to fail for this reason.
    pub since: Time,
    /// When the backoff ends, if the container waits one out.
    pub until: Option<Time>,
    /// The created run that the runtime refused to start. It is not started again.
    pub refused: Option<ContainerId>,
}
