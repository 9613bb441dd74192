//! The generation in a status, in every short history of a pod and its resizes: a status with the newest generation has what the pod
//! requests, or a condition that says why not.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodStatus;

use super::*;
use crate::ports::PodRuntimeStatus;
use crate::probes::ProbeSnapshot;
use crate::quantity::Amount;
use crate::status::{NodeFacts, StatusInput, compute};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The pod requests this many CPUs.
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

struct History {
    resizes: Resizes,
    /// The request of each generation, the first one at index 0.
    requests: Vec<&'static str>,
    /// The objects that the worker may have, the oldest first.
    objects: Vec<Arc<PodObject>>,
    published: Option<PodStatus>,
}

fn version(cpu: &str, generation: usize) -> Arc<PodObject> {
    let mut pod = of_cpu(cpu).pod().clone();
    pod.metadata.generation = Some(i64::try_from(generation).unwrap());
    PodObject::new(pod).unwrap()
}

impl History {
    fn new(metrics: &Metrics) -> Self {
        let resizes = Resizes::in_memory(Arc::new(SystemClock::new()), Arc::new(NoEvents), metrics.resize.clone());
        let (requests, objects) = (vec!["1"], vec![version("1", 1)]);
        let mut history = History { resizes, requests, objects, published: None };
        history.publish();
        history
    }

    fn newest(&self) -> Arc<PodObject> {
        self.objects.last().unwrap().clone()
    }

    /// Applies an event. Returns whether it may occur now.
    fn apply(&mut self, event: Event) -> bool {
        let known = self.newest();
        let queued = self.resizes.queued().pop();
        match (event, queued) {
            (Event::Change(cpu), _) if self.requests.last() == Some(&cpu) => return false,
            (Event::Change(_) | Event::Repeat, _) => {
                if let Event::Change(cpu) = event {
                    self.requests.push(cpu);
                }
                let pod = version(self.requests.last().unwrap(), self.requests.len());
                self.objects.push(self.resizes.take(Some(&known), pod));
            }
            (Event::Decide(_), None) => return false,
            (Event::Decide(decision), Some((desired, _))) => match decision {
                Decision::Allocate => {
                    self.resizes.allocate(&known, &desired);
                    self.objects.push(desired);
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

    fn publish(&mut self) {
        let newest = self.newest();
        self.published = Some(self.status(&newest));
        self.objects = vec![newest];
    }

    /// The status that the worker computes with an object.
    fn status(&self, pod: &Arc<PodObject>) -> PodStatus {
        compute(&StatusInput {
            pod,
            runtime: &PodRuntimeStatus::default(),
            runs: false,
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
            if observed != self.requests.len() || has_condition {
                continue;
            }
            let cpu = status.allocated_resources.as_ref().and_then(|list| Amount::of(list.get("cpu")?).ok());
            let requested = self.requests[observed - 1];
            if cpu.map(Amount::millis) != Some(requested.parse::<i64>().unwrap() * 1000) {
                return Err(format!("generation {observed} requests {requested}, and has {cpu:?}"));
            }
        }
        Ok(())
    }
}

/// Checks each history that begins with these events. Returns the number of histories.
fn check_from(metrics: &Metrics, events: &mut Vec<Event>) -> usize {
    let mut count = 1;
    for event in EVENTS {
        events.push(event);
        let mut history = History::new(metrics);
        if events.iter().all(|event| history.apply(*event)) {
            if let Err(what) = history.check() {
                panic!("{events:?}: {what}");
            }
            if events.len() < LONGEST {
                count += check_from(metrics, events);
            }
        }
        events.pop();
    }
    count
}

#[test]
fn a_status_with_the_newest_generation_says_what_was_decided_on_it() {
    let count = check_from(&Metrics::new(), &mut Vec::new());
    assert!(count > 500, "{count} histories");
}

// The status of the earlier agent had the newest generation, because that agent had deferred the resize.
#[test]
fn the_next_agent_keeps_the_condition_of_a_resize_until_it_has_decided() {
    let (_, resizes) = open(&[record("1", &json!({}))]);
    let mut pod = version("2", 2).pod().clone();
    pod.status = Some(
        serde_json::from_value(json!({
            "phase": "Running", "observedGeneration": 2,
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred", "observedGeneration": 2}],
        }))
        .unwrap(),
    );
    let pod = resizes.take(None, PodObject::new(pod).unwrap());
    let mut history = History { resizes, requests: vec!["1", "2"], objects: vec![pod.clone()], published: None };
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
