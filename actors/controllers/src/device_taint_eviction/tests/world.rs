//! The controller with a server in memory. Its watches show each change at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition as StoredCondition};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use podwright_model::time::Time;
use podwright_work_queue::{Backoff, Outcome as WorkOutcome, WorkQueue};

use super::super::super::owners::object_key;
use super::super::super::table::WatchEvent;
use super::super::*;
use super::{NAMESPACE, T0};

const BACKOFF: Backoff = Backoff { first: Duration::from_millis(5), longest: Duration::from_secs(1000) };

/// What a watch shows.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "tests have few of them")]
pub(super) enum Change {
    Pod(Pod),
    Claim(ResourceClaim),
    Slice(ResourceSlice),
    Rule(DeviceTaintRule),
}

/// Runs a scenario with its first changes in each order.
pub(super) fn in_all_orders(settings: Settings, changes: &[Change], then: impl Fn(World)) {
    let mut orders = vec![Vec::new()];
    for index in 0..changes.len() {
        let longer = orders.into_iter().flat_map(|order: Vec<usize>| {
            (0..=order.len()).map(move |place| {
                let mut longer = order.clone();
                longer.insert(place, index);
                longer
            })
        });
        orders = longer.collect();
    }
    for order in orders {
        eprintln!("order of the changes: {order:?}");
        let mut world = World::with(settings);
        order.into_iter().for_each(|index| world.apply(changes[index].clone()));
        then(world);
    }
}

pub(super) struct World {
    pub(super) core: Core,
    pub(super) queue: WorkQueue<Item>,
    pub(super) now: Time,
    pods: BTreeMap<ObjectKey, Pod>,
    rules: BTreeMap<String, DeviceTaintRule>,
    /// The calls that [`World::calls`] has not returned yet.
    calls: Vec<String>,
    events: Vec<String>,
    pub(super) evicted: Vec<Evicted>,
    /// Calls that begin with this text are refused.
    pub(super) refuse: Option<&'static str>,
    /// The kind of the error of these calls.
    pub(super) refusal: ApiErrorKind,
    /// The delay that the server requests with it.
    pub(super) retry_after: Duration,
    /// This change happens during the next call that begins with this text.
    pub(super) during: Option<(&'static str, Change)>,
}

impl World {
    pub(super) fn new() -> Self {
        World::with(Settings::default())
    }

    pub(super) fn with(settings: Settings) -> Self {
        World {
            core: Core::new(settings),
            queue: WorkQueue::new(BACKOFF),
            now: T0,
            pods: BTreeMap::new(),
            rules: BTreeMap::new(),
            calls: Vec::new(),
            events: Vec::new(),
            evicted: Vec::new(),
            refuse: None,
            refusal: ApiErrorKind::Unknown,
            retry_after: Duration::ZERO,
            during: None,
        }
    }

    /// The world after these changes.
    pub(super) fn after(changes: impl IntoIterator<Item = Change>) -> Self {
        let mut world = World::new();
        changes.into_iter().for_each(|change| world.apply(change));
        world
    }

    /// An object is created or changed, and evaluated.
    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::Pod(pod) => {
                self.pods.insert(object_key(&pod.metadata), pod.clone());
                self.core.pod_event(WatchEvent::Apply(Arc::new(pod)), self.now);
            }
            Change::Claim(claim) => self.core.claim_event(WatchEvent::Apply(Arc::new(claim))),
            Change::Slice(slice) => self.core.slice_event(WatchEvent::Apply(Arc::new(slice)), self.now),
            Change::Rule(rule) => {
                self.rules.insert(rule.metadata.name.clone().unwrap(), rule.clone());
                self.core.rule_event(WatchEvent::Apply(Arc::new(rule)), self.now);
            }
        }
        self.evaluate();
    }

    /// An object is deleted.
    pub(super) fn delete(&mut self, change: Change) {
        match change {
            Change::Pod(pod) => {
                self.pods.remove(&object_key(&pod.metadata));
                self.core.pod_event(WatchEvent::Delete(Arc::new(pod)), self.now);
            }
            Change::Claim(claim) => self.core.claim_event(WatchEvent::Delete(Arc::new(claim))),
            Change::Slice(slice) => self.core.slice_event(WatchEvent::Delete(Arc::new(slice)), self.now),
            Change::Rule(rule) => {
                self.rules.remove(rule.metadata.name.as_deref().unwrap());
                self.core.rule_event(WatchEvent::Delete(Arc::new(rule)), self.now);
            }
        }
        self.evaluate();
    }

    /// The watches complete their first lists, which show what is known.
    pub(super) fn complete_lists(&mut self) {
        self.core.pod_event(WatchEvent::InitDone, self.now);
        self.core.claim_event(WatchEvent::InitDone);
        self.core.slice_event(WatchEvent::InitDone, self.now);
        self.core.rule_event(WatchEvent::InitDone, self.now);
    }

    /// Evaluates the marked pods.
    pub(super) fn evaluate(&mut self) {
        while self.core.evaluate_next(self.now) {}
        for event in self.core.take_effects().enqueue(&mut self.queue, self.now) {
            self.events.push(format!("{}: {}", event.pod.key.name, event.kind.message()));
        }
    }

    /// Works on all items that are due until a time.
    pub(super) fn run_until(&mut self, end: Time) {
        loop {
            while let Some(item) = self.queue.take(self.now) {
                self.work_on(&item);
            }
            match self.queue.next_due().filter(|due| *due <= end) {
                Some(due) => self.now = due,
                None => break,
            }
        }
        self.now = end;
    }

    /// Works on the items that are due.
    pub(super) fn run(&mut self) {
        self.run_until(self.now);
    }

    fn work_on(&mut self, item: &Item) {
        let mut pass = self.core.begin(item);
        let mut answer = None;
        let report = loop {
            let step = pass.step(&mut self.core, answer.take(), self.now);
            self.evaluate();
            match step {
                Step::Call(request) => answer = Some(self.call(request)),
                Step::Done(report) => break report,
            }
        };
        self.evicted.extend(report.evicted);
        let outcome = match report.outcome {
            Outcome::Finished => WorkOutcome::Finished,
            Outcome::Again(at) => {
                self.queue.add_at(item, at);
                WorkOutcome::Finished
            }
            Outcome::Failed(fault) => WorkOutcome::Retry { at_least: fault.delay_at_least() },
        };
        self.queue.done(item, outcome, self.now);
    }

    fn call(&mut self, request: Request) -> Result<Answer, ApiError> {
        let text = text(&request);
        self.calls.push(text.clone());
        if let Some((_, change)) = self.during.take_if(|(call, _)| text.starts_with(&**call)) {
            self.apply(change);
        }
        if self.refuse.is_some_and(|call| text.starts_with(call)) {
            return Err(ApiError { retry_after: self.retry_after, ..error(self.refusal) });
        }
        match request {
            Request::GetPod(key) => {
                let pod = self.pods.get(&key).cloned().ok_or_else(|| error(ApiErrorKind::NotFound))?;
                Ok(Answer::Pod(Box::new(pod)))
            }
            Request::PatchPodStatus(condition) => {
                let mut pod = self.pod(&condition.pod)?;
                let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
                conditions.retain(|stored| stored.type_ != PodCondition::TYPE);
                conditions.push(StoredCondition {
                    type_: PodCondition::TYPE.to_owned(),
                    status: "True".to_owned(),
                    reason: Some(PodCondition::REASON.to_owned()),
                    message: Some(PodCondition::MESSAGE.to_owned()),
                    last_transition_time: Some(condition.since.to_api()),
                    ..StoredCondition::default()
                });
                self.apply(Change::Pod(pod));
                Ok(Answer::Done)
            }
            Request::DeletePod(id) => {
                let pod = self.pod(&id)?;
                self.delete(Change::Pod(pod));
                Ok(Answer::Done)
            }
            Request::ApplyRuleStatus(write) => {
                let known =
                    self.rules.get(&*write.rule.name).filter(|r| r.metadata.uid.as_deref() == Some(&*write.rule.uid));
                let mut rule = known.cloned().ok_or_else(|| error(ApiErrorKind::Conflict))?;
                rule.status.get_or_insert_default().conditions = Some(write.conditions);
                self.apply(Change::Rule(rule));
                Ok(Answer::Done)
            }
        }
    }

    /// A pod of the server, if it has this UID.
    fn pod(&self, id: &PodId) -> Result<Pod, ApiError> {
        let pod = self.pods.get(&id.key).ok_or_else(|| error(ApiErrorKind::NotFound))?;
        if PodId::of(pod).as_ref() == Some(id) { Ok(pod.clone()) } else { Err(error(ApiErrorKind::Conflict)) }
    }

    /// The calls since the last call of this function.
    pub(super) fn calls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.calls)
    }

    /// The events since the last call of this function.
    pub(super) fn events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// Asserts the calls and events of one eviction of pod `p`, and no others.
    pub(super) fn assert_evicted(mut self) {
        assert_eq!(self.pending(), [("p".to_owned(), self.now)]);
        self.run();
        let calls: Vec<_> = self.calls().into_iter().filter(|call| !call.starts_with("status")).collect();
        assert_eq!(calls, ["get p", "patch p", "delete p"]);
        assert_eq!(self.events(), ["p: Marking for deletion"]);
        assert_eq!(self.evicted.len(), 1);
        assert_eq!(self.pending(), []);
    }

    /// Asserts that no pod is evicted, and no event recorded, within a day.
    pub(super) fn assert_no_eviction(mut self) {
        assert_eq!(self.pending(), []);
        self.run_until(self.now + Duration::from_secs(86_400));
        let calls: Vec<_> = self.calls().into_iter().filter(|call| !call.starts_with("status")).collect();
        assert_eq!((calls, self.events()), (vec![], vec![]));
    }

    /// The pending pods with their times.
    pub(super) fn pending(&self) -> Vec<(String, Time)> {
        self.core.pending().into_iter().map(|(pod, eviction)| (pod.key.name, eviction.at)).collect()
    }

    /// The eviction of claim `c`: its time and its reasons as text.
    pub(super) fn claim_eviction(&self) -> Option<(Time, Vec<String>)> {
        let eviction = self.core.claim_evictions().remove(&ObjectKey::new(NAMESPACE, "c"))?;
        Some((eviction.at, eviction.reasons.iter().map(reason).collect()))
    }

    /// The stored rule.
    pub(super) fn rule(&self) -> DeviceTaintRule {
        self.rules["r"].clone()
    }
}

fn error(kind: ApiErrorKind) -> ApiError {
    ApiError::new(kind, "refused by the test")
}

fn reason(reason: &Reason) -> String {
    match reason {
        Reason::Rule(rule) => format!("rule {rule}"),
        Reason::Slice(taint) => format!("slice {} {} {}", taint.slice, taint.device, taint.index),
    }
}

fn text(request: &Request) -> String {
    match request {
        Request::GetPod(key) => format!("get {}", key.name),
        Request::PatchPodStatus(condition) => format!("patch {}", condition.pod.key.name),
        Request::DeletePod(pod) => format!("delete {}", pod.key.name),
        Request::ApplyRuleStatus(write) => {
            let pieces = write.conditions.iter().map(|c| format!("{} {} {}", c.status, c.reason, c.message));
            format!("status {}: {}", write.rule, pieces.collect::<Vec<_>>().join(" | ").trim_end())
        }
    }
}
