//! A controller, the server, and watches that lag.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{Pod, PodCondition as StoredCondition};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::super::super::super::owners::object_key;
use super::super::super::super::table::WatchEvent;
use super::super::Outcome as PassOutcome;
use super::super::*;
use super::counts::{LimitCounts, is_within_limit, remove_limit};
use super::laws::Law;
use super::{Mutation, UserChange};

/// The kinds that are watched: pods, claims, slices and rules.
pub(super) const KINDS: usize = 4;
pub(super) const PODS: usize = 0;
const RULES: usize = 3;

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Performed,
    Refused,
    /// The call has no answer.
    Lost {
        is_performed: bool,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) item: Item,
    pub(super) pass: Pass,
    pub(super) request: Request,
}

/// What a watch has not shown.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) is_deletion: bool,
    pub(super) object: Change,
}

/// The objects of the server.
#[derive(Clone, Debug, Default)]
pub(super) struct Server {
    pub(super) pods: BTreeMap<ObjectKey, Pod>,
    pub(super) claims: BTreeMap<ObjectKey, ResourceClaim>,
    pub(super) slices: BTreeMap<ObjectKey, ResourceSlice>,
    pub(super) rules: BTreeMap<ObjectKey, DeviceTaintRule>,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) settings: Settings,
    pub(super) mutation: Option<Mutation>,
    pub(super) core: Core,
    pub(super) server: Server,
    pub(super) now: Time,
    pub(super) hidden: [VecDeque<Event>; KINDS],
    /// The items that wait, with their times.
    pub(super) queue: BTreeMap<Item, Time>,
    pub(super) running: Vec<Running>,
    /// The writes of earlier leaders that the server may still perform.
    pub(super) late: Vec<Request>,
    /// The events of each pod in this term.
    pub(super) events: Vec<EvictionEvent>,
    /// The pods that the controllers of all terms have deleted on the server.
    pub(super) deleted: Vec<PodId>,
    /// The pods whose deletion the controller has reported.
    pub(super) reported: Vec<PodId>,
    /// What this leader must count for the limit of the rule.
    pub(super) counts: LimitCounts,
    /// The first law that was broken.
    pub(super) broken: Option<String>,
}

impl World {
    /// A controller that has just begun its first term.
    pub(super) fn new(settings: Settings, objects: &[Change], mutation: Option<Mutation>) -> Self {
        let mut world = World {
            settings,
            mutation,
            core: Core::new(settings),
            server: Server::default(),
            now: T0,
            hidden: Default::default(),
            queue: BTreeMap::new(),
            running: Vec::new(),
            late: Vec::new(),
            events: Vec::new(),
            deleted: Vec::new(),
            reported: Vec::new(),
            counts: LimitCounts::default(),
            broken: None,
        };
        objects.iter().for_each(|object| world.put(object.clone()));
        world.begin_term();
        world
    }

    /// Another leader takes over, and lists all objects. The server performs the writes in flight later, or never.
    pub(super) fn begin_term(&mut self) {
        self.core = Core::new(self.settings);
        self.counts = LimitCounts::default();
        self.queue.clear();
        let writes = self.running.drain(..).map(|running| running.request);
        self.late.extend(writes.filter(|request| !matches!(request, Request::GetPod(_))));
        self.events.clear();
        if self.mutation == Some(Mutation::LosesLimits) {
            self.server.rules.values_mut().for_each(remove_limit);
        }
        (0..KINDS).for_each(|kind| self.list(kind));
    }

    pub(super) fn check(&mut self, law: Law) {
        if let Err(broken) = law {
            self.broken.get_or_insert(broken);
        }
    }

    fn put(&mut self, object: Change) {
        let kind = match &object {
            Change::Pod(pod) => insert(&mut self.server.pods, pod, 0),
            Change::Claim(claim) => insert(&mut self.server.claims, claim, 1),
            Change::Slice(slice) => insert(&mut self.server.slices, slice, 2),
            Change::Rule(rule) => insert(&mut self.server.rules, rule, 3),
        };
        self.hidden[kind].push_back(Event { is_deletion: false, object });
    }

    fn remove(&mut self, object: Change) {
        let kind = match &object {
            Change::Pod(pod) => remove(&mut self.server.pods, pod, 0),
            Change::Claim(claim) => remove(&mut self.server.claims, claim, 1),
            Change::Slice(slice) => remove(&mut self.server.slices, slice, 2),
            Change::Rule(rule) => remove(&mut self.server.rules, rule, 3),
        };
        self.hidden[kind].push_back(Event { is_deletion: true, object });
    }

    /// A user changes objects.
    pub(super) fn change(&mut self, change: UserChange) {
        let pod = self.server.pods.get(&ObjectKey::new(NAMESPACE, "p")).cloned();
        let rule = self.server.rules.values().next().cloned();
        match change {
            UserChange::Lift => self.put(Change::Slice(slice())),
            UserChange::Taint => self.put(Change::Slice(tainted_slice())),
            UserChange::DeleteSlice => self.remove(Change::Slice(tainted_slice())),
            UserChange::DeletePod => pod.into_iter().for_each(|pod| self.remove(Change::Pod(pod))),
            UserChange::ReplacePod => {
                let mut new = super::super::pod();
                new.metadata.uid = Some("p-uid-2".into());
                self.put(Change::Pod(new));
                let consumers = [reserved("pods", "p", "p-uid-2")];
                self.put(Change::Claim(tolerating(claim_of("c", &["i"], &consumers), &[for_seconds(1000)])));
            }
            UserChange::Release => self.put(Change::Claim(claim_of("c", &["i"], &[]))),
            UserChange::DeleteRule => rule.into_iter().for_each(|rule| self.remove(Change::Rule(rule))),
            UserChange::Continue(number) => {
                let mut rule = rule.unwrap();
                rule.metadata.annotations = Some([(CONTINUE_ANNOTATION.to_owned(), number.to_string())].into());
                self.put(Change::Rule(rule));
            }
        }
    }

    pub(super) fn show(&mut self, kind: usize) {
        let Some(Event { is_deletion, object }) = self.hidden[kind].pop_front() else { return };
        let (core, now) = (&mut self.core, self.now);
        match object {
            Change::Pod(pod) => core.pod_event(shown(pod, is_deletion), now),
            Change::Claim(claim) => core.claim_event(shown(claim, is_deletion)),
            Change::Slice(slice) => core.slice_event(shown(slice, is_deletion), now),
            Change::Rule(mut rule) => {
                if self.counts.shown(&rule) && self.mutation == Some(Mutation::HidesLateLimits) {
                    remove_limit(&mut rule);
                }
                core.rule_event(shown(rule, is_deletion), now);
            }
        }
    }

    /// A watch lists all objects of a kind anew.
    pub(super) fn list(&mut self, kind: usize) {
        self.hidden[kind].clear();
        for rule in self.server.rules.values().filter(|_| kind == RULES) {
            let _is_earlier = self.counts.shown(rule);
        }
        self.server.list(&mut self.core, kind, self.now);
    }

    /// Evaluates all marked pods, and queues what follows.
    pub(super) fn fill(&mut self) {
        if self.mutation == Some(Mutation::ForgetsMarks) {
            self.core.marked = Default::default();
        }
        while self.core.evaluate_next(self.now) {}
        let effects = self.core.take_effects();
        self.events.extend(effects.events);
        self.check(self.check_events());
        if self.mutation == Some(Mutation::ForgetsItems) {
            return;
        }
        for rule in effects.rules_now.into_keys() {
            self.add(Item::Rule(rule), self.now);
        }
        for (rule, at) in effects.rules_at {
            self.add(Item::Rule(rule), at);
        }
        for (at, pod, not_before) in effects.pods {
            self.add(Item::Pod(pod), at.max(not_before));
        }
    }

    fn add(&mut self, item: Item, at: Time) {
        let waiting = self.queue.entry(item).or_insert(at);
        *waiting = at.min(*waiting);
    }

    /// The items that a worker may take.
    pub(super) fn due(&self) -> Vec<Item> {
        let is_due =
            |(item, at): &(&Item, &Time)| **at <= self.now && self.running.iter().all(|running| running.item != **item);
        self.queue.iter().filter(is_due).map(|(item, _)| item.clone()).collect()
    }

    pub(super) fn begin(&mut self, item: Item) {
        self.queue.remove(&item);
        let mut pass = self.core.begin(&item);
        let step = pass.step(&mut self.core, None, self.now);
        self.stepped(item, pass, step);
    }

    fn stepped(&mut self, item: Item, pass: Pass, step: Step) {
        match step {
            Step::Call(request) => {
                self.check(self.check_request(&request));
                let limit = self.limit();
                let within = self.counts.begun(&request, limit);
                self.check(within);
                self.running.push(Running { item, pass, request });
            }
            Step::Done(Report { outcome, evicted }) => {
                if let Some(Evicted { pod, .. }) = evicted {
                    self.check(self.check_report(&pod));
                    self.reported.push(pod);
                }
                match outcome {
                    PassOutcome::Finished => {}
                    PassOutcome::Again(at) => self.add(item, at),
                    PassOutcome::Failed(_) => self.add(item, self.now),
                }
            }
        }
    }

    pub(super) fn step(&mut self, at: usize, outcome: Outcome) {
        let Running { item, mut pass, request } = self.running.remove(at);
        let deleted = if let Request::DeletePod(pod) = &request { Some(pod.clone()) } else { None };
        let error = |kind| Err(ApiError::new(kind, "refused by the test"));
        let answer = match outcome {
            Outcome::Performed => self.perform(request),
            Outcome::Refused => error(ApiErrorKind::Refused),
            Outcome::Lost { is_performed } => {
                if is_performed {
                    let _ = self.perform(request);
                }
                error(ApiErrorKind::Unknown)
            }
        };
        if let (Some(pod), Err(error)) = (&deleted, &answer)
            && error.kind != ApiErrorKind::Unknown
        {
            self.counts.refused(pod);
        }
        let step = pass.step(&mut self.core, Some(answer), self.now);
        self.stepped(item, pass, step);
    }

    /// The server performs a write of an earlier leader. Nobody receives the answer.
    pub(super) fn perform_late(&mut self, at: usize) {
        let request = self.late.remove(at);
        let _ = self.perform(request);
    }

    /// The pod of the server, if it has this UID.
    fn pod(&self, id: &PodId) -> Result<Pod, ApiError> {
        let error = |kind| ApiError::new(kind, "refused by the test");
        let pod = self.server.pods.get(&id.key).ok_or_else(|| error(ApiErrorKind::NotFound))?;
        let is_same = PodId::of(pod).as_ref() == Some(id) || self.mutation == Some(Mutation::IgnoresUid);
        if is_same { Ok(pod.clone()) } else { Err(error(ApiErrorKind::Conflict)) }
    }

    fn perform(&mut self, request: Request) -> Result<Answer, ApiError> {
        let missing = || ApiError::new(ApiErrorKind::NotFound, "refused by the test");
        match request {
            Request::GetPod(key) => {
                let pod = self.server.pods.get(&key).cloned().ok_or_else(missing)?;
                return Ok(Answer::Pod(Box::new(pod)));
            }
            Request::PatchPodStatus(condition) => {
                let mut pod = self.pod(&condition.pod)?;
                pod.status.get_or_insert_default().conditions = Some(vec![StoredCondition {
                    type_: PodCondition::TYPE.to_owned(),
                    status: "True".to_owned(),
                    reason: Some(PodCondition::REASON.to_owned()),
                    message: Some(PodCondition::MESSAGE.to_owned()),
                    last_transition_time: Some(condition.since.to_api()),
                    ..StoredCondition::default()
                }]);
                self.put(Change::Pod(pod));
            }
            Request::DeletePod(id) => {
                let pod = self.pod(&id)?;
                self.check(super::laws::is_same_pod(&pod, &id));
                self.deleted.push(id);
                self.check(is_within_limit(&self.deleted, self.limit()));
                self.remove(Change::Pod(pod));
            }
            Request::ApplyRuleStatus(write) => {
                let key = ObjectKey::new("", &write.rule.name);
                let known = self.server.rules.get(&key).cloned().ok_or_else(missing)?;
                let mut rule = known;
                rule.status.get_or_insert_default().conditions = Some(write.conditions);
                self.put(Change::Rule(rule));
            }
        }
        Ok(Answer::Done)
    }

    /// Whether all is shown and evaluated, and no item is due.
    pub(super) fn rests(&self) -> bool {
        let is_shown = self.hidden.iter().all(VecDeque::is_empty);
        is_shown && !self.core.has_work() && self.running.is_empty() && self.due().is_empty()
    }

    /// The watches catch up, nothing fails any more, and time passes until no item is left.
    pub(super) fn settle(&mut self) {
        for _ in 0..2_000 {
            for kind in 0..KINDS {
                while !self.hidden[kind].is_empty() {
                    self.show(kind);
                }
            }
            if self.core.has_work() {
                self.fill();
            } else if !self.running.is_empty() {
                self.step(0, Outcome::Performed);
            } else if let Some(item) = self.due().into_iter().next() {
                self.begin(item);
            } else if let Some(next) = self.queue.values().min().copied() {
                self.now = self.now.max(next);
            } else {
                self.check(self.check_rest());
                return;
            }
        }
        self.check(Err(format!("the controller does not come to rest: {:?}", self.queue)));
    }
}

impl Server {
    /// Lists the objects of a kind to a controller.
    pub(super) fn list(&self, core: &mut Core, kind: usize, now: Time) {
        match kind {
            0 => listed(&self.pods).for_each(|event| core.pod_event(event, now)),
            1 => listed(&self.claims).for_each(|event| core.claim_event(event)),
            2 => listed(&self.slices).for_each(|event| core.slice_event(event, now)),
            _ => listed(&self.rules).for_each(|event| core.rule_event(event, now)),
        }
    }
}

fn listed<T: Clone>(objects: &BTreeMap<ObjectKey, T>) -> impl Iterator<Item = WatchEvent<T>> {
    let present = objects.values().map(|object| WatchEvent::InitApply(Arc::new(object.clone())));
    std::iter::once(WatchEvent::Init).chain(present).chain([WatchEvent::InitDone])
}

fn shown<T>(object: T, is_deletion: bool) -> WatchEvent<T> {
    if is_deletion { WatchEvent::Delete(Arc::new(object)) } else { WatchEvent::Apply(Arc::new(object)) }
}

fn insert<T: Metadata<Ty = ObjectMeta> + Clone>(into: &mut BTreeMap<ObjectKey, T>, object: &T, kind: usize) -> usize {
    into.insert(object_key(object.metadata()), object.clone());
    kind
}

fn remove<T: Metadata<Ty = ObjectMeta>>(from: &mut BTreeMap<ObjectKey, T>, object: &T, kind: usize) -> usize {
    from.remove(&object_key(object.metadata()));
    kind
}
