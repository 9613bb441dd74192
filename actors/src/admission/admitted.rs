//! The pods that count for admission.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::requests::Requests;
use crate::ids::PodUid;
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
    /// The pods whose stop has failed for longer than `PATIENCE`. No pod waits for them.
    stuck: Vec<Arc<PodObject>>,
    /// The staying pods whose resize gives something back, with what it gives back.
    shrinking: Vec<(Arc<PodObject>, Requests)>,
    /// The staying pods whose resize has failed for longer than `PATIENCE`, with what it would give back.
    stuck_shrinking: Vec<(Arc<PodObject>, Requests)>,
    /// The pods that wait for admission, in their order, with what is reserved for them.
    waiting: Vec<(Arc<PodObject>, Requests)>,
    now: Requests,
    /// The requests once the stopping pods are gone and the resizes are complete, without the waiting pods.
    later: Requests,
}

impl Admitted {
    /// Adds a pod that uses the node.
    pub fn push(&mut self, pod: Arc<PodObject>) {
        self.add(&Requests::of(&pod));
        self.staying.push(pod);
    }

    /// Adds a pod that is being resized. Of each resource, the larger amount counts: the used or the allocated one. `in_use` is
    /// the pod with the resources that it uses.
    pub(crate) fn push_resizing(&mut self, pod: Arc<PodObject>, in_use: &PodObject) {
        let allocated = Requests::of(&pod);
        let largest = larger(&allocated, in_use);
        self.now.add(&largest);
        self.later.add(&allocated);
        if largest != allocated {
            self.shrinking.push((pod.clone(), largest.without(&allocated)));
        }
        self.staying.push(pod);
    }

    /// Adds a pod whose resize has failed for longer than `PATIENCE`. No pod waits for what the resize gives back.
    pub(crate) fn push_stuck_resizing(&mut self, pod: Arc<PodObject>, in_use: &PodObject) {
        let allocated = Requests::of(&pod);
        let largest = larger(&allocated, in_use);
        self.add(&largest);
        if largest != allocated {
            self.stuck_shrinking.push((pod.clone(), largest.without(&allocated)));
        }
        self.staying.push(pod);
    }

    /// Adds a pod that uses the node and is being stopped.
    pub(crate) fn push_stopping(&mut self, pod: Arc<PodObject>) {
        self.now.add(&Requests::of(&pod));
        self.stopping.push(pod);
    }

    /// Adds a pod whose stop has failed for longer than `PATIENCE`. No pod waits for it.
    pub(crate) fn push_stuck(&mut self, pod: Arc<PodObject>) {
        self.add(&Requests::of(&pod));
        self.stuck.push(pod);
    }

    /// Adds a pod that waits until other pods give something back, behind those that wait already. What it needs is reserved for it.
    pub(crate) fn push_waiting(&mut self, pod: Arc<PodObject>) {
        self.insert_waiting(usize::MAX, pod);
    }

    /// Adds a waiting pod at a place in the order of the waiting pods.
    pub(crate) fn insert_waiting(&mut self, place: usize, pod: Arc<PodObject>) {
        let requests = Requests::of(&pod);
        self.waiting.insert(place.min(self.waiting.len()), (pod, requests));
    }

    /// Removes a pod from the waiting pods, if it is one of them. What was reserved for it is free.
    pub(crate) fn remove_waiting(&mut self, pod: &PodObject) {
        self.waiting.retain(|(other, _)| other.uid() != pod.uid());
    }

    fn add(&mut self, requests: &Requests) {
        self.now.add(requests);
        self.later.add(requests);
    }

    /// The pods: those that use the node, and those for which room is reserved.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodObject>> {
        let waiting = self.waiting.iter().map(|(pod, _)| pod);
        self.staying.iter().chain(&self.stopping).chain(&self.stuck).chain(waiting)
    }

    /// The pods that use the node and are not about to stop.
    pub(crate) fn staying(&self) -> &[Arc<PodObject>] {
        &self.staying
    }

    /// The pods that are about to give some of a resource back, each with the amount. An empty name means something that is no resource,
    /// such as a port. Only stopping pods give that back, with the amount 0.
    pub(super) fn releasing(&self, resource: &str) -> Vec<(Arc<PodObject>, i64)> {
        let stopping = self.stopping.iter().map(|pod| (pod.clone(), Requests::of(pod).get(resource)));
        let shrinking = self.shrinking.iter().map(|(pod, given)| (pod.clone(), given.get(resource)));
        if resource.is_empty() {
            return stopping.collect();
        }
        stopping.chain(shrinking).filter(|(_, amount)| *amount > 0).collect()
    }

    /// The pods beside which a new pod is judged, without the waiting pods behind it. A critical pod goes before every waiting pod that is
    /// not critical. Otherwise pods go in the order of their arrival: `place` is the number of the waiting pods that arrived before this
    /// pod.
    pub(crate) fn ahead_of(&self, pod: &PodObject, place: usize) -> Cow<'_, Admitted> {
        let is_ahead = |index: usize, other: &PodObject| {
            if pod.is_critical() == other.is_critical() { index < place } else { other.is_critical() }
        };
        if self.waiting.iter().enumerate().all(|(index, (other, _))| is_ahead(index, other)) {
            return Cow::Borrowed(self);
        }
        let ahead = self.waiting.iter().enumerate().filter(|(index, (other, _))| is_ahead(*index, other));
        Cow::Owned(Admitted { waiting: ahead.map(|(_, waiting)| waiting.clone()).collect(), ..self.clone() })
    }

    /// The same pods without one that is being stopped.
    pub(crate) fn without_stopping(&self, uid: &PodUid) -> Cow<'_, Admitted> {
        let is_other = |pod: &Arc<PodObject>| pod.uid() != uid;
        let Some(own) = self.stopping.iter().chain(&self.stuck).find(|pod| !is_other(pod)) else {
            return Cow::Borrowed(self);
        };
        let (mut without, own) = (self.clone(), Requests::of(own));
        without.now = without.now.without(&own);
        if !without.stuck.iter().all(is_other) {
            without.later = without.later.without(&own);
        }
        without.stopping.retain(is_other);
        without.stuck.retain(is_other);
        Cow::Owned(without)
    }

    /// The same pods for a pod that waits and for which others were stopped: it waits for stops and resizes however long they fail.
    pub(crate) fn awaiting_stuck(&self) -> Cow<'_, Admitted> {
        if self.stuck.is_empty() && self.stuck_shrinking.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut awaited = self.clone();
        for pod in awaited.stuck.drain(..) {
            awaited.later = awaited.later.without(&Requests::of(&pod));
            awaited.stopping.push(pod);
        }
        for (pod, given) in awaited.stuck_shrinking.drain(..) {
            awaited.later = awaited.later.without(&given);
            awaited.shrinking.push((pod, given));
        }
        Cow::Owned(awaited)
    }

    /// The requests beside which a new pod has to fit.
    pub(super) fn used(&self) -> Requests {
        let mut used = self.reserved();
        used.raise(&self.now);
        used
    }

    /// The requests once the stopping pods are gone and the waiting pods are admitted.
    fn reserved(&self) -> Requests {
        let mut reserved = self.later.clone();
        self.waiting.iter().for_each(|(_, requests)| reserved.add(requests));
        reserved
    }

    /// The pods that use the node once the stopping pods are gone, the resizes are complete and the waiting pods are admitted.
    pub(crate) fn settled(&self) -> Admitted {
        let waiting = self.waiting.iter().map(|(pod, _)| pod);
        let reserved = self.reserved();
        Admitted {
            staying: self.staying.iter().chain(waiting).cloned().collect(),
            stuck: self.stuck.clone(),
            now: reserved.clone(),
            later: reserved,
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
        let waiting = self.waiting.iter().map(|(pod, requests)| hasher.hash_one((pod.uid(), requests)));
        let requests = hasher.hash_one((&self.now, &self.later));
        let pods = [digest(&self.staying, 0), digest(&self.stopping, 1), digest(&self.stuck, 2)];
        pods.into_iter().chain(waiting).fold(requests, u64::wrapping_add)
    }
}

/// The larger amount of each resource: that of `requests`, or that of the pod with the resources that it uses.
fn larger(requests: &Requests, in_use: &PodObject) -> Requests {
    let mut larger = requests.clone();
    larger.raise(&Requests::of(in_use));
    larger
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
