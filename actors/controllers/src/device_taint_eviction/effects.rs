//! The effects of watch events, evaluations and steps: items for the queue, and events of pods.

use std::collections::BTreeMap;

use podwright_model::time::Time;
use podwright_work_queue::{Urgency, WorkQueue};

use super::api::{EvictionEvent, EvictionEventKind, PodId, RuleId};
use super::item::Item;

/// What the caller has to queue and to record, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Effects {
    /// The rules whose status is due now.
    pub rules_now: Vec<RuleId>,
    /// The rules whose status is due at a time.
    pub rules_at: BTreeMap<RuleId, Time>,
    /// The pods, with the times of their evictions.
    pub pods: Vec<(Time, PodId)>,
    /// The events.
    pub events: Vec<EvictionEvent>,
}

impl Effects {
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.rules_now.is_empty() && self.rules_at.is_empty() && self.pods.is_empty() && self.events.is_empty()
    }

    /// Adds the items to the queue. Returns the events, which are to be recorded.
    #[must_use]
    pub fn enqueue(self, queue: &mut WorkQueue<Item>, now: Time) -> Vec<EvictionEvent> {
        for rule in self.rules_now {
            let item = Item::Rule(rule);
            // Pods of the rule may wait for its status, so the rule goes before all pods. `add_at` also ends a backoff of the rule.
            queue.add(&item, Urgency::High);
            queue.add_at(&item, now);
        }
        for (rule, at) in self.rules_at {
            queue.add_at(&Item::Rule(rule), at);
        }
        for (at, pod) in self.pods {
            queue.add_at(&Item::Pod(pod), at.max(now));
        }
        self.events
    }

    pub(super) fn rule_now(&mut self, rule: RuleId) {
        if !self.rules_now.contains(&rule) {
            self.rules_now.push(rule);
        }
    }

    pub(super) fn rule_at(&mut self, rule: &RuleId, at: Time) {
        match self.rules_at.get_mut(rule) {
            Some(earlier) => *earlier = at.min(*earlier),
            None => drop(self.rules_at.insert(rule.clone(), at)),
        }
    }

    pub(super) fn pod(&mut self, at: Time, pod: &PodId) {
        self.pods.push((at, pod.clone()));
    }

    pub(super) fn event(&mut self, pod: &PodId, kind: EvictionEventKind) {
        self.events.push(EvictionEvent { pod: pod.clone(), kind });
    }
}
