//! The calls of the agent.

use std::fmt;
use std::time::Duration;

use podwright_actors::ids::{ContainerId, ContainerName, PodUid, SandboxId};

use crate::scenario::Op;

/// The subject of a call, besides its pod.
#[derive(Clone, Debug)]
pub(crate) enum CallDetail {
    Nothing,
    Attempt(u32),
    Sandbox(SandboxId),
    Image(String),
    New { name: ContainerName, restart_count: u32, sandbox: SandboxId },
    Run { name: ContainerName, id: ContainerId },
    Stop { name: ContainerName, id: ContainerId, grace: Duration },
    Command { name: ContainerName, id: ContainerId, command: String },
    Host(String),
    Claims(String),
}

impl CallDetail {
    /// The container of the call.
    pub(super) fn container(&self) -> Option<&ContainerId> {
        match self {
            CallDetail::Run { id, .. } | CallDetail::Stop { id, .. } | CallDetail::Command { id, .. } => Some(id),
            CallDetail::Nothing
            | CallDetail::Attempt(_)
            | CallDetail::Sandbox(_)
            | CallDetail::Image(_)
            | CallDetail::New { .. }
            | CallDetail::Host(_)
            | CallDetail::Claims(_) => None,
        }
    }
}

impl fmt::Display for CallDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallDetail::Nothing => Ok(()),
            CallDetail::Attempt(attempt) => write!(f, " {attempt}"),
            CallDetail::Sandbox(id) => write!(f, " {id}"),
            CallDetail::Image(text) | CallDetail::Host(text) | CallDetail::Claims(text) => write!(f, " {text}"),
            CallDetail::New { name, restart_count, sandbox } => write!(f, " {name} {restart_count} in {sandbox}"),
            CallDetail::Run { name, id } => write!(f, " {name} {id}"),
            CallDetail::Stop { name, id, grace } => write!(f, " {name} {id} within {}", grace.as_secs_f64()),
            CallDetail::Command { name, id, command } => write!(f, " {name} {id} {command}"),
        }
    }
}

/// A call that has begun and not ended.
#[derive(Clone, Debug)]
pub(crate) struct ActiveCall {
    pub(crate) op: Op,
    pub(crate) uid: PodUid,
    pub(crate) about: CallDetail,
    /// The call stops a container of a terminated pod. Such calls are made outside the pod's worker.
    pub(crate) zombie_stop: bool,
}
