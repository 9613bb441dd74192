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
    pub(super) rules_now: BTreeMap<RuleId, Urgency>,
    /// The rules whose status is due at a time.
    pub(super) rules_at: BTreeMap<RuleId, Time>,
    /// The pods. The first time is that of the eviction, and gives the order. The item is not due before the second time.
    pub(super) pods: Vec<(Time, PodId, Time)>,
    /// The events.
    pub(super) events: Vec<EvictionEvent>,
}

impl Effects {
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.rules_now.is_empty() && self.rules_at.is_empty() && self.pods.is_empty() && self.events.is_empty()
    }

    /// Adds the items to the queue. Returns the events, which are to be recorded.
    #[must_use]
    pub fn enqueue(self, queue: &mut WorkQueue<Item>, now: Time) -> Vec<EvictionEvent> {
        for (rule, urgency) in self.rules_now {
            let item = Item::Rule(rule);
            queue.add(&item, urgency);
            // This also ends a backoff of the rule.
            queue.add_at(&item, now);
        }
        for (rule, at) in self.rules_at {
            queue.add_at(&Item::Rule(rule), at);
        }
        for (at, pod, not_before) in self.pods {
            queue.add_at(&Item::Pod(pod), at.max(not_before).max(now));
        }
        self.events
    }

    /// The urgency is high only if pods wait for the status of the rule.
    pub(super) fn rule_now(&mut self, rule: RuleId, urgency: Urgency) {
        let known = self.rules_now.entry(rule).or_insert(urgency);
        *known = urgency.min(*known);
    }

    pub(super) fn rule_at(&mut self, rule: &RuleId, at: Time) {
        match self.rules_at.get_mut(rule) {
            Some(earlier) => *earlier = at.min(*earlier),
            None => drop(self.rules_at.insert(rule.clone(), at)),
        }
    }

    pub(super) fn pod(&mut self, at: Time, pod: &PodId, not_before: Time) {
        self.pods.push((at, pod.clone(), not_before));
    }

    pub(super) fn event(&mut self, pod: &PodId, kind: EvictionEventKind) {
        self.events.push(EvictionEvent { pod: pod.clone(), kind });
    }
}
