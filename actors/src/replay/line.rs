//! One line of a pod's timeline.

use crate::ids::PodUid;
use crate::pod_worker::Lifecycle;
use crate::time::Time;

/// Something that happened to a pod, or to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// How many events of the recording came up to it.
    pub number: u64,
    /// When.
    pub at: Time,
    /// The pod; absent for what happened to the agent.
    pub uid: Option<PodUid>,
    /// What, and why.
    pub event: String,
    /// Where the pod stood.
    pub before: Option<Lifecycle>,
    /// Where it stands now.
    pub after: Option<Lifecycle>,
    /// What it waits for now.
    pub waits: Option<String>,
}
