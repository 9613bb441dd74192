//! What an explanation is made of.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;

use crate::container_manager::activity::Activity;
use crate::container_manager::governor::QueuePosition;
use crate::containers::StartError;
use crate::containers::image_backoff::PullFailure;
use crate::desired::MissingSource;
use crate::engine::PodSnapshot;
use crate::ids::{ContainerName, FullName, PodUid};
use crate::pod::{Phase, PodObject};
use crate::pod_worker::Lifecycle;
use crate::ports::{PodEvent, Unready};
use crate::shutdown::StopTurn;
use crate::status::PodSummary;
use crate::time::Time;

/// One pod at one instant.
#[derive(Clone, Debug)]
pub struct PodFacts {
    /// Its UID.
    pub uid: PodUid,
    /// Its full name.
    pub full_name: FullName,
    /// Its object; absent if only the runtime knows the pod.
    pub object: Option<Arc<PodObject>>,
    /// Its newest status.
    pub status: Option<Arc<PodStatus>>,
    /// Its record in the engine.
    pub snapshot: Option<PodSnapshot>,
    /// Whether a source wants it.
    pub desired: bool,
    /// That a source wants it cannot be acted on yet.
    pub held: bool,
    /// What its hook does now, with the place in line of what waits for its turn.
    pub activities: Vec<(Activity, Option<QueuePosition>)>,
    /// Why containers could not be started.
    pub start_errors: BTreeMap<ContainerName, StartError>,
    /// Images that could not be pulled.
    pub pulls: BTreeMap<String, PullFailure>,
    /// The directory or volume of it that is being worked on.
    pub volume_path: Option<PathBuf>,
    /// When the shutdown of the node stops it.
    pub stop: Option<StopTurn>,
}

/// What keeps failing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Since when.
    pub since: Time,
    /// How often in a row.
    pub tries: u32,
    /// What was said last.
    pub error: String,
}

impl Failing {
    /// Once more.
    pub fn note(failing: &mut Option<Failing>, error: String, now: Time) {
        let (since, tries) = failing.as_ref().map_or((now, 1), |last| (last.since, last.tries.saturating_add(1)));
        *failing = Some(Failing { since, tries, error });
    }
}

/// What holds for every pod of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// When the node started.
    pub started: Time,
    /// Sources that have not delivered.
    pub missing_sources: Vec<MissingSource>,
    /// When the last housekeeping pass ended.
    pub last_pass: Option<Time>,
    /// Why passes end early.
    pub passes: Option<Failing>,
    /// Why the runtime cannot be listed.
    pub runtime: Option<Failing>,
    /// What the runtime says it lacks.
    pub unready: Unready,
}

impl NodeState {
    /// Whether pods that wait for nothing of their own wait for the same as at that other look. Times that pass and tries
    /// that are counted change nothing.
    pub fn is_like(&self, other: &NodeState) -> bool {
        let of = |failing: &Option<Failing>| failing.as_ref().map(|failing| (failing.since, failing.error.clone()));
        self.missing_sources == other.missing_sources
            && of(&self.passes) == of(&other.passes)
            && of(&self.runtime) == of(&other.runtime)
    }
}

/// An event of a pod, however often it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenEvent {
    /// What.
    pub event: PodEvent,
    /// How often.
    pub count: u32,
    /// When first.
    pub first: Time,
    /// When last.
    pub last: Time,
}

impl PodFacts {
    /// A pod of which nothing is known but its name.
    pub fn named(uid: PodUid, full_name: FullName) -> Self {
        PodFacts {
            uid,
            full_name,
            object: None,
            status: None,
            snapshot: None,
            desired: false,
            held: false,
            activities: Vec::new(),
            volume_path: None,
            start_errors: BTreeMap::new(),
            pulls: BTreeMap::new(),
            stop: None,
        }
    }

    /// What a table says of it; nothing for a pod without an object.
    pub fn summary(&self, now: Time) -> Option<PodSummary> {
        let object = self.object.as_ref()?;
        let nothing = PodStatus::default();
        Some(PodSummary::new(object, self.status.as_deref().unwrap_or(&nothing), now))
    }

    /// The phase that its status shows.
    pub fn phase(&self) -> Phase {
        self.status.as_ref().map_or(Phase::Pending, |status| Phase::parse(status.phase.as_deref()))
    }

    /// Where its record stands.
    pub fn lifecycle(&self) -> Option<Lifecycle> {
        self.snapshot.as_ref().map(|snapshot| snapshot.lifecycle)
    }

    /// One word for a table: what the summary says, but for a pod that is being stopped without having been deleted,
    /// as a static pod is.
    pub fn state(&self, summary: &PodSummary) -> String {
        let stops = self.lifecycle() == Some(Lifecycle::Terminating) && !self.phase().is_terminal();
        if stops { "Terminating".to_owned() } else { summary.state.clone() }
    }

    /// The wanted one of a name first, then the one that came last.
    pub(super) fn order(&self) -> (&str, &str, bool, std::cmp::Reverse<Option<Time>>, &PodUid) {
        let since = self.snapshot.as_ref().map(|snapshot| snapshot.synced_at);
        let (namespace, name) = (self.full_name.namespace(), self.full_name.name());
        (namespace, name, !self.desired, std::cmp::Reverse(since), &self.uid)
    }
}
