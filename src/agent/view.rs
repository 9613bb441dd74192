//! What the agent knows of its pods at one instant, for everything that shows them.

use std::sync::Arc;
use std::time::Duration;

use crate::actors::explain::{Explanation, Look, PodFacts};
use crate::actors::ids::{FullName, PodUid};
use crate::actors::node::Node;
use crate::actors::ports::{Clock, SourceProblem};
use crate::actors::time::Time;
use crate::adapters::storage::FileStorage;
use crate::metrics::Metrics;

use super::events::EventLog;

/// Where to look. Changes nothing.
#[derive(Clone)]
pub struct View {
    pub node: Arc<Node>,
    pub events: Arc<EventLog>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Metrics,
    /// Knows where containers log.
    pub logs: FileStorage,
    /// How long after a success a pod is looked at again.
    pub resync: Duration,
}

impl View {
    /// The time by which ages are told.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Looks at all pods at once.
    pub fn look(&self) -> Look<'_> {
        self.node.explainer.look()
    }

    /// Every pod that is wanted or still known, by full name; of one name the wanted one first.
    pub fn pods(&self) -> Vec<PodFacts> {
        self.node.explainer.pods()
    }

    /// Why a pod is where it is: the wanted one of a name, or the one with this UID.
    pub fn explain(&self, name: &FullName, uid: Option<&PodUid>) -> Option<Explanation> {
        self.node.explainer.explain(name, uid, &|uid| self.events.of(uid))
    }

    /// What the sources cannot use at present.
    pub fn problems(&self) -> Vec<SourceProblem> {
        self.node.desired.problems()
    }
}
