//! The facts from which an explanation is built. Pure.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;

use crate::admission::WaitingPod;
use crate::container_manager::activity::Activity;
use crate::container_manager::governor::QueuePosition;
use crate::containers::StartError;
use crate::containers::image_backoff::PullFailure;
use crate::desired::MissingSource;
use crate::engine::PodSnapshot;
use crate::eviction::{MeasuredPod, NodePressure};
use crate::health::OngoingFailure;
use crate::ids::{ContainerName, FullName, PodUid};
use crate::pod::{Phase, PodObject};
use crate::pod_worker::Lifecycle;
use crate::ports::{PodEvent, ResourceWait, Unready};
use crate::shutdown::StopTurn;
use crate::status::PodSummary;
use crate::status_writer::FailedWrite;
use crate::time::Time;

/// The facts about one pod at one time.
#[derive(Clone, Debug)]
pub struct PodFacts {
    /// The pod's UID.
    pub uid: PodUid,
    /// The pod's full name.
    pub full_name: FullName,
    /// The pod's object; `None` for a runtime-only pod.
    pub object: Option<Arc<PodObject>>,
    /// The pod's newest status.
    pub status: Option<Arc<PodStatus>>,
    /// The pod's record in the engine.
    pub snapshot: Option<PodSnapshot>,
    /// Whether a source desires the pod.
    pub desired: bool,
    /// Whether the pod starts anew once its record is forgotten, because its source has it again.
    pub starts_anew: bool,
    /// Whether the pod's update waits until the runtime's containers are listed.
    pub held: bool,
    /// Why the pod waits for admission, if it does.
    pub admission: Option<WaitingPod>,
    /// The host ports of a rejected pod that other pods use, each with one of these pods.
    pub used_ports: Vec<(String, FullName)>,
    /// The current activities of the pod's hook, with the queue positions of the waiting starts.
    pub activities: Vec<(Activity, Option<QueuePosition>)>,
    /// The start errors of the pod's containers.
    pub start_errors: BTreeMap<ContainerName, StartError>,
    /// The failed image pulls of the pod.
    pub pulls: BTreeMap<String, PullFailure>,
    /// The directory or volume that an operation on the pod uses now.
    pub volume_path: Option<PathBuf>,
    /// The last measurement of the pod's local storage.
    pub measured: Option<MeasuredPod>,
    /// When the node's shutdown stops the pod.
    pub stop: Option<StopTurn>,
    /// The failed writes of the pod's status to the API server.
    pub failed_write: Option<FailedWrite>,
    /// The resources that are not ready, or not released.
    pub resources: Vec<ResourceWait>,
}

/// The facts that apply to every pod of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// When the node started.
    pub started: Time,
    /// The sources that have not sent their pods.
    pub missing_sources: Vec<MissingSource>,
    /// When the last housekeeping pass ended.
    pub last_pass: Option<Time>,
    /// Why housekeeping passes fail.
    pub passes: Option<OngoingFailure>,
    /// The removed pods whose directory or cgroup cannot be removed, and why.
    pub leftovers: Vec<(PodUid, OngoingFailure)>,
    /// The pods that have ended and whose resources are not released: each with what it waits for, and the time of the next try.
    pub ended_pods: Vec<(PodUid, ResourceWait, Option<Time>)>,
    /// Why the runtime's containers cannot be listed.
    pub runtime: Option<OngoingFailure>,
    /// The conditions that the runtime reports as not ready.
    pub unready: Unready,
    /// The resources that the node lacks.
    pub pressures: Vec<NodePressure>,
}

impl NodeState {
    /// Whether the pods' waits are the same as in the state `other`. Differences in times and in the number of tries do
    /// not count.
    pub fn is_like(&self, other: &NodeState) -> bool {
        let of =
            |failing: &Option<OngoingFailure>| failing.as_ref().map(|failing| (failing.since, failing.error.clone()));
        self.missing_sources == other.missing_sources
            && of(&self.passes) == of(&other.passes)
            && of(&self.runtime) == of(&other.runtime)
    }
}

/// An event of a pod, with its repetitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedEvent {
    /// The event.
    pub event: PodEvent,
    /// The number of occurrences.
    pub count: u32,
    /// The first occurrence.
    pub first: Time,
    /// The last occurrence.
    pub last: Time,
}

impl PodFacts {
    /// The facts of a pod with only its UID and full name.
    pub fn named(uid: PodUid, full_name: FullName) -> Self {
        PodFacts {
            uid,
            full_name,
            object: None,
            status: None,
            snapshot: None,
            desired: false,
            starts_anew: false,
            held: false,
            admission: None,
            used_ports: Vec::new(),
            activities: Vec::new(),
            volume_path: None,
            start_errors: BTreeMap::new(),
            pulls: BTreeMap::new(),
            measured: None,
            stop: None,
            failed_write: None,
            resources: Vec::new(),
        }
    }

    /// The columns of a table for the pod; `None` without an object.
    pub fn summary(&self, now: Time) -> Option<PodSummary> {
        let object = self.object.as_ref()?;
        let nothing = PodStatus::default();
        Some(PodSummary::new(object, self.status.as_deref().unwrap_or(&nothing), now))
    }

    /// The phase in the pod's status. A runtime-only pod has no status, and may be in any phase.
    pub fn phase(&self) -> Phase {
        match (&self.status, &self.object) {
            (Some(status), _) => Phase::parse(status.phase.as_deref()),
            (None, Some(_)) => Phase::Pending,
            (None, None) => Phase::Unknown,
        }
    }

    /// The lifecycle state of the pod's record.
    pub fn lifecycle(&self) -> Option<Lifecycle> {
        self.snapshot.as_ref().map(|snapshot| snapshot.lifecycle)
    }

    /// The pod's state in one word, for a table: the state of the summary, or `Terminating` for a pod that is stopped
    /// without a deletion, such as a static pod.
    pub fn state(&self, summary: &PodSummary) -> String {
        let stops = self.lifecycle() == Some(Lifecycle::Terminating) && !self.phase().is_terminal();
        if stops { "Terminating".to_owned() } else { summary.state.clone() }
    }

    /// Sorts pods of one full name: the desired pod first, then the newest.
    pub(super) fn order(&self) -> (&str, &str, bool, std::cmp::Reverse<Option<Time>>, &PodUid) {
        let since = self.snapshot.as_ref().map(|snapshot| snapshot.synced_at);
        let (namespace, name) = (self.full_name.namespace(), self.full_name.name());
        (namespace, name, !self.desired, std::cmp::Reverse(since), &self.uid)
    }
}
