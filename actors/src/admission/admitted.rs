//! The pods that count for admission.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::requests::Requests;
use crate::pod::{Phase, PodObject};

/// The pods that already use the node, with their requests.
///
/// Some of them are stopping, and what they free may be reserved for pods that wait for admission. A new pod has to fit twice:
/// beside the pods that use the node now, and beside those that use it once the stopping pods are gone and the waiting pods are
/// admitted.
#[derive(Clone, Debug, Default)]
pub struct Admitted {
    /// The pods that use the node and are not about to stop.
    staying: Vec<Arc<PodObject>>,
    stopping: Vec<Arc<PodObject>>,
    waiting: Vec<Arc<PodObject>>,
    now: Requests,
    /// The requests once the stopping pods are gone and the waiting pods are admitted.
    later: Requests,
}

impl Admitted {
    /// Adds a pod that uses the node.
    pub fn push(&mut self, pod: Arc<PodObject>) {
        let requests = Requests::of(&pod);
        self.now.add(&requests);
        self.later.add(&requests);
        self.staying.push(pod);
    }

    /// Adds a pod that is being resized. Of each resource, the larger amount counts: the used or the allocated one. `in_use` is
    /// the pod with the resources that it uses.
    pub(crate) fn push_resizing(&mut self, pod: Arc<PodObject>, in_use: &PodObject) {
        let mut requests = Requests::of(&pod);
        requests.raise(&Requests::of(in_use));
        self.now.add(&requests);
        self.later.add(&Requests::of(&pod));
        self.staying.push(pod);
    }

    /// Adds a pod that uses the node and is being stopped.
    pub(crate) fn push_stopping(&mut self, pod: Arc<PodObject>) {
        self.now.add(&Requests::of(&pod));
        self.stopping.push(pod);
    }

    /// Adds a pod that waits until the stopping pods are gone. What it needs is reserved for it.
    pub(crate) fn push_waiting(&mut self, pod: Arc<PodObject>) {
        self.later.add(&Requests::of(&pod));
        self.waiting.push(pod);
    }

    /// The pods: those that use the node, and those for which room is reserved.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodObject>> {
        self.staying.iter().chain(&self.stopping).chain(&self.waiting)
    }

    /// The pods that use the node and are not about to stop.
    pub(crate) fn staying(&self) -> &[Arc<PodObject>] {
        &self.staying
    }

    /// The pods that use the node and are being stopped.
    pub(crate) fn stopping(&self) -> &[Arc<PodObject>] {
        &self.stopping
    }

    /// The requests beside which a new pod has to fit.
    pub(super) fn used(&self) -> Requests {
        let mut used = self.now.clone();
        used.raise(&self.later);
        used
    }

    /// The pods that use the node once the stopping pods are gone and the waiting pods are admitted.
    pub(crate) fn settled(&self) -> Admitted {
        Admitted {
            staying: self.staying.iter().chain(&self.waiting).cloned().collect(),
            now: self.later.clone(),
            later: self.later.clone(),
            ..Admitted::default()
        }
    }

    /// A hash of the pods that use the node, are stopping or wait, and of their requests, which a resize changes. Their order does
    /// not change the hash.
    pub(super) fn digest(&self) -> u64 {
        let hasher = FixedState::default();
        let digest = |pods: &[Arc<PodObject>], kind: u8| {
            pods.iter().fold(0u64, |sum, pod| sum.wrapping_add(hasher.hash_one((kind, pod.uid()))))
        };
        let requests = hasher.hash_one((&self.now, &self.later));
        let pods =
            digest(&self.staying, 0).wrapping_add(digest(&self.stopping, 1)).wrapping_add(digest(&self.waiting, 2));
        pods.wrapping_add(requests)
    }
}

impl FromIterator<Arc<PodObject>> for Admitted {
    fn from_iter<I: IntoIterator<Item = Arc<PodObject>>>(pods: I) -> Self {
        let mut admitted = Admitted::default();
        pods.into_iter().for_each(|pod| admitted.push(pod));
        admitted
    }
}

/// The facts about a desired pod, besides its object, that decide whether it [is active](is_active).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodActivity {
    /// Whether the engine has a record of the pod and no container of it runs.
    pub known_terminated: bool,
    /// Whether the pod's termination was requested.
    pub termination_requested: bool,
    /// The phase of its cached status.
    pub cached_phase: Option<Phase>,
}

/// Whether a desired pod counts for admission. A pod that is known to have terminated does not count. A pod in a terminal
/// phase counts only while it is still stopping. A pod without a record counts.
pub fn is_active(pod: &PodObject, activity: PodActivity) -> bool {
    if activity.known_terminated {
        return false;
    }
    let terminal = pod.phase().is_terminal() || activity.cached_phase.is_some_and(Phase::is_terminal);
    !terminal || activity.termination_requested
}
