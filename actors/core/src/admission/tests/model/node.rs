//! The model of a node. It applies decisions as the dispatcher and the engine do.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::laws::{self, Law};
use super::mutation::Mutation;
use super::scenarios::{PodSpec, Scenario};
use crate::admission::{
    AdmissionHandler, AdmissionQueue, Admitted, Decision, EarlierDecision, NodeCapacity, NodePredicates, Rejection,
    Verdict, WaitingPod, choose_victims, judge,
};
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::time::Time;

/// The index of a pod in the scenario.
pub(super) type Index = usize;

/// The state of a pod on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The node has neither a decision on the pod nor its containers.
    Absent,
    Waiting,
    Running,
    /// The stop of the pod was requested, and its containers may still run.
    Stopping,
    /// The stop has failed for longer than `PATIENCE`. No pod waits for it.
    Stuck,
    /// The pod is desired, and its containers have ended for good.
    Ended,
    Rejected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PodState {
    /// Whether the source has the pod.
    pub(super) desired: bool,
    pub(super) stage: Stage,
    /// Whether other pods were stopped for this pod, and this pod has not started since.
    pub(super) owed: bool,
}

/// The pods and the queue as plain data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) pods: Vec<PodState>,
    /// The pods of the queue in their order.
    pub(super) waiting: Vec<Index>,
    pub(super) rejected: Vec<Index>,
    /// The pods beside which the queue was judged last. `None` if a pod has joined the queue since, or if it is empty.
    judged_beside: Option<Vec<Stage>>,
    /// The law that the last action broke.
    pub(super) broken: Option<Law>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// The source has a new pod.
    Add(Index),
    /// The source has a changed version of a pod of the queue.
    Change(Index),
    /// The source no longer has the pod.
    Remove(Index),
    /// The containers of a stopping pod have ended.
    Stopped(Index),
    /// The stop of a pod has failed for long.
    Stuck(Index),
    /// A running pod ends by itself.
    Ends(Index),
    /// The queue is judged again.
    Judge,
}

impl Action {
    pub(super) fn described(self, scenario: &Scenario) -> String {
        let name = |index: Index| scenario.pods[index].name;
        match self {
            Action::Add(index) => format!("{} comes", name(index)),
            Action::Change(index) => format!("{} changes", name(index)),
            Action::Remove(index) => format!("{} leaves", name(index)),
            Action::Stopped(index) => format!("{} has stopped", name(index)),
            Action::Stuck(index) => format!("the stop of {} has failed for long", name(index)),
            Action::Ends(index) => format!("{} ends", name(index)),
            Action::Judge => "the queue is judged".to_owned(),
        }
    }
}

impl World {
    pub(super) fn empty(pods: usize) -> Self {
        let absent = PodState { desired: false, stage: Stage::Absent, owed: false };
        let pods = vec![absent; pods];
        let (waiting, rejected) = (vec![], vec![]);
        World { pods, waiting, rejected, judged_beside: None, broken: None }
    }

    pub(super) fn actions(&self, can_get_stuck: Option<Index>, actions: &mut Vec<Action>) {
        for (index, pod) in self.pods.iter().enumerate() {
            match pod.stage {
                Stage::Absent => actions.push(Action::Add(index)),
                Stage::Stopping if can_get_stuck == Some(index) => {
                    actions.extend([Action::Stopped(index), Action::Stuck(index)]);
                }
                Stage::Stopping | Stage::Stuck => actions.push(Action::Stopped(index)),
                Stage::Running => actions.push(Action::Ends(index)),
                Stage::Waiting => actions.push(Action::Change(index)),
                Stage::Rejected if self.rejected.contains(&index) => actions.push(Action::Change(index)),
                Stage::Rejected | Stage::Ended => {}
            }
            if pod.desired {
                actions.push(Action::Remove(index));
            }
        }
        actions.push(Action::Judge);
    }

    /// The pods in one of these stages.
    pub(super) fn in_stages<'a>(&'a self, stages: &'a [Stage]) -> impl Iterator<Item = Index> + 'a {
        let is_in = |(index, pod): (Index, &PodState)| stages.contains(&pod.stage).then_some(index);
        self.pods.iter().enumerate().filter_map(is_in)
    }
}

/// A node of a scenario.
pub(super) struct Node {
    pub(super) scenario: &'static Scenario,
    pub(super) objects: Vec<Arc<PodObject>>,
    pub(super) predicates: NodePredicates,
    mutation: Option<Mutation>,
    /// The hashes of the worlds that keep [`Law::Rest`].
    pub(super) resting: Mutex<HashSet<u64>>,
}

/// The world while an action changes it.
struct Change<'a> {
    node: &'a Node,
    world: World,
    queue: AdmissionQueue,
    /// Whether a pod got room that may have been reserved for pods behind it.
    overtakes: bool,
}

impl Node {
    pub(super) fn of(scenario: &'static Scenario, mutation: Option<Mutation>) -> Self {
        let capacity = NodeCapacity::new(scenario.cores * 1000, i64::MAX, 100);
        let predicates = NodePredicates::new("node", capacity);
        let objects = scenario.pods.iter().map(PodSpec::build).collect();
        Node { scenario, objects, predicates, mutation, resting: Mutex::default() }
    }

    pub(super) fn mutates(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub(super) fn check(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection> {
        self.predicates.admit(pod, others)
    }

    /// The pods that count (`ActivePods::admitted`).
    pub(super) fn admitted(&self, world: &World, waiting: &[Index]) -> Admitted {
        let mut admitted = Admitted::default();
        for (object, pod) in self.objects.iter().zip(&world.pods) {
            match pod.stage {
                Stage::Running => admitted.push(object.clone()),
                Stage::Stopping if self.mutates(Mutation::StoppingPodsDoNotCount) => {}
                Stage::Stopping => admitted.push_stopping(object.clone(), None),
                Stage::Stuck if self.mutates(Mutation::StuckPodsAreAwaited) => {
                    admitted.push_stopping(object.clone(), None)
                }
                Stage::Stuck => admitted.push_stuck(object.clone(), None),
                Stage::Absent | Stage::Waiting | Stage::Ended | Stage::Rejected => {}
            }
        }
        if !self.mutates(Mutation::NothingIsReserved) {
            for index in waiting {
                admitted.push_waiting(self.objects[*index].clone(), self.has_victims(world.pods[*index].owed));
            }
        }
        admitted
    }

    /// Whether others were stopped for a waiting pod, as the decisions on other pods see it.
    fn has_victims(&self, is_owed: bool) -> bool {
        is_owed && !self.mutates(Mutation::StuckPodsCountTwice)
    }

    /// Whether a pod fits beside the pods with these indices.
    pub(super) fn fits(&self, pod: &PodObject, beside: &[Index]) -> bool {
        let beside: Admitted = beside.iter().map(|index| self.objects[*index].clone()).collect();
        self.check(pod, &beside).is_ok()
    }

    pub(super) fn index_of(&self, uid: &PodUid) -> Index {
        self.objects.iter().position(|object| object.uid() == uid).expect("a pod of the scenario")
    }

    /// The world after an action, with the law that the action broke.
    pub(super) fn after(&self, world: &World, action: Action) -> World {
        let mut world = self.acted(world, action);
        world.broken = world.broken.or_else(|| laws::broken(self, &world));
        world
    }

    /// The world after an action.
    pub(super) fn acted(&self, world: &World, action: Action) -> World {
        let mut change = Change { node: self, world: world.clone(), queue: self.queue(world), overtakes: false };
        match action {
            Action::Add(index) => {
                change.world.pods[index].desired = true;
                change.deliver(index);
            }
            Action::Change(index) => change.deliver(index),
            Action::Remove(index) => {
                change.remove(index);
                change.judge_queue();
            }
            Action::Stopped(index) => {
                let pod = &mut change.world.pods[index];
                pod.stage = if pod.desired { Stage::Ended } else { Stage::Absent };
            }
            Action::Stuck(index) => change.world.pods[index].stage = Stage::Stuck,
            Action::Ends(index) => change.world.pods[index].stage = Stage::Ended,
            Action::Judge => change.judge_queue(),
        }
        change.into_world()
    }

    fn queue(&self, world: &World) -> AdmissionQueue {
        let mut queue = AdmissionQueue::default();
        for index in &world.waiting {
            let (pod, lack, resource) = (self.objects[*index].clone(), String::new(), String::new());
            let (since, has_victims) = (Time::ZERO, world.pods[*index].owed);
            let waiting = WaitingPod { pod, since, releasing: vec![], lack, resource, has_victims };
            queue.wait(waiting, &EarlierDecision::None);
        }
        for index in &world.rejected {
            queue.reject(self.objects[*index].clone(), &EarlierDecision::None);
        }
        if let Some(stages) = &world.judged_beside {
            let pods = stages.iter().map(|stage| PodState { desired: true, stage: *stage, owed: false }).collect();
            let waiting: Vec<Index> = (0..stages.len()).filter(|index| stages[*index] == Stage::Waiting).collect();
            queue.set_judged_beside(&self.admitted(&World { pods, ..World::empty(0) }, &waiting));
        }
        queue
    }
}

impl Change<'_> {
    fn admitted(&self) -> Admitted {
        let waiting = self.queue.waiting().iter().map(|waiting| self.node.index_of(waiting.pod.uid()));
        self.node.admitted(&self.world, &waiting.collect::<Vec<_>>())
    }

    /// The pods that a pod has to fit beside once the stopping pods are gone: if the stuck pods go too, and if they stay. The waiting
    /// pods that go before it count. If the stuck pods stay, a pod for which others were stopped counts only if it fits beside them, and
    /// waits on if it is the pod that is judged.
    fn cases(&self, pod: &PodObject, place: usize, is_owed: bool) -> Vec<Vec<Index>> {
        let goes_before = |(at, other): &(usize, &WaitingPod)| match (pod.is_critical(), other.pod.is_critical()) {
            (false, true) => true,
            (true, false) => false,
            (true, true) | (false, false) => *at < place,
        };
        let before = self.queue.waiting().iter().enumerate().filter(goes_before);
        let mut before: Vec<Index> = before.map(|(_, other)| self.node.index_of(other.pod.uid())).collect();
        before.sort_by_key(|index| !self.node.objects[*index].is_critical());
        let all_go = self.world.in_stages(&[Stage::Running]).chain(before.iter().copied()).collect();
        if is_owed {
            return vec![all_go];
        }
        let mut stuck_stay: Vec<Index> = self.world.in_stages(&[Stage::Running, Stage::Stuck]).collect();
        for index in before {
            if !self.world.pods[index].owed || self.node.fits(&self.node.objects[index], &stuck_stay) {
                stuck_stay.push(index);
            }
        }
        vec![all_go, stuck_stay]
    }

    /// The source has a new or changed pod (`Dispatcher::deliver`).
    fn deliver(&mut self, index: Index) {
        self.decide(index, &mut None);
        if self.overtakes && !self.node.mutates(Mutation::OvertakenPodsAreNotJudged) {
            self.judge_queue();
        }
    }

    /// A pod left its source (`Dispatcher::remove`).
    fn remove(&mut self, index: Index) {
        let object = self.node.objects[index].clone();
        let _earlier = self.queue.take(object.uid());
        let pod = &mut self.world.pods[index];
        pod.desired = false;
        pod.owed = false;
        pod.stage = match pod.stage {
            Stage::Running | Stage::Stopping => Stage::Stopping,
            Stage::Stuck => Stage::Stuck,
            Stage::Absent | Stage::Waiting | Stage::Ended | Stage::Rejected => Stage::Absent,
        };
    }

    /// Judges the queue again (`Dispatcher::judge_queue`).
    fn judge_queue(&mut self) {
        if self.queue.is_empty() || self.node.mutates(Mutation::QueueIsNotJudgedAgain) {
            return;
        }
        let mut others = Some(self.admitted());
        if others.as_ref().is_some_and(|others| self.queue.is_judged_beside(others)) {
            return;
        }
        for pod in self.queue.pods() {
            self.decide(self.node.index_of(pod.uid()), &mut others);
        }
        let others = others.unwrap_or_else(|| self.admitted());
        self.queue.set_judged_beside(&others);
        self.world.judged_beside = Some(self.world.pods.iter().map(|pod| pod.stage).collect());
    }

    /// Decides on a pod (`Dispatcher::decide`).
    fn decide(&mut self, index: Index, others: &mut Option<Admitted>) {
        let object = self.node.objects[index].clone();
        let earlier = self.queue.take(object.uid());
        let node = self.node;
        let beside = others.get_or_insert_with(|| self.admitted());
        beside.remove_waiting(&object);
        let place = if node.mutates(Mutation::PodsBehindCount) { usize::MAX } else { earlier.place() };
        let ahead = match node.mutates(Mutation::CriticalPodsQueueUp) {
            true => Cow::Borrowed(&*beside),
            false => beside.ahead_of(&object, place),
        };
        let has_victims = earlier.has_victims() && !node.mutates(Mutation::PromisesEndWithPatience);
        let verdict = judge(&object, &ahead, has_victims, &|pod, others| node.check(pod, others));
        let verdict = node.mutated(&object, &ahead, &earlier, verdict);
        let is_owed = self.world.pods[index].owed;
        let cases = self.cases(&object, earlier.place(), is_owed);
        let decision = self.queue.settle(&object, &earlier, verdict, &ahead, Time::ZERO);
        let broken = laws::broken_by_decision(node, &object, &cases, is_owed, &decision);
        self.world.broken = self.world.broken.or(broken);
        let gets_room = matches!(decision, Decision::Start | Decision::Wait { .. });
        self.overtakes |= gets_room && matches!(ahead, Cow::Owned(_));
        drop(ahead);
        let pod = &mut self.world.pods[index];
        match decision {
            Decision::Start => {
                beside.push(object);
                (pod.stage, pod.owed) = (Stage::Running, false);
            }
            Decision::Wait { victims, .. } => {
                if !node.mutates(Mutation::NothingIsReserved) {
                    beside.insert_waiting(earlier.place(), object, node.has_victims(earlier.has_victims()));
                }
                pod.stage = Stage::Waiting;
                pod.owed |= !victims.is_empty();
                if !victims.is_empty() {
                    *others = None;
                }
                for victim in victims {
                    self.world.pods[node.index_of(victim.uid())].stage = Stage::Stopping;
                }
            }
            Decision::Reject(_) | Decision::StaysRejected => {
                pod.stage = Stage::Rejected;
                if node.mutates(Mutation::RejectedPodsAreForgotten) {
                    let _earlier = self.queue.take(object.uid());
                }
            }
        }
    }

    fn into_world(mut self) -> World {
        let index_of = |pod: &Arc<PodObject>| self.node.index_of(pod.uid());
        self.world.waiting = self.queue.waiting().iter().map(|waiting| index_of(&waiting.pod)).collect();
        let is_rejected = |pod: &Arc<PodObject>| self.queue.is_rejected(pod.uid());
        self.world.rejected = self.queue.pods().iter().filter(|pod| is_rejected(pod)).map(index_of).collect();
        let is_kept = self.queue.was_judged() || self.node.mutates(Mutation::JudgementCountsForNewPods);
        if self.queue.is_empty() || !is_kept {
            self.world.judged_beside = None;
        }
        self.world
    }
}

impl Node {
    /// The verdict, or a wrong verdict if the mutation applies.
    fn mutated(&self, pod: &PodObject, beside: &Admitted, earlier: &EarlierDecision, verdict: Verdict) -> Verdict {
        let has_waited = matches!(earlier, EarlierDecision::Waited { .. });
        match verdict {
            Verdict::Wait(_) if has_waited && self.mutates(Mutation::WaitingPodsAreJudgedOnce) => {
                Verdict::Reject(Rejection::in_use("Late", "too late"))
            }
            Verdict::Wait(_) if !pod.is_critical() && self.mutates(Mutation::OnlyCriticalPodsWait) => {
                Verdict::Reject(Rejection::in_use("Usual", "it is not critical"))
            }
            Verdict::Wait(mut wait) if self.mutates(Mutation::EveryPodIsAVictim) => {
                let are_needed = !wait.victims.is_empty();
                wait.victims =
                    beside.staying().iter().filter(|other| are_needed && !other.is_critical()).cloned().collect();
                Verdict::Wait(wait)
            }
            // Selects victims as if no pod were stopping.
            Verdict::Wait(mut wait) if self.mutates(Mutation::StoppingPodsAreNotAwaited) => {
                if let Err(rejection) = self.check(pod, beside)
                    && let Ok(victims) = choose_victims(pod, beside.staying(), rejection.shortages())
                {
                    wait.victims = victims;
                }
                Verdict::Wait(wait)
            }
            other => other,
        }
    }
}
