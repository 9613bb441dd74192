//! What must always hold, and what makes two states different.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;

use super::super::*;
use super::world::{Event, KINDS, World};

/// What a broken law says.
pub(super) type Law = Result<(), String>;

pub(super) fn holds(holds: bool, broken: impl FnOnce() -> String) -> Law {
    if holds { Ok(()) } else { Err(broken()) }
}

/// A deletion deletes the pod for which it was meant.
pub(super) fn is_same_pod(pod: &Pod, id: &PodId) -> Law {
    holds(PodId::of(pod).as_ref() == Some(id), || format!("another pod than {:?} is deleted", id.uid))
}

impl World {
    /// A pod is written only if its eviction is due by what the controller knows. A new controller with the same objects decides that.
    pub(super) fn check_request(&self, request: &Request) -> Law {
        let pod = match request {
            Request::PatchPodStatus(condition) => &condition.pod,
            Request::DeletePod(pod) => pod,
            Request::GetPod(_) | Request::ApplyRuleStatus(_) => return Ok(()),
        };
        let mut fresh = Core::new(self.settings);
        let now = self.now;
        self.core.pods.list().into_iter().for_each(|event| fresh.pod_event(event, now));
        self.core.claims.list().into_iter().for_each(|event| fresh.claim_event(event));
        self.core.slices.list().into_iter().for_each(|event| fresh.slice_event(event, now));
        self.core.rules.list().into_iter().for_each(|event| fresh.rule_event(event, now));
        while fresh.evaluate_next(now) {}
        let eviction = fresh.pending().remove(pod);
        holds(eviction.as_ref().is_some_and(|eviction| eviction.at <= now), || {
            format!("{:?} is not due, and gets {request:?}", pod.uid)
        })
    }

    /// A pod is announced once between two cancellations, and cancelled only if it was pending.
    pub(super) fn check_events(&self) -> Law {
        let mut announced = BTreeSet::new();
        for EvictionEvent { pod, kind } in &self.events {
            match kind {
                EvictionEventKind::Deletion => {
                    holds(announced.insert(pod), || format!("{:?} is announced twice", pod.uid))?;
                }
                EvictionEventKind::Cancellation => drop(announced.remove(pod)),
            }
        }
        Ok(())
    }

    /// A deletion is reported once, and only if the server has performed it.
    pub(super) fn check_report(&self, pod: &PodId) -> Law {
        holds(self.deleted.contains(pod), || format!("{:?} was not deleted", pod.uid))?;
        holds(!self.reported.contains(pod), || format!("{:?} is reported twice", pod.uid))
    }

    /// The limit of the rule. The controller may know an earlier annotation, which has a smaller number.
    pub(super) fn limit(&self) -> Option<u64> {
        let limit = self.settings.max_evictions_per_rule?.get();
        let raised = self.server.rules.values().filter_map(super::super::super::limit::continue_to).max();
        Some(limit.max(raised.unwrap_or(0)))
    }

    /// At rest, the controller knows all objects, no pod is left that must go, and the status of each rule is right.
    pub(super) fn check_rest(&self) -> Law {
        let mut fresh = Core::new(self.settings);
        (0..KINDS).for_each(|kind| self.server.list(&mut fresh, kind, self.now));
        while fresh.evaluate_next(self.now) {}
        holds(fresh.pending() == self.core.pending(), || {
            format!("pending are {:?}, and must be {:?}", self.core.pending(), fresh.pending())
        })?;
        let overdue = self.core.pending().into_iter().find(|(_, eviction)| eviction.at <= self.now);
        let is_held = |eviction: &Eviction| eviction.reasons.rules().any(|rule| self.core.is_at_limit(rule));
        holds(overdue.as_ref().is_none_or(|(_, eviction)| is_held(eviction)), || format!("{overdue:?} is left"))?;
        for rule in self.server.rules.values() {
            let id = super::super::super::rules::rule_id(rule);
            let shown = |c: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
                (c.type_.clone(), c.status.clone(), c.reason.clone(), c.message.clone(), c.observed_generation)
            };
            let expected: Vec<_> = self.core.conditions(rule, self.now).iter().map(shown).collect();
            let stored = rule.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let stored: Vec<_> = stored.map(shown).collect();
            holds(stored == expected, || format!("the status of {id} is {stored:?}, and must be {expected:?}"))?;
        }
        Ok(())
    }

    /// All that the behaviour depends on. The indexes and evictions of the core follow from its objects.
    fn key(&self) -> String {
        let core = &self.core;
        let sorted = |mut texts: Vec<String>| {
            texts.sort();
            texts
        };
        let known = (
            sorted(core.pods.iter().map(|pod| pod_text(pod)).collect()),
            sorted(core.claims.iter().map(|claim| format!("{:?}", claim.status)).collect()),
            sorted(core.slices.iter().map(|slice| format!("{:?}", slice.spec.devices)).collect()),
            sorted(core.rules.iter().map(|rule| rule_text(rule)).collect()),
        );
        let memory = (
            sorted(core.pending.pods.iter().map(|entry| format!("{entry:?}")).collect()),
            sorted(core.pending.evicted.iter().map(|entry| format!("{entry:?}")).collect()),
            sorted(core.marked.pods.iter().map(|entry| format!("{entry:?}")).collect()),
            (&core.records, &core.released, &core.effects),
        );
        let server = &self.server;
        let stored = (
            server.pods.values().map(pod_text).collect::<Vec<_>>(),
            server.claims.values().map(|claim| format!("{:?}", claim.status)).collect::<Vec<_>>(),
            server.slices.values().map(|slice| format!("{:?}", slice.spec.devices)).collect::<Vec<_>>(),
            server.rules.values().map(rule_text).collect::<Vec<_>>(),
        );
        let hidden: Vec<_> =
            self.hidden.iter().map(|events| events.iter().map(event_text).collect::<Vec<_>>()).collect();
        let running: Vec<_> = self.running.iter().map(|running| (&running.item, &running.pass)).collect();
        let outside =
            (&self.queue, running, &self.late, &self.events, &self.deleted, &self.reported, &self.counts, self.now);
        format!("{known:?} {memory:?} {stored:?} {hidden:?} {outside:?} {:?}", self.broken)
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.key().hash(hasher);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

fn pod_text(pod: &Pod) -> String {
    let has_condition = pod.status.as_ref().is_some_and(|status| status.conditions.is_some());
    format!("{:?} {:?} {has_condition}", pod.metadata.name, pod.metadata.uid)
}

fn rule_text(rule: &DeviceTaintRule) -> String {
    let (meta, taint) = (&rule.metadata, &rule.spec.taint);
    format!("{:?} {:?} {:?} {taint:?} {:?}", meta.name, meta.generation, meta.annotations, rule.status)
}

fn event_text(event: &Event) -> String {
    let object = match &event.object {
        Change::Pod(pod) => pod_text(pod),
        Change::Claim(claim) => format!("{:?}", claim.status),
        Change::Slice(slice) => format!("{:?}", slice.spec.devices),
        Change::Rule(rule) => rule_text(rule),
    };
    format!("{} {object}", event.is_deletion)
}
