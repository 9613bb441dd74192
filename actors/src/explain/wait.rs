//! What a pod can wait for, as values.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::pod_worker::Hook;
use crate::time::Time;

/// What is killed takes a moment to end; so long after its time a stop is not yet late.
const LATE: Duration = Duration::from_secs(10);

/// One thing that a pod waits for, or, further down a chain, that this waits for in turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// How far down the chain it stands: 0 is what the pod itself waits for, 1 what that waits for.
    pub depth: usize,
    /// Which kind of wait.
    pub what: What,
    /// On whom.
    pub on: On,
    /// The container that waits, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_time")]
    pub since: Option<Time>,
    /// How often it was tried in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
    /// When it is tried next, or ends.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_time")]
    pub next: Option<Time>,
    /// What would end it, for people.
    pub released_by: String,
    /// The whole of it, for people.
    pub detail: String,
}

/// Kinds of waits. The words of the API are these names with a small first letter, and no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Nothing: all is as it should be, or it is over.
    Nothing,
    /// A housekeeping pass starts it, starts it again, or forgets it.
    Housekeeping,
    /// A source has not delivered, and passes need all of them.
    Source,
    /// The pod may not start here.
    Rejected,
    /// The worker has not taken the last update.
    Worker,
    /// Another pod has the full name.
    FullName,
    /// The chain comes back to a pod that is in it already.
    Circle,
    /// A hook call is under way.
    HookCall(Hook),
    /// A hook failed and is tried again.
    Retry(Hook),
    /// The runtime does not answer.
    Runtime,
    /// The network for pods is not there.
    Network,
    /// A volume is not there, or not gone.
    Volume,
    /// What a sandbox needs is not ready.
    Resources,
    /// The start governor has not let it start yet.
    Governor,
    /// A sandbox is being made or stopped.
    Sandbox,
    /// An image is not there.
    Image,
    /// A container waits out its crash backoff.
    CrashBackoff,
    /// A container is being started, or cannot be.
    ContainerStart,
    /// A lifecycle hook of a container runs.
    LifecycleHook(LifecycleHook),
    /// An init container runs.
    InitContainer,
    /// A startup or readiness probe has not passed.
    Probe,
    /// A readiness gate is not met.
    ReadinessGate,
    /// Containers have time to stop.
    Grace,
    /// A container has not ended.
    ContainerStop,
    /// A container stops after others.
    StopOrder,
    /// The node shuts down.
    Shutdown,
}

/// The hooks that a container has for its own life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LifecycleHook {
    /// Runs once the container has started.
    PostStart,
    /// Runs before the container is asked to stop.
    PreStop,
}

impl LifecycleHook {
    /// As people call it.
    pub const fn as_str(self) -> &'static str {
        match self {
            LifecycleHook::PostStart => "post-start",
            LifecycleHook::PreStop => "pre-stop",
        }
    }
}

impl Serialize for What {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl What {
    /// The word of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            What::Nothing => "nothing",
            What::Housekeeping => "housekeeping",
            What::Source => "source",
            What::Rejected => "rejected",
            What::Worker => "worker",
            What::FullName => "fullName",
            What::Circle => "circle",
            What::HookCall(_) => "hookCall",
            What::Retry(_) => "retry",
            What::Runtime => "runtime",
            What::Network => "network",
            What::Volume => "volume",
            What::Resources => "resources",
            What::Governor => "governor",
            What::Sandbox => "sandbox",
            What::Image => "image",
            What::CrashBackoff => "crashBackoff",
            What::ContainerStart => "containerStart",
            What::LifecycleHook(_) => "lifecycleHook",
            What::InitContainer => "initContainer",
            What::Probe => "probe",
            What::ReadinessGate => "readinessGate",
            What::Grace => "grace",
            What::ContainerStop => "containerStop",
            What::StopOrder => "stopOrder",
            What::Shutdown => "shutdown",
        }
    }

    /// Whether it is no cause for a look, however long it lasts: nothing is waited for, or it was told when it began.
    pub const fn is_rest(self) -> bool {
        matches!(self, What::Nothing | What::Rejected)
    }
}

/// On whom a pod waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct On {
    /// Of which kind it is.
    pub kind: Subject,
    /// Its name; empty where there is but one.
    pub name: String,
    /// Its UID, if it is a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl On {
    /// Something with a name.
    pub fn new(kind: Subject, name: impl Into<String>) -> Self {
        On { kind, name: name.into(), uid: None }
    }

    /// Something of which there is but one.
    pub fn only(kind: Subject) -> Self {
        On::new(kind, "")
    }
}

/// Kinds of things that pods wait on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Subject {
    /// A pod, by full name and UID.
    Pod,
    /// A container of the pod.
    Container,
    /// An image.
    Image,
    /// A volume of the pod.
    Volume,
    /// A hook of the engine: `sync_pod`, `sync_terminating_pod`.
    Hook,
    /// The pod's worker.
    Worker,
    /// The pod's sandbox.
    Sandbox,
    /// The container runtime.
    Runtime,
    /// A source of pods.
    Source,
    /// A condition of the pod's status that somebody else sets.
    Condition,
    /// The start governor.
    Governor,
    /// The housekeeping pass.
    Housekeeping,
    /// The shutdown of the node.
    Shutdown,
    /// Nobody.
    Nobody,
}

impl Wait {
    /// Whether it should have ended by itself: a stop or a hook beyond the time that it was given.
    pub fn is_overdue(&self, now: Time) -> bool {
        let has_limit = matches!(self.what, What::Grace | What::ContainerStop | What::LifecycleHook(_));
        has_limit && self.next.is_some_and(|next| next + LATE <= now)
    }

    /// Whether it tells of trouble when it lasts: work that goes on as it should does not, and neither does a stop or a
    /// hook within its time.
    pub(super) fn is_trouble(&self, now: Time) -> bool {
        match self.what {
            What::Nothing
            | What::Rejected
            | What::InitContainer
            | What::ReadinessGate
            | What::StopOrder
            | What::Shutdown => false,
            What::Grace | What::ContainerStop | What::LifecycleHook(_) => self.next.is_none() || self.is_overdue(now),
            What::Housekeeping
            | What::Source
            | What::Worker
            | What::FullName
            | What::Circle
            | What::HookCall(_)
            | What::Retry(_)
            | What::Runtime
            | What::Network
            | What::Volume
            | What::Resources
            | What::Governor
            | What::Sandbox
            | What::Image
            | What::CrashBackoff
            | What::ContainerStart
            | What::Probe => true,
        }
    }

    pub(super) fn new(what: What, on: On, detail: impl Into<String>, released_by: impl Into<String>) -> Self {
        Wait {
            depth: 0,
            what,
            on,
            container: None,
            since: None,
            tries: None,
            next: None,
            released_by: released_by.into(),
            detail: detail.into(),
        }
    }

    pub(super) fn of_container(
        what: What,
        name: &str,
        detail: impl Into<String>,
        released_by: impl Into<String>,
    ) -> Self {
        let on = On::new(Subject::Container, name);
        Wait { container: Some(name.to_owned()), ..Wait::new(what, on, detail, released_by) }
    }

    pub(super) fn since(self, since: impl Into<Option<Time>>) -> Self {
        Wait { since: since.into(), ..self }
    }

    pub(super) fn next(self, next: impl Into<Option<Time>>) -> Self {
        Wait { next: next.into(), ..self }
    }

    /// The first try is not worth a word.
    pub(super) fn tries(self, tries: u32) -> Self {
        Wait { tries: (tries > 0).then_some(tries), ..self }
    }

    pub(super) fn below(self, depth: usize) -> Self {
        Wait { depth: self.depth + depth, ..self }
    }
}

/// As RFC 3339.
pub(super) fn time<S: Serializer>(time: &Time, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(time)
}

/// As RFC 3339.
pub(super) fn optional_time<S: Serializer>(at: &Option<Time>, to: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => time(at, to),
        None => to.serialize_none(),
    }
}
