//! What the agent knows of its pods at one instant, for everything that shows them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use podwright::actors::engine::PodSnapshot;
use podwright::actors::ids::{FullName, PodUid};
use podwright::actors::node::Node;
use podwright::actors::pod::{Phase, PodObject};
use podwright::actors::pod_worker::Lifecycle;
use podwright::actors::ports::{Clock, SourceProblem};
use podwright::actors::status::PodSummary;
use podwright::actors::time::Time;
use podwright::metrics::Metrics;

use super::events::{EventLog, Seen};

/// Where to look. Changes nothing.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) node: Arc<Node>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    /// How long after a success a pod is looked at again.
    pub(crate) resync: Duration,
}

/// One pod.
#[derive(Clone, Debug)]
pub(crate) struct PodFacts {
    pub(crate) uid: PodUid,
    pub(crate) full_name: FullName,
    /// Its object; absent if only the runtime knows the pod.
    pub(crate) object: Option<Arc<PodObject>>,
    /// Its newest status.
    pub(crate) status: Option<Arc<PodStatus>>,
    /// Its record in the engine.
    pub(crate) snapshot: Option<PodSnapshot>,
    /// Whether a source wants it.
    pub(crate) desired: bool,
}

impl View {
    /// The time by which ages are told.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Every pod that is wanted or still known, by full name; of one name the wanted one first.
    pub(crate) fn pods(&self) -> Vec<PodFacts> {
        let mut snapshots: HashMap<PodUid, PodSnapshot> =
            self.node.engine.snapshots().into_iter().map(|snapshot| (snapshot.uid.clone(), snapshot)).collect();
        let mut pods = Vec::new();
        for object in self.node.desired.pods() {
            let snapshot = snapshots.remove(object.uid());
            pods.extend(self.facts(object.uid(), Some(object.clone()), snapshot));
        }
        pods.extend(snapshots.into_iter().filter_map(|(uid, snapshot)| self.facts(&uid, None, Some(snapshot))));
        pods.sort_by(|a, b| a.key().cmp(&b.key()));
        pods
    }

    /// One pod by UID.
    pub(crate) fn pod(&self, uid: &PodUid) -> Option<PodFacts> {
        self.facts(uid, self.node.desired.pod(uid), self.node.engine.snapshot(uid))
    }

    /// The pods of one full name, the wanted one first: a pod may wait for the end of another of its name.
    pub(crate) fn named(&self, name: &FullName) -> Vec<PodFacts> {
        let mut pods: Vec<PodFacts> = self.pods().into_iter().filter(|pod| pod.full_name == *name).collect();
        pods.sort_by_key(|pod| {
            let known_since = pod.snapshot.as_ref().map(|snapshot| snapshot.synced_at);
            (!pod.desired, std::cmp::Reverse(known_since))
        });
        pods
    }

    /// The last events of a pod.
    pub(crate) fn events(&self, uid: &PodUid) -> Vec<Seen> {
        self.events.of(uid)
    }

    /// What the sources cannot use at present.
    pub(crate) fn problems(&self) -> Vec<SourceProblem> {
        self.node.desired.problems()
    }

    fn facts(&self, uid: &PodUid, wanted: Option<Arc<PodObject>>, snapshot: Option<PodSnapshot>) -> Option<PodFacts> {
        let desired = wanted.is_some();
        let object = wanted.or_else(|| self.node.engine.active_pod(uid));
        let full_name = match (&object, &snapshot) {
            (Some(object), _) => object.full_name().clone(),
            (None, Some(snapshot)) => snapshot.full_name.clone()?,
            (None, None) => return None,
        };
        Some(PodFacts {
            uid: uid.clone(),
            full_name,
            status: self.node.statuses.get(uid).or_else(|| Some(Arc::new(object.as_ref()?.status()?.clone()))),
            object,
            snapshot,
            desired,
        })
    }
}

impl PodFacts {
    fn key(&self) -> (&str, &str, bool, &PodUid) {
        (self.full_name.namespace(), self.full_name.name(), !self.desired, &self.uid)
    }

    /// What a table says of it; nothing for a pod without an object.
    pub(crate) fn summary(&self, now: Time) -> Option<PodSummary> {
        let object = self.object.as_ref()?;
        let nothing = PodStatus::default();
        Some(PodSummary::new(object, self.status.as_deref().unwrap_or(&nothing), now))
    }

    /// The phase that its status shows.
    pub(crate) fn phase(&self) -> Phase {
        self.status.as_ref().map_or(Phase::Pending, |status| Phase::parse(status.phase.as_deref()))
    }

    /// Where its record stands.
    pub(crate) fn lifecycle(&self) -> Option<Lifecycle> {
        self.snapshot.as_ref().map(|snapshot| snapshot.lifecycle)
    }

    /// One word for a table: what the summary says, but for a pod that is being stopped without having been deleted,
    /// as a static pod is.
    pub(crate) fn state(&self, summary: &PodSummary) -> String {
        let stops = self.lifecycle() == Some(Lifecycle::Terminating) && !self.phase().is_terminal();
        if stops { "Terminating".to_owned() } else { summary.state.clone() }
    }
}
