//! The pods that count for admission.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::requests::Requests;
use super::verdict::Check;
use crate::ids::PodUid;
use crate::pod::{Phase, PodObject};

/// The pods that already use the node, with their requests.
///
/// Some of them are stopping, and what they free may be reserved for pods that wait for admission. A new pod has to fit beside the
/// pods that use the node now, and beside those that use it once the stopping pods are gone and the waiting pods are admitted.
///
/// If the stop of a pod fails for longer than `PATIENCE`, or does not begin, the pod is stuck: it may stay or go, so a new pod has to fit
/// in both cases. Some waiting pods wait for stuck pods. Such a pod never uses the node together with the stuck pods whose room it needs,
/// so they never count together.
#[derive(Clone, Debug, Default)]
pub struct Admitted {
    /// The pods that use the node and are not about to stop.
    staying: Vec<Arc<PodObject>>,
    /// The stopping pods, with what they use.
    stopping: Vec<(Arc<PodObject>, Requests)>,
    /// The pods whose stop has failed for longer than `PATIENCE`, or that are not stopped before a source has delivered that may desire
    /// them, with what they use.
    stuck: Vec<(Arc<PodObject>, Requests)>,
    /// The staying pods whose resize gives something back, with what it gives back.
    shrinking: Vec<(Arc<PodObject>, Requests)>,
    /// The staying pods whose resize has failed for longer than `PATIENCE`, with what it would give back.
    stuck_shrinking: Vec<(Arc<PodObject>, Requests)>,
    /// The pods that wait for admission, in the order of their arrival.
    waiting: Vec<Waiting>,
    now: Requests,
    /// The requests once all stops and resizes are complete, without the waiting pods.
    later: Requests,
    /// What the stuck pods and resizes have beyond that.
    stuck_requests: Requests,
}

/// A pod that waits for admission.
#[derive(Clone, Debug)]
struct Waiting {
    pod: Arc<PodObject>,
    /// What is reserved for the pod.
    requests: Requests,
    /// Whether other pods were stopped for it.
    has_victims: bool,
    /// Whether it cannot start before stuck stops and resizes are complete.
    needs_stuck: bool,
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
    pub fn push_resizing(&mut self, pod: Arc<PodObject>, in_use: &PodObject) {
        let allocated = Requests::of(&pod);
        let largest = used_by(&pod, Some(in_use));
        self.now.add(&largest);
        self.later.add(&allocated);
        if largest != allocated {
            self.shrinking.push((pod.clone(), largest.without(&allocated)));
        }
        self.staying.push(pod);
    }

    /// Adds a pod whose resize has failed for longer than `PATIENCE`. No new pod waits for what the resize gives back.
    pub fn push_stuck_resizing(&mut self, pod: Arc<PodObject>, in_use: &PodObject) {
        let allocated = Requests::of(&pod);
        let largest = used_by(&pod, Some(in_use));
        self.now.add(&largest);
        self.later.add(&allocated);
        if largest != allocated {
            let given = largest.without(&allocated);
            self.stuck_requests.add(&given);
            self.stuck_shrinking.push((pod.clone(), given));
        }
        self.staying.push(pod);
    }

    /// Adds a pod that uses the node and is being stopped. `in_use` is the pod with the resources that it uses, if it is being resized: a
    /// stop ends the resize, and the containers keep their resources until they have stopped.
    pub fn push_stopping(&mut self, pod: Arc<PodObject>, in_use: Option<&PodObject>) {
        let used = used_by(&pod, in_use);
        self.now.add(&used);
        self.stopping.push((pod, used));
    }

    /// Adds a stuck pod: its stop has failed for longer than `PATIENCE`, or does not begin. `in_use` is as in
    /// [`push_stopping`](Admitted::push_stopping).
    pub fn push_stuck(&mut self, pod: Arc<PodObject>, in_use: Option<&PodObject>) {
        let used = used_by(&pod, in_use);
        self.now.add(&used);
        self.stuck_requests.add(&used);
        self.stuck.push((pod, used));
    }

    /// Adds a pod that waits until other pods give something back, behind those that wait already. What it needs is reserved for it.
    pub fn push_waiting(&mut self, pod: Arc<PodObject>, has_victims: bool) {
        self.insert_waiting(usize::MAX, pod, has_victims);
    }

    /// Adds a waiting pod at a place in the order of the waiting pods. `has_victims` is whether other pods were stopped for it.
    pub fn insert_waiting(&mut self, place: usize, pod: Arc<PodObject>, has_victims: bool) {
        let requests = Requests::of(&pod);
        let waiting = Waiting { pod, requests, has_victims, needs_stuck: false };
        self.waiting.insert(place.min(self.waiting.len()), waiting);
    }

    /// Removes a pod from the waiting pods, if it is one of them. What was reserved for it is free.
    pub fn remove_waiting(&mut self, pod: &PodObject) {
        self.waiting.retain(|other| other.pod.uid() != pod.uid());
    }

    /// The pods: those that use the node, and those for which room is reserved.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodObject>> {
        let ending = self.stopping.iter().chain(&self.stuck).map(|(pod, _)| pod);
        let waiting = self.waiting.iter().map(|waiting| &waiting.pod);
        self.staying.iter().chain(ending).chain(waiting)
    }

    /// The pods that use the node and are not about to stop.
    pub(crate) fn staying(&self) -> &[Arc<PodObject>] {
        &self.staying
    }

    /// The pods that are about to give some of a resource back, each with the amount. An empty name means something that is no resource,
    /// such as a port. Only stopping pods give that back, with the amount 0. The stuck ones count for a pod that waits for them.
    pub(super) fn releasing(&self, resource: &str, needs_stuck: bool) -> Vec<(Arc<PodObject>, i64)> {
        let stuck = self.stuck.iter().filter(|_| needs_stuck);
        let stopping = self.stopping.iter().chain(stuck);
        let stopping = stopping.map(|(pod, used)| (pod.clone(), used.get(resource)));
        if resource.is_empty() {
            return stopping.collect();
        }
        let stuck = self.stuck_shrinking.iter().filter(|_| needs_stuck);
        let shrinking = self.shrinking.iter().chain(stuck);
        let shrinking = shrinking.map(|(pod, given)| (pod.clone(), given.get(resource)));
        stopping.chain(shrinking).filter(|(_, amount)| *amount > 0).collect()
    }

    /// The pods beside which a new pod is judged, without the waiting pods behind it. A critical pod goes before every waiting pod that is
    /// not critical. Otherwise pods go in the order of their arrival: `place` is the number of the waiting pods that arrived before this
    /// pod.
    pub fn ahead_of(&self, pod: &PodObject, place: usize) -> Cow<'_, Admitted> {
        let is_ahead = |index: usize, other: &PodObject| {
            if pod.is_critical() == other.is_critical() { index < place } else { other.is_critical() }
        };
        if self.waiting.iter().enumerate().all(|(index, other)| is_ahead(index, &other.pod)) {
            return Cow::Borrowed(self);
        }
        let ahead = self.waiting.iter().enumerate().filter(|(index, other)| is_ahead(*index, &other.pod));
        Cow::Owned(Admitted { waiting: ahead.map(|(_, waiting)| waiting.clone()).collect(), ..self.clone() })
    }

    /// The same pods without one that is being stopped.
    pub fn without_stopping(&self, uid: &PodUid) -> Cow<'_, Admitted> {
        let is_other = |(pod, _): &(Arc<PodObject>, Requests)| pod.uid() != uid;
        let Some((_, own)) = self.stopping.iter().chain(&self.stuck).find(|pod| !is_other(pod)) else {
            return Cow::Borrowed(self);
        };
        let mut without = self.clone();
        without.now = without.now.without(own);
        if !without.stuck.iter().all(is_other) {
            without.stuck_requests = without.stuck_requests.without(own);
        }
        without.stopping.retain(is_other);
        without.stuck.retain(is_other);
        Cow::Owned(without)
    }

    /// Whether a pod waits for stuck stops and resizes however long they last: others were stopped for it, or it is a static pod and a
    /// stuck pod has its full name. It cannot start beside such a pod, so nothing else is stopped to make room beside it.
    pub(super) fn needs_stuck(&self, pod: &PodObject, has_victims: bool) -> bool {
        let has_its_name = |other: &Arc<PodObject>| other.is_static() && other.full_name() == pod.full_name();
        has_victims || (pod.is_static() && self.stuck.iter().any(|(stuck, _)| has_its_name(stuck)))
    }

    /// The same pods, after `check` has found the waiting pods that cannot start before stuck stops and resizes are complete.
    pub fn counted_once(&self, check: Check<'_>) -> Cow<'_, Admitted> {
        let is_any_stuck = !(self.stuck.is_empty() && self.stuck_shrinking.is_empty());
        let needs_stuck = |waiting: &Waiting| self.needs_stuck(&waiting.pod, waiting.has_victims);
        if !is_any_stuck || !self.waiting.iter().any(needs_stuck) {
            return Cow::Borrowed(self);
        }
        let mut counted = self.clone();
        let mut beside = Admitted { waiting: Vec::new(), ..self.clone() }.settled(false);
        // Only critical pods wait for stuck pods, and they go before the other pods.
        for waiting in counted.waiting.iter_mut().filter(|waiting| waiting.pod.is_critical()) {
            waiting.needs_stuck = needs_stuck(waiting) && check(&waiting.pod, &beside).is_err();
            if !waiting.needs_stuck {
                beside.push(waiting.pod.clone());
            }
        }
        Cow::Owned(counted)
    }

    /// The requests beside which a new pod has to fit.
    pub(super) fn used(&self) -> Requests {
        let mut used = self.reserved();
        used.raise(&self.reserved_beside_stuck());
        used.raise(&self.now);
        used
    }

    /// The requests once all stops and resizes are complete and the waiting pods are admitted.
    fn reserved(&self) -> Requests {
        let mut reserved = self.later.clone();
        self.waiting.iter().for_each(|waiting| reserved.add(&waiting.requests));
        reserved
    }

    /// The requests if the stuck stops and resizes never complete, and the waiting pods that do not wait for these are admitted.
    fn reserved_beside_stuck(&self) -> Requests {
        let mut reserved = self.later.clone();
        reserved.add(&self.stuck_requests);
        let admitted = self.waiting.iter().filter(|waiting| !waiting.needs_stuck);
        admitted.for_each(|waiting| reserved.add(&waiting.requests));
        reserved
    }

    /// The pods that use the node once the stopping pods are gone, the resizes are complete and the waiting pods are admitted. The stuck
    /// stops and resizes are complete too for a pod that waits for them.
    pub fn settled(&self, needs_stuck: bool) -> Admitted {
        let waiting = self.waiting.iter().map(|waiting| &waiting.pod);
        let mut settled =
            Admitted { staying: self.staying.iter().chain(waiting).cloned().collect(), ..Admitted::default() };
        let mut requests = self.reserved();
        if !needs_stuck {
            requests.raise(&self.reserved_beside_stuck());
            settled.stuck.clone_from(&self.stuck);
        }
        settled.now = requests.clone();
        settled.later = requests;
        settled
    }

    /// A hash of the pods that use the node, are stopping or wait, and of their requests, which a resize changes. Their order does
    /// not change the hash.
    pub(super) fn digest(&self) -> u64 {
        let hasher = FixedState::default();
        let waiting = self.waiting.iter().map(|waiting| hasher.hash_one((waiting.pod.uid(), &waiting.requests)));
        let requests = hasher.hash_one((&self.now, &self.later, &self.stuck_requests));
        let [stopping, stuck] = [&self.stopping, &self.stuck].map(|pods| pods.iter().map(|(pod, _)| pod));
        let pods = [digest(self.staying.iter(), 0), digest(stopping, 1), digest(stuck, 2)];
        pods.into_iter().chain(waiting).fold(requests, u64::wrapping_add)
    }
}

/// A hash of pods that does not depend on their order.
fn digest<'a>(pods: impl Iterator<Item = &'a Arc<PodObject>>, kind: u8) -> u64 {
    let hasher = FixedState::default();
    pods.fold(0, |sum: u64, pod| sum.wrapping_add(hasher.hash_one((kind, pod.uid()))))
}

/// What counts of a pod: of each resource the larger amount, the allocated one or that of the pod with the resources that it uses.
fn used_by(pod: &PodObject, in_use: Option<&PodObject>) -> Requests {
    let mut used = Requests::of(pod);
    in_use.into_iter().for_each(|in_use| used.raise(&Requests::of(in_use)));
    used
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
