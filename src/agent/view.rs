//! What the agent knows of its pods at one instant, for everything that shows them.

use std::sync::Arc;
use std::time::Duration;

use podwright::actors::explain::{Explanation, PodFacts};
use podwright::actors::ids::FullName;
use podwright::actors::node::Node;
use podwright::actors::ports::{Clock, SourceProblem};
use podwright::actors::time::Time;
use podwright::metrics::Metrics;

use super::events::EventLog;

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

impl View {
    /// The time by which ages are told.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Every pod that is wanted or still known, by full name; of one name the wanted one first.
    pub(crate) fn pods(&self) -> Vec<PodFacts> {
        self.node.explainer.pods()
    }

    /// Why a pod is where it is.
    pub(crate) fn explain(&self, name: &FullName) -> Option<Explanation> {
        self.node.explainer.explain(name, &|uid| self.events.of(uid))
    }

    /// What the sources cannot use at present.
    pub(crate) fn problems(&self) -> Vec<SourceProblem> {
        self.node.desired.problems()
    }
}
