//! Queries of the node for the page, the live table, the admin endpoints and the node API. What changes the node is apart from them.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::PodStatus;

use crate::adapters::dra::{DraPlugins, PluginSocket};
use crate::adapters::storage::FileStorage;
use podwright_actors::claims::{ClaimManager, ContainerClaim, DevicesError};
use podwright_actors::explain::{Explanation, Inspection, PodFacts};
use podwright_actors::node::{NodeHandle, NodeQueries};
use podwright_metrics::Metrics;
use podwright_model::ids::{FullName, PodUid};
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_node_api::{ServedNode, ServedPod};
use podwright_parts::{Parts, StoppedPart};
use podwright_ports::{Clock, PodRuntimeStatus, SourceProblem};

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
    /// What works by itself beside the node.
    parts: Vec<Parts>,
}

impl NodeControl {
    /// The queries of this node. Its container logs are in `logs`, `events` are its events, and `parts` work beside it.
    pub fn view(
        &self,
        node_name: impl Into<Arc<str>>,
        events: Arc<EventLog>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        logs: FileStorage,
        parts: Vec<Parts>,
    ) -> NodeView {
        NodeView {
            node: NodeQueries::new(self.node.clone()),
            node_name: node_name.into(),
            events,
            clock,
            metrics,
            logs,
            claims: self.claims.clone(),
            plugins: self.plugins.clone(),
            parts,
        }
    }
}

impl NodeView {
    /// The parts of the node, of its plugins and of the agent that do not run, although nobody has stopped them.
    pub fn stopped_parts(&self) -> Vec<StoppedPart> {
        let of_plugins = self.plugins.iter().flat_map(|plugins| plugins.stopped_parts());
        let beside = self.parts.iter().flat_map(Parts::stopped);
        self.node.stopped_parts().into_iter().chain(of_plugins).chain(beside).collect()
    }

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
        self.node.problems()
    }
}

impl ServedNode for NodeView {
    fn pods(&self) -> Vec<ServedPod> {
        self.node.explainer().pods().into_iter().map(served).collect()
    }

    fn named(&self, name: &FullName) -> Option<ServedPod> {
        self.node.explainer().named(name).into_iter().next().map(served)
    }

    fn known_uid(&self, uid: &PodUid) -> Option<PodUid> {
        self.node.known_uid(uid)
    }

    fn status(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.node.status(uid)
    }

    fn runtime_status(&self, uid: &PodUid) -> Option<Arc<PodRuntimeStatus>> {
        self.node.observer().last(uid)
    }

    fn adopted(&self) -> BoxFuture<'_, ()> {
        self.node.explainer().adopted().boxed()
    }

    fn is_housekeeping_late(&self) -> bool {
        self.node.is_housekeeping_late()
    }
}

fn served(pod: PodFacts) -> ServedPod {
    ServedPod { uid: pod.uid, full_name: pod.full_name, object: pod.object, status: pod.status }
}
