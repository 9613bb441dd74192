//! Read access to the node for the page, the live table and the admin endpoints.

use std::sync::Arc;

use crate::actors::explain::{Explanation, Inspection, PodFacts};
use crate::actors::ids::{FullName, PodUid};
use crate::actors::node::NodeHandle;
use crate::actors::ports::{Clock, SourceProblem};
use crate::actors::time::Time;
use crate::adapters::storage::FileStorage;
use crate::metrics::Metrics;

use super::events::EventLog;
use super::pod_names::is_known_as;

/// Read access to the node. Its methods change nothing, but those of the claims do.
#[derive(Clone)]
pub struct NodeView {
    pub node: Arc<NodeHandle>,
    /// The name of the node.
    pub node_name: Arc<str>,
    pub events: Arc<EventLog>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Metrics,
    /// Finds the log directories of containers.
    pub logs: FileStorage,
    /// The claims of the node's pods; `None` if its pods may have none.
    pub claims: Option<Arc<crate::actors::claims::ClaimManager>>,
    /// The plugins of the node; `None` if it has none.
    pub plugins: Option<Arc<crate::adapters::dra::DraPlugins>>,
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
        let line = |socket: crate::adapters::dra::PluginSocket| {
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

    /// The manifests that the sources cannot use at present.
    pub fn problems(&self) -> Vec<SourceProblem> {
        self.node.desired().problems()
    }
}
