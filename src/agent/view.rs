//! Queries of the node for the page, the live table, the admin endpoints and the node API. What changes the node is apart from them.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::watch;

use crate::adapters::dra::{DraPlugins, PluginSocket};
use crate::adapters::storage::FileStorage;
use podwright_actors::StoppedPart;
use podwright_actors::claims::{ClaimManager, ContainerClaim, DevicesError};
use podwright_actors::desired::MissingSource;
use podwright_actors::eviction::NodePressure;
use podwright_actors::explain::{Explainer, Explanation, Inspection, PodFacts};
use podwright_actors::ids::{FullName, PodUid};
use podwright_actors::node::NodeHandle;
use podwright_actors::observer::Observer;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{Clock, SourceProblem};
use podwright_actors::time::Time;
use podwright_metrics::Metrics;

use super::events::EventLog;
use super::pod_names::is_known_as;

/// What changes the node: its sources, its shutdown, and the drivers that are given up. The run of the agent has it, and the endpoint
/// that gives a driver up.
#[derive(Clone)]
pub struct NodeControl {
    pub node: Arc<NodeHandle>,
    /// The claims of the node's pods; `None` if its pods may have none.
    pub claims: Option<Arc<ClaimManager>>,
    /// The plugins of the node; `None` if it has none.
    pub plugins: Option<Arc<DraPlugins>>,
}

/// The queries of the running node. They change nothing.
#[derive(Clone)]
pub struct NodeQueries(Arc<NodeHandle>);

/// Queries of the node and of what the agent knows about it. They change nothing.
#[derive(Clone)]
pub struct NodeView {
    pub node: NodeQueries,
    /// The name of the node.
    pub node_name: Arc<str>,
    pub events: Arc<EventLog>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Metrics,
    /// Finds the log directories of containers.
    pub logs: FileStorage,
    claims: Option<Arc<ClaimManager>>,
    plugins: Option<Arc<DraPlugins>>,
}

impl NodeControl {
    /// The queries of this node. Its container logs are in `logs`, and `events` are its events.
    pub fn view(
        &self,
        node_name: impl Into<Arc<str>>,
        events: Arc<EventLog>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        logs: FileStorage,
    ) -> NodeView {
        NodeView {
            node: NodeQueries(self.node.clone()),
            node_name: node_name.into(),
            events,
            clock,
            metrics,
            logs,
            claims: self.claims.clone(),
            plugins: self.plugins.clone(),
        }
    }
}

impl NodeQueries {
    /// The explainer of the pods' states and waits.
    pub(crate) fn explainer(&self) -> &Explainer {
        self.0.explainer()
    }

    /// The pods in the runtime, and whether the runtime answers.
    pub(crate) fn observer(&self) -> &Observer {
        self.0.observer()
    }

    /// Whether the runtime is healthy, and a signal for each change.
    pub(crate) fn healthy(&self) -> watch::Receiver<bool> {
        self.0.healthy()
    }

    /// The status of a pod.
    pub(crate) fn status(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.0.statuses().get(uid)
    }

    /// A signal for each change of a status.
    pub(crate) fn status_changes(&self) -> watch::Receiver<u64> {
        self.0.statuses().subscribe()
    }

    /// Whether every source has delivered at least once.
    pub(crate) fn have_sources_delivered(&self) -> bool {
        self.0.desired().is_ready()
    }

    /// The sources that have not delivered yet.
    pub(crate) fn missing_sources(&self) -> Vec<MissingSource> {
        self.0.desired().missing_sources()
    }

    /// The UID under which the node knows a pod. The UID of a mirror pod gives the UID of its static pod.
    pub(crate) fn known_uid(&self, uid: &PodUid) -> Option<PodUid> {
        self.0.desired().lock().pods.translate(uid).cloned()
    }

    /// The resources that the node lacks.
    pub(crate) fn pressures(&self) -> Vec<NodePressure> {
        self.0.pressures()
    }

    /// The longest time since the end of the last housekeeping pass with which the node counts as healthy.
    pub(crate) fn housekeeping_limit(&self) -> Duration {
        self.0.housekeeping_limit()
    }

    /// Whether the time since the end of the last housekeeping pass exceeds [`housekeeping_limit`](NodeQueries::housekeeping_limit).
    pub(crate) fn is_housekeeping_late(&self) -> bool {
        self.0.is_housekeeping_late()
    }

    /// The parts of the node that do not run, although the node has not stopped.
    pub(crate) fn stopped_parts(&self) -> Vec<StoppedPart> {
        self.0.stopped_parts()
    }

    /// The memory of the flight recorder, as a file; `None` if nothing is recorded. Takes long, so blocking threads call it.
    pub(crate) fn recording(&self) -> Option<Vec<u8>> {
        self.0.engine().recording()
    }
}

impl NodeView {
    /// The node's current time, from which ages are computed.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Inspects all pods at one time.
    pub fn inspect(&self) -> Inspection<'_> {
        self.node.explainer().inspect()
    }

    /// All pods that are desired or known, ordered by full name. Of several pods with one full name, the desired one comes
    /// first.
    pub fn pods(&self) -> Vec<PodFacts> {
        self.node.explainer().pods()
    }

    /// Explains a pod: the one with this UID, or without a UID the desired one of this full name.
    pub fn explain(&self, name: &FullName, uid: Option<&PodUid>) -> Option<Explanation> {
        self.node.explainer().explain(name, uid, &|uid| self.events.of(uid))
    }

    /// The full name of the pod that a client means. The name of a static pod may omit the node name at its end.
    pub(crate) fn meant(&self, name: FullName) -> FullName {
        if !self.node.explainer().named(&name).is_empty() {
            return name;
        }
        let is_meant = |pod: &PodFacts| {
            pod.full_name.namespace() == name.namespace() && is_known_as(pod, &self.node_name, name.name())
        };
        let found = self.pods().into_iter().find(is_meant).map(|pod| pod.full_name);
        found.unwrap_or(name)
    }

    /// Why no plugin can register. `None` if plugins can.
    pub fn plugins_problem(&self) -> Option<String> {
        self.plugins.as_ref().and_then(|plugins| plugins.problem())
    }

    /// The registration sockets whose plugin cannot be registered, one line for each.
    pub fn failed_plugins(&self) -> Vec<String> {
        let sockets = self.plugins.iter().flat_map(|plugins| plugins.sockets());
        let line = |socket: PluginSocket| {
            let failure = socket.failure?;
            let (path, tries, retry) = (socket.path.display(), failure.tries, failure.retry_in.as_secs());
            Some(format!(
                "the plugin at {path} cannot be registered: {} (tries: {tries}, next in {retry} s)",
                failure.error
            ))
        };
        sockets.filter_map(line).collect()
    }

    /// The DRA drivers with their streams, and the slices that will be deleted, one line for each.
    pub fn drivers(&self) -> Vec<String> {
        let startup = self.plugins.iter().filter_map(|plugins| plugins.startup_deletion());
        let startup = startup.map(|deletion| format!("the slices that an earlier agent left are deleted {deletion}"));
        let states = self.plugins.iter().flat_map(|plugins| plugins.states()).map(|state| state.to_string());
        startup.chain(states).collect()
    }

    /// The devices of a container. `None` if pods of the node have no claims.
    pub(crate) fn container_claims(
        &self,
        pod: &PodObject,
        container: &str,
    ) -> Option<Result<Vec<ContainerClaim>, DevicesError>> {
        self.claims.as_ref().map(|claims| claims.container_claims(pod, container))
    }

    /// The manifests that the sources cannot use at present.
    pub fn problems(&self) -> Vec<SourceProblem> {
        self.node.0.desired().problems()
    }
}
