//! The generation in a status, in every short history of a pod and its resizes: a status with the newest generation has what the pod
//! desires, or a condition that says why not.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::*;
use crate::ports::PodRuntimeStatus;
use crate::probes::ProbeSnapshot;
use crate::quantity::Amount;
use crate::status::{NodeFacts, StatusInput, compute};

/// What the resizes of a history change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Request,
    Limit,
    LimitOfPod,
    RequestOfInit,
    LimitOfInit,
}

const PARTS: [Part; 5] = [Part::Request, Part::Limit, Part::LimitOfPod, Part::RequestOfInit, Part::LimitOfInit];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The pod desires this many CPUs.
    Change(&'static str),
    /// The source delivers the pod again.
    Repeat,
    /// The node decides on the desired resize.
    Decide(Decision),
    /// A sync that has the newest object completes the allocated resize.
    Complete,
    /// The worker publishes a status with the newest object.
    Publish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Allocate,
    Defer,
    Refuse,
}

const EVENTS: [Event; 8] = [
    Event::Change("1"),
    Event::Change("2"),
    Event::Repeat,
    Event::Decide(Decision::Allocate),
    Event::Decide(Decision::Defer),
    Event::Decide(Decision::Refuse),
    Event::Complete,
    Event::Publish,
];

const LONGEST: usize = 5;

/// A clock that stands still, so that the ends of histories do not differ by the time.
struct StillClock;

impl Clock for StillClock {
    fn now(&self) -> Time {
        Time::ZERO
    }
}

fn store(metrics: &Metrics) -> Resizes {
    Resizes::in_memory(Arc::new(StillClock), Arc::new(NoEvents), metrics.resize.clone())
}

struct History {
    part: Part,
    resizes: Resizes,
    /// The desired CPUs of each generation, the first one at index 0.
    desired: Vec<&'static str>,
    /// The objects that the worker may have, the oldest first.
    objects: Vec<Arc<PodObject>>,
    published: Option<PodStatus>,
}

fn version(part: Part, cpu: &str, generation: usize) -> Arc<PodObject> {
    let resources = |request: Part, limit: Part| {
        let of = |which: Part, other: &str| {
            let quantity = Quantity(if part == which { cpu.to_owned() } else { other.to_owned() });
            Some(BTreeMap::from([("cpu".to_owned(), quantity)]))
        };
        Some(ResourceRequirements { claims: None, limits: of(limit, "4"), requests: of(request, "1") })
    };
    let setup = Container {
        name: "setup".to_owned(),
        resources: resources(Part::RequestOfInit, Part::LimitOfInit),
        ..Container::default()
    };
    let edit = |spec: &mut PodSpec| {
        spec.init_containers = Some(vec![setup]);
        spec.containers[0].resources = resources(Part::Request, Part::Limit);
        if part == Part::LimitOfPod {
            spec.resources = resources(Part::Request, Part::LimitOfPod);
        }
    };
    let mut pod = pod("p").spec(edit).build().pod().clone();
    pod.metadata.generation = Some(i64::try_from(generation).unwrap());
    PodObject::new(pod).unwrap()
}

impl Part {
    /// The CPUs in each field of a status that has them.
    fn shown(self, status: &PodStatus) -> Vec<Option<Amount>> {
        type List = BTreeMap<String, Quantity>;
        let cpu = |list: Option<&List>| list.and_then(|list| Amount::of(list.get("cpu")?).ok());
        let limit = |of: &Option<ResourceRequirements>| cpu(of.as_ref().and_then(|of| of.limits.as_ref()));
        let request = |of: &Option<ResourceRequirements>| cpu(of.as_ref().and_then(|of| of.requests.as_ref()));
        let main = &status.container_statuses.as_ref().unwrap()[0];
        let setup = &status.init_container_statuses.as_ref().unwrap()[0];
        match self {
            Part::Request => vec![cpu(main.allocated_resources.as_ref()), request(&main.resources)],
            Part::Limit => vec![limit(&main.resources)],
            Part::LimitOfPod => vec![limit(&status.resources)],
            Part::RequestOfInit => vec![cpu(setup.allocated_resources.as_ref()), request(&setup.resources)],
            Part::LimitOfInit => vec![limit(&setup.resources)],
        }
    }
}

impl History {
    fn new(part: Part, metrics: &Metrics) -> Self {
        let (desired, objects) = (vec!["1"], vec![version(part, "1", 1)]);
        let mut history = History { part, resizes: store(metrics), desired, objects, published: None };
        history.publish();
        history
    }

    /// The same history, which continues on its own.
    fn fork(&self, metrics: &Metrics) -> Self {
        let resizes = store(metrics);
        resizes.state.lock().pods = self.resizes.state.lock().pods.clone();
        let (desired, objects, published) = (self.desired.clone(), self.objects.clone(), self.published.clone());
        History { part: self.part, resizes, desired, objects, published }
    }

    /// What the history has led to. Histories with the same end continue in the same way.
    fn end(&self) -> String {
        let mut resize = self.resizes.get(self.newest().uid());
        if let Some(resize) = &mut resize {
            // No file is written, so the number of its version has no effect.
            resize.unsaved = resize.unsaved.map(|_| 0);
        }
        let generation = self.desired.len();
        format!("{:?}", (generation, self.desired.last(), &self.objects, resize, &self.published))
    }

    fn newest(&self) -> Arc<PodObject> {
        self.objects.last().unwrap().clone()
    }

    /// Applies an event. Returns whether it may occur now.
    fn apply(&mut self, event: Event) -> bool {
        let known = self.newest();
        let queued = self.resizes.queued().pop();
        match (event, queued) {
            (Event::Change(cpu), _) if self.desired.last() == Some(&cpu) => return false,
            (Event::Change(_) | Event::Repeat, _) => {
                if let Event::Change(cpu) = event {
                    self.desired.push(cpu);
                }
                let pod = version(self.part, self.desired.last().unwrap(), self.desired.len());
                let pod = self.resizes.take(Some(&known), pod);
                self.push(pod);
            }
            (Event::Decide(_), None) => return false,
            (Event::Decide(decision), Some((desired, _))) => match decision {
                Decision::Allocate => {
                    self.resizes.allocate(&known, &desired);
                    self.push(desired);
                }
                Decision::Defer => {
                    self.resizes.refuse(&desired, "OutOfcpu", "no room");
                }
                Decision::Refuse => {
                    self.resizes.refuse(&desired, PendingResize::INFEASIBLE, "never");
                }
            },
            (Event::Complete, _) => {
                self.resizes.settle(&known, &PodRuntimeStatus::default(), false);
                self.objects = vec![known];
            }
            (Event::Publish, _) => self.publish(),
        }
        true
    }

    /// Adds the newest object.
    fn push(&mut self, pod: Arc<PodObject>) {
        self.objects.retain(|known| known.pod() != pod.pod());
        self.objects.push(pod);
    }

    fn publish(&mut self) {
        let newest = self.newest();
        self.published = Some(self.status(&newest));
        self.objects = vec![newest];
    }

    /// The status that the worker computes with an object while the containers run.
    fn status(&self, pod: &Arc<PodObject>) -> PodStatus {
        compute(&StatusInput {
            pod,
            runtime: &status(&[("setup", Is::Running), ("main", Is::Running)]),
            runs: true,
            previous: self.published.as_ref(),
            probes: &ProbeSnapshot::default(),
            start_errors: &BTreeMap::new(),
            is_terminal: false,
            termination_requested: false,
            now: Time::ZERO,
            node: &NodeFacts::default(),
            resize: self.resizes.get(pod.uid()).as_ref(),
            recursive_read_only: false,
        })
    }

    fn check(&self) -> Result<(), String> {
        for pod in &self.objects {
            let status = self.status(pod);
            let observed = status.observed_generation.and_then(|it| usize::try_from(it).ok()).unwrap_or(0);
            let before = self.published.as_ref().and_then(|status| status.observed_generation);
            if status.observed_generation < before {
                return Err(format!("the generation goes from {before:?} back to {observed}"));
            }
            let has_condition = status.conditions.iter().flatten().any(|it| it.type_.starts_with("PodResize"));
            if observed != self.desired.len() || has_condition {
                continue;
            }
            let desired = self.desired[observed - 1];
            for cpu in self.part.shown(&status) {
                if cpu.map(Amount::millis) != Some(desired.parse::<i64>().unwrap() * 1000) {
                    return Err(format!("generation {observed} desires {desired}, and has {cpu:?}"));
                }
            }
        }
        Ok(())
    }
}

/// Checks each end of the histories with up to `LONGEST` events. Only the first history with an end continues. Returns the number of ends.
fn check_all(part: Part, metrics: &Metrics) -> usize {
    let first = History::new(part, metrics);
    let mut ends = BTreeSet::from([first.end()]);
    let mut histories: Vec<(Vec<Event>, History)> = vec![(Vec::new(), first)];
    for _ in 0..LONGEST {
        let mut longer = Vec::new();
        for (events, history) in &histories {
            for event in EVENTS {
                let mut history = history.fork(metrics);
                if !history.apply(event) || !ends.insert(history.end()) {
                    continue;
                }
                let events: Vec<Event> = events.iter().copied().chain([event]).collect();
                if let Err(what) = history.check() {
                    panic!("{part:?} {events:?}: {what}");
                }
                longer.push((events, history));
            }
        }
        histories = longer;
    }
    ends.len()
}

#[test]
fn a_status_with_the_newest_generation_says_what_was_decided_on_it() {
    for part in PARTS {
        let count = check_all(part, &Metrics::new());
        assert!(count > 50, "{count} ends");
    }
}

// The status of the earlier agent had the newest generation, because that agent had deferred the resize.
#[test]
fn the_next_agent_keeps_the_condition_of_a_resize_until_it_has_decided() {
    let (_, resizes) = open(&[record("1", &json!({}))]);
    let mut pod = version(Part::Request, "2", 2).pod().clone();
    pod.status = Some(
        serde_json::from_value(json!({
            "phase": "Running", "observedGeneration": 2,
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred", "observedGeneration": 2}],
        }))
        .unwrap(),
    );
    let pod = resizes.take(None, PodObject::new(pod).unwrap());
    let mut history =
        History { part: Part::Request, resizes, desired: vec!["1", "2"], objects: vec![pod.clone()], published: None };
    assert_eq!(history.check(), Ok(()));
    let pending = |history: &History| {
        let status = history.status(&pod);
        let conditions = status.conditions.unwrap_or_default();
        conditions.into_iter().find(|it| it.type_ == "PodResizePending").and_then(|it| it.message)
    };
    assert_eq!((history.status(&pod).observed_generation, pending(&history)), (Some(2), None));
    assert!(history.apply(Event::Decide(Decision::Defer)));
    assert_eq!((history.check(), pending(&history).as_deref()), (Ok(()), Some("no room")));
}
