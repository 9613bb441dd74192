//! The running agent, as the checks see it.

use std::sync::Arc;

use podwright_actors::claims::ClaimManager;
use podwright_actors::desired::DesiredPods;
use podwright_actors::node::NodeHandle;
use podwright_actors::statuses::Statuses;
use podwright_engine::{Engine, PodSnapshot};
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;

/// The parts of a running agent that the checks query.
#[derive(Clone)]
pub(crate) struct Agent {
    pub(crate) engine: Engine,
    pub(crate) statuses: Arc<Statuses>,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) claims: Arc<ClaimManager>,
}

impl Agent {
    pub(crate) fn of(node: &NodeHandle, claims: Arc<ClaimManager>) -> Self {
        let (statuses, desired) = (node.statuses().clone(), node.desired().clone());
        Agent { engine: node.engine().clone(), statuses, desired, claims }
    }

    /// One pod as the engine sees it.
    pub(crate) fn pod_view(&self, uid: &PodUid) -> Option<PodView> {
        let snapshot = self.engine.snapshot(uid)?;
        let stopping = self.engine.should_pod_containers_be_terminating(uid);
        Some(PodView { snapshot, stopping, active: self.engine.active_pod(uid) })
    }
}

/// A pod as the engine sees it.
#[derive(Clone, Debug)]
pub(crate) struct PodView {
    pub(crate) snapshot: PodSnapshot,
    /// The terminate hook was called: no container may start.
    pub(crate) stopping: bool,
    pub(crate) active: Option<Arc<PodObject>>,
}
