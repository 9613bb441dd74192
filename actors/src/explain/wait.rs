//! The waits of a pod, as values. Pure.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::eviction::Pressure;
use crate::pod_worker::Hook;
use crate::time::Time;

/// How far a stop may exceed its time limit before it is overdue, because a killed process takes time to end.
const LATE: Duration = Duration::from_secs(10);

/// One wait of a pod, or further down a chain, the cause of a wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The depth in the chain: 0 is the pod's own wait, 1 its cause.
    pub depth: usize,
    /// The kind of wait.
    pub what: WaitKind,
    /// What the pod waits on.
    pub on: WaitSubject,
    /// The container that waits, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The ResourceClaim that is not prepared or not released, by namespace and name, if the wait is for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// The DRA driver that has not prepared or not released the claim, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// When the wait began.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_time")]
    pub since: Option<Time>,
    /// The number of consecutive tries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
    /// When the next try is, or when the wait ends.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_time")]
    pub next: Option<Time>,
    /// What ends the wait, for people.
    pub released_by: String,
    /// The whole wait in one sentence, for people.
    pub detail: String,
}

/// The kinds of waits. A kind's name in the API is its name here with a lowercase first letter, except that
/// [`Cgroup`](WaitKind::Cgroup) is `resources`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitKind {
    /// Nothing: the pod is healthy or has finished.
    Nothing,
    /// A housekeeping pass, which starts, restarts or forgets the pod.
    Housekeeping,
    /// A source that has not sent its pods. Housekeeping needs all sources.
    Source,
    /// Nothing: the node rejected the pod.
    Rejected,
    /// Other pods, which have to stop or to shrink before the pod is admitted.
    Admission,
    /// The worker, which has not taken the last update.
    Worker,
    /// The full name, which another pod holds.
    FullName,
    /// A pod that is already in the chain.
    Circle,
    /// A running hook call.
    HookCall(Hook),
    /// The retry of a failed hook.
    Retry(Hook),
    /// A runtime that does not answer.
    Runtime,
    /// The pod network, which is not ready.
    Network,
    /// A volume that is not mounted or not unmounted.
    Volume,
    /// The pod's cgroup.
    Cgroup,
    /// The start governor, which has not granted the start.
    Governor,
    /// A resource that is not ready or not released, such as a ResourceClaim.
    Claim,
    /// A sandbox that is being created or stopped.
    Sandbox,
    /// An image that is not present.
    Image,
    /// The crash backoff of a container.
    CrashBackoff,
    /// The start of a container, or a container that cannot start.
    ContainerStart,
    /// A lifecycle hook of a container that runs.
    LifecycleHook(LifecycleHook),
    /// An init container that runs.
    InitContainer,
    /// A startup or readiness probe that has not passed.
    Probe,
    /// A readiness gate that is not met.
    ReadinessGate,
    /// The end of the pod's containers within their grace period.
    Grace,
    /// The end of a container.
    ContainerStop,
    /// The containers that stop before this one.
    StopOrder,
    /// The shutdown of the node.
    Shutdown,
    /// The resources of the pod, which the node cannot change now.
    Resize,
    /// A resource that the node lacks.
    Pressure(Pressure),
    /// The write of the pod's status to the API server, which fails.
    StatusWrite,
}

/// The lifecycle hooks of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LifecycleHook {
    /// The hook that runs after the container has started.
    PostStart,
    /// The hook that runs before the container is asked to stop.
    PreStop,
}

impl LifecycleHook {
    /// The name for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            LifecycleHook::PostStart => "post-start",
            LifecycleHook::PreStop => "pre-stop",
        }
    }
}

impl Serialize for WaitKind {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl WaitKind {
    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            WaitKind::Nothing => "nothing",
            WaitKind::Housekeeping => "housekeeping",
            WaitKind::Source => "source",
            WaitKind::Rejected => "rejected",
            WaitKind::Admission => "admission",
            WaitKind::Resize => "resize",
            WaitKind::Worker => "worker",
            WaitKind::FullName => "fullName",
            WaitKind::Circle => "circle",
            WaitKind::HookCall(_) => "hookCall",
            WaitKind::Retry(_) => "retry",
            WaitKind::Runtime => "runtime",
            WaitKind::Network => "network",
            WaitKind::Volume => "volume",
            WaitKind::Cgroup => "resources",
            WaitKind::Governor => "governor",
            WaitKind::Sandbox => "sandbox",
            WaitKind::Image => "image",
            WaitKind::CrashBackoff => "crashBackoff",
            WaitKind::ContainerStart => "containerStart",
            WaitKind::LifecycleHook(_) => "lifecycleHook",
            WaitKind::InitContainer => "initContainer",
            WaitKind::Probe => "probe",
            WaitKind::ReadinessGate => "readinessGate",
            WaitKind::Grace => "grace",
            WaitKind::ContainerStop => "containerStop",
            WaitKind::StopOrder => "stopOrder",
            WaitKind::Shutdown => "shutdown",
            WaitKind::Pressure(Pressure::Memory) => "memoryPressure",
            WaitKind::Pressure(Pressure::Disk) => "diskPressure",
            WaitKind::Pressure(Pressure::Pid) => "pidPressure",
            WaitKind::StatusWrite => "statusWrite",
            WaitKind::Claim => "claim",
        }
    }

    /// Whether the wait is never reported: the pod waits for nothing, or its rejection was reported when it happened.
    pub const fn is_never_reported(self) -> bool {
        matches!(self, WaitKind::Nothing | WaitKind::Rejected)
    }
}

/// What a pod waits on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct WaitSubject {
    /// The kind of the subject.
    pub kind: SubjectKind,
    /// The name of the subject; empty if there is only one.
    pub name: String,
    /// The UID, if the subject is a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl WaitSubject {
    /// A subject with a name.
    pub fn new(kind: SubjectKind, name: impl Into<String>) -> Self {
        WaitSubject { kind, name: name.into(), uid: None }
    }

    /// The only subject of its kind.
    pub fn only(kind: SubjectKind) -> Self {
        WaitSubject::new(kind, "")
    }
}

/// The kinds of subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum SubjectKind {
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
    /// A condition of the pod's status that another program sets.
    Condition,
    /// The start governor.
    Governor,
    /// The housekeeping pass.
    Housekeeping,
    /// The shutdown of the node.
    Shutdown,
    /// The node.
    Node,
    /// The API server.
    ApiServer,
    /// A DRA driver.
    Driver,
    /// A ResourceClaim, by namespace and name. Without a name, all claims of the pod.
    Claim,
    /// Nothing.
    Nobody,
}

impl Wait {
    /// Whether the wait should have ended: a stop or a hook beyond its time limit.
    pub fn is_overdue(&self, now: Time) -> bool {
        let has_limit = matches!(self.what, WaitKind::Grace | WaitKind::ContainerStop | WaitKind::LifecycleHook(_));
        has_limit && self.next.is_some_and(|next| next + LATE <= now)
    }

    /// Whether a long wait means a failure. Normal work does not, and neither does a stop or a hook within its time
    /// limit.
    pub(super) fn is_failure(&self, now: Time) -> bool {
        match self.what {
            WaitKind::Nothing
            | WaitKind::Rejected
            | WaitKind::InitContainer
            | WaitKind::ReadinessGate
            | WaitKind::StopOrder
            | WaitKind::Shutdown
            // A pod runs well with the resources that it has.
            | WaitKind::Resize
            | WaitKind::Pressure(_) => false,
            WaitKind::Grace | WaitKind::ContainerStop | WaitKind::LifecycleHook(_) => {
                self.next.is_none() || self.is_overdue(now)
            }
            WaitKind::Housekeeping
            | WaitKind::Source
            | WaitKind::Admission
            | WaitKind::Worker
            | WaitKind::FullName
            | WaitKind::Circle
            | WaitKind::HookCall(_)
            | WaitKind::Retry(_)
            | WaitKind::Runtime
            | WaitKind::Network
            | WaitKind::Volume
            | WaitKind::Cgroup
            | WaitKind::Governor
            | WaitKind::Sandbox
            | WaitKind::Image
            | WaitKind::CrashBackoff
            | WaitKind::ContainerStart
            | WaitKind::Probe
            | WaitKind::StatusWrite
            | WaitKind::Claim => true,
        }
    }

    pub(super) fn new(
        what: WaitKind,
        on: WaitSubject,
        detail: impl Into<String>,
        released_by: impl Into<String>,
    ) -> Self {
        Wait {
            depth: 0,
            what,
            on,
            container: None,
            claim: None,
            driver: None,
            since: None,
            tries: None,
            next: None,
            released_by: released_by.into(),
            detail: detail.into(),
        }
    }

    pub(super) fn of_container(
        what: WaitKind,
        name: &str,
        detail: impl Into<String>,
        released_by: impl Into<String>,
    ) -> Self {
        let on = WaitSubject::new(SubjectKind::Container, name);
        Wait { container: Some(name.to_owned()), ..Wait::new(what, on, detail, released_by) }
    }

    pub(super) fn since(self, since: impl Into<Option<Time>>) -> Self {
        Wait { since: since.into(), ..self }
    }

    pub(super) fn next(self, next: impl Into<Option<Time>>) -> Self {
        Wait { next: next.into(), ..self }
    }

    /// Sets the number of tries; zero sets none.
    pub(super) fn tries(self, tries: u32) -> Self {
        Wait { tries: (tries > 0).then_some(tries), ..self }
    }

    pub(super) fn below(self, depth: usize) -> Self {
        Wait { depth: self.depth + depth, ..self }
    }
}

/// Serializes a time as RFC 3339.
pub(super) fn time<S: Serializer>(time: &Time, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(time)
}

/// Serializes a time as RFC 3339, and `None` as null.
pub(super) fn optional_time<S: Serializer>(at: &Option<Time>, to: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => time(at, to),
        None => to.serialize_none(),
    }
}
