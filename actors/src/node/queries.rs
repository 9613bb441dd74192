//! Queries of a running node, for those who must not change it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use podwright_parts::StoppedPart;
use tokio::sync::watch;

use super::NodeHandle;
use crate::desired::MissingSource;
use crate::eviction::NodePressure;
use crate::explain::Explainer;
use crate::ids::PodUid;
use crate::observer::Observer;
use crate::ports::SourceProblem;

/// The queries of a running node. They change nothing.
#[derive(Clone)]
pub struct NodeQueries(Arc<NodeHandle>);

impl NodeQueries {
    /// The queries of this node.
    pub fn new(node: Arc<NodeHandle>) -> Self {
        NodeQueries(node)
    }

    /// The explainer of the pods' states and waits.
    pub fn explainer(&self) -> &Explainer {
        self.0.explainer()
    }

    /// The pods in the runtime, and whether the runtime answers.
    pub fn observer(&self) -> &Observer {
        self.0.observer()
    }

    /// Whether the runtime is healthy, and a signal for each change.
    pub fn healthy(&self) -> watch::Receiver<bool> {
        self.0.healthy()
    }

    /// The status of a pod.
    pub fn status(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.0.statuses().get(uid)
    }

    /// A signal for each change of a status.
    pub fn status_changes(&self) -> watch::Receiver<u64> {
        self.0.statuses().subscribe()
    }

    /// Whether every source has delivered at least once.
    pub fn have_sources_delivered(&self) -> bool {
        self.0.desired().is_ready()
    }

    /// The sources that have not delivered yet.
    pub fn missing_sources(&self) -> Vec<MissingSource> {
        self.0.desired().missing_sources()
    }

    /// The UID under which the node knows a pod. The UID of a mirror pod gives the UID of its static pod.
    pub fn known_uid(&self, uid: &PodUid) -> Option<PodUid> {
        self.0.desired().lock().pods.translate(uid).cloned()
    }

    /// The resources that the node lacks.
    pub fn pressures(&self) -> Vec<NodePressure> {
        self.0.pressures()
    }

    /// The longest time since the end of the last housekeeping pass with which the node counts as healthy.
    pub fn housekeeping_limit(&self) -> Duration {
        self.0.housekeeping_limit()
    }

    /// Whether the time since the end of the last housekeeping pass exceeds [`housekeeping_limit`](NodeQueries::housekeeping_limit).
    pub fn is_housekeeping_late(&self) -> bool {
        self.0.is_housekeeping_late()
    }

    /// The parts of the node that do not run, although the node has not stopped.
    pub fn stopped_parts(&self) -> Vec<StoppedPart> {
        self.0.stopped_parts()
    }

    /// The memory of the flight recorder, as a file; `None` if nothing is recorded. Takes long, so blocking threads call it.
    pub fn recording(&self) -> Option<Vec<u8>> {
        self.0.engine().recording()
    }

    /// The manifests and other objects that the sources cannot use at present.
    pub fn problems(&self) -> Vec<SourceProblem> {
        self.0.desired().problems()
    }
}
