//! The largest number of evictions for a rule.
//!
//! A rule has a slot for each eviction that its limit permits. When the pass of a due pod begins, the pod takes a slot of each rule among
//! its reasons. If the pass ends without a deletion, the slots become free again, unless this controller may have deleted the pod. A rule
//! that has no slot for a pod does not count for this pod. If nothing else evicts the pod now, the pod is held: it stays pending, and its
//! item leaves the queue until it may get a slot. The pods that wait for slots get them in the order of their evictions.
//!
//! The number is stored before the effect: the condition of the limit has the number of slots up to which the rule gives slots, so a later
//! leader never counts too few. While pods are due, this number is ahead of the slots that were given by a tenth of the limit, rounded down
//! (at least one). When it is reached and a pod waits, the status is written at once. A rule whose pods are due together needs at most
//! 19 such writes until its limit, and about ten if the limit is large. When no pod is due any more, the status gets the exact number, so
//! pods that are due later need one more such write. The number is not kept ahead until then: each change of the leader would count the
//! pods that were only reserved. While a write has no answer, the lowest number counts of those that the server may have: the number from
//! before, the written one, and each number that the watch shows meanwhile.
//!
//! The write of an earlier leader may reach the server after the later leader has read the rule. Its number then counts from that moment
//! on, also for the pods that have a slot and are not being deleted yet. If its number is lower, the rule gives no slot above it until
//! the later leader has written its own number again.

mod number;
mod record;

use std::time::Duration;

use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use podwright_model::text::plain;
use podwright_model::time::Time;
use podwright_work_queue::Urgency;

use super::api::{PodId, RuleId};
use super::cache::{Core, STATUS_DELAY};
use super::eviction::Eviction;
use super::rule_pass::condition;
use super::rules::rule_id;

pub(super) use number::CountedEvictions;
pub(super) use record::RuleRecord;
use record::Slot;

/// The annotation of a rule that raises its limit: the number of pods that may be evicted for the rule in all.
pub const CONTINUE_ANNOTATION: &str = "podwright.dev/continue-evictions";
/// The type of the condition that says whether a rule has reached its limit. It exists before the first eviction begins.
pub const LIMIT_CONDITION: &str = "podwright.dev/EvictionLimitReached";
/// The delay until other pods may take the slot of a pod whose pass failed. Without it, passes that all fail would follow each other at
/// once.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The stored number is ahead of the evictions by one of this many equal parts of the limit (at least one eviction).
const PARTS_OF_LIMIT: u64 = 10;
/// The largest length of the annotation in texts.
const MAX_ANNOTATION: usize = 64;

impl Core {
    /// The largest number of evictions for a rule. `None` if there is no limit.
    pub(super) fn limit_of(&self, rule: &DeviceTaintRule) -> Option<u64> {
        let limit = self.settings.max_evictions_per_rule?.get();
        Some(limit.max(continue_to(rule).unwrap_or(0)))
    }

    /// The largest number of evictions for a known rule.
    fn known_limit(&self, rule: &RuleId) -> Option<u64> {
        self.rule(rule).and_then(|known| self.limit_of(known))
    }

    /// The record of a rule that is new to this controller.
    pub(super) fn new_record(&self, rule: &DeviceTaintRule) -> RuleRecord {
        RuleRecord::after(self.shown_evictions(rule))
    }

    /// The number of evictions that a later leader would read in the status. If the condition says that the limit is reached, and has no
    /// number, all slots of the limit count as used.
    fn shown_evictions(&self, rule: &DeviceTaintRule) -> u64 {
        let Some(limit) = condition(rule, LIMIT_CONDITION) else { return 0 };
        let counted = CountedEvictions::read(&limit.message).map(CountedEvictions::all);
        counted.or_else(|| self.limit_of(rule).filter(|_| limit.status == "True")).unwrap_or(0)
    }

    /// Reads the number of evictions that the watch shows. It differs from that of this controller if the write of an earlier leader has
    /// reached the server late. A number that is larger than each number that this controller has written is from an earlier leader. It has
    /// none of the evictions of this controller, and counts in addition to them. A number below the stored one must be corrected before the
    /// rule gives slots above it. An older write of this controller that the watch shows late costs one more write then.
    pub(super) fn read_evictions(&mut self, rule: &DeviceTaintRule, now: Time) {
        let id = rule_id(rule);
        let (shown, has_limit) = (self.shown_evictions(rule), self.limit_of(rule).is_some());
        let counted = condition(rule, LIMIT_CONDITION).and_then(|limit| CountedEvictions::read(&limit.message));
        let Some(record) = self.records.get_mut(&id) else { return };
        record.in_flight = record.in_flight.map(|number| number.min(shown));
        if let Some(counted) = counted.map(CountedEvictions::all)
            && counted > record.earlier.max(record.written)
        {
            (record.earlier, record.stored) = (counted, counted);
            self.effects.rule_now(id.clone(), Urgency::Normal);
        } else if has_limit && shown < record.stored {
            record.stored = shown;
        } else {
            return;
        }
        self.slots_changed(&id, now);
    }

    /// The evictions that count for the limit of a rule, and those that its status should reserve: a part of the limit while pods are due,
    /// and none at rest.
    pub(super) fn counted_evictions(&self, rule: &RuleId, now: Time) -> CountedEvictions {
        let Some(record) = self.records.get(rule) else { return CountedEvictions::default() };
        let counted = record.used();
        let is_due = |eviction: &Eviction| eviction.at <= now && eviction.reasons.names(rule);
        let limit = self
            .known_limit(rule)
            .filter(|_| !record.waiting.is_empty() || self.pending.iter().any(|(_, eviction)| is_due(eviction)));
        let ahead = limit.map_or(0, |limit| (limit / PARTS_OF_LIMIT).max(1).min(limit.saturating_sub(counted)));
        CountedEvictions { counted, ahead }
    }

    /// Whether a rule must store its number at once: the server may have a smaller number than that of the evictions, or all slots up to
    /// the stored number are given and a pod waits for one.
    pub(super) fn must_store_count(&self, rule: &RuleId) -> bool {
        let (Some(limit), Some(record)) = (self.known_limit(rule), self.records.get(rule)) else { return false };
        let (used, stored) = (record.used(), record.stored);
        used > stored || (used == stored && used < limit && !record.waiting.is_empty())
    }

    /// The number of pods that are due and wait for a slot of a rule.
    pub(super) fn waiting_pods(&self, rule: &RuleId) -> u64 {
        self.records.get(rule).map_or(0, |record| record.waiting.len() as u64)
    }

    /// The server has stored the number of evictions of a rule. If the watch has shown a lower number meanwhile, the write of an earlier
    /// leader may have reached the server after this one, so the lower number counts.
    pub(super) fn count_stored(&mut self, rule: &RuleId, counted: CountedEvictions, now: Time) {
        if let Some(record) = self.records.get_mut(rule) {
            record.stored = record.in_flight.take().unwrap_or_else(|| counted.all());
        }
        self.slots_changed(rule, now);
    }

    /// The stored number of a rule or its limit has changed. If the present number must be stored, the status is written at once. Otherwise,
    /// pods that wait may get slots.
    pub(super) fn slots_changed(&mut self, rule: &RuleId, now: Time) {
        if self.must_store_count(rule) {
            self.effects.rule_now(rule.clone(), Urgency::High);
        }
        self.release(rule, now);
    }

    /// Whether a rule has reached its limit: no further pod gets a slot.
    pub(super) fn is_at_limit(&self, rule: &RuleId) -> bool {
        let (Some(limit), Some(record)) = (self.known_limit(rule), self.records.get(rule)) else { return false };
        record.used() >= limit
    }

    /// Whether a rule has reached its limit, and its status does not say so yet.
    pub(super) fn must_report_limit(&self, rule: &RuleId) -> bool {
        self.is_at_limit(rule) && self.records.get(rule).is_some_and(|record| !record.says_limit_is_reached())
    }

    /// Whether a rule has reached its limit, and one of its pending pods has no slot.
    pub(super) fn is_stopped(&self, rule: &RuleId) -> bool {
        self.is_at_limit(rule)
            && self
                .pending
                .iter()
                .any(|(pod, eviction)| eviction.reasons.names(rule) && !self.may_evict(rule, pod, eviction))
    }

    /// Whether a pod has a slot of a rule that counts, or would get one.
    pub(super) fn may_evict(&self, rule: &RuleId, pod: &PodId, eviction: &Eviction) -> bool {
        let (Some(limit), Some(record)) = (self.known_limit(rule), self.records.get(rule)) else { return true };
        match record.slots.get(&pod.uid) {
            None => record.has_slot_for(pod, eviction.at, limit),
            // The number of an earlier leader that this controller has read since then may leave no slot. So may a lower annotation.
            Some(Slot::Taken) => record.used() <= limit,
            Some(Slot::Asked | Slot::Used) => true,
        }
    }

    /// The rules among the reasons of a pending eviction that have no slot for the pod.
    pub(super) fn rules_without_slot(&self, pod: &PodId, eviction: &Eviction) -> Vec<RuleId> {
        if self.settings.max_evictions_per_rule.is_none() {
            return Vec::new();
        }
        eviction.reasons.rules().filter(|rule| !self.may_evict(rule, pod, eviction)).cloned().collect()
    }

    /// Why a rule has no slot for a pod.
    pub(super) fn obstacle(&self, rule: &RuleId) -> String {
        if self.is_at_limit(rule) {
            return format!("DeviceTaintRule {rule} has reached the limit of its evictions");
        }
        let free = self.known_limit(rule).zip(self.records.get(rule)).map_or(0, |(limit, record)| record.free(limit));
        if free == 0 {
            format!("DeviceTaintRule {rule} must store the number of its evictions in its status first")
        } else {
            format!("DeviceTaintRule {rule} first evicts the pods that were due earlier")
        }
    }

    /// The eviction of a pod as if these rules did not exist.
    pub(super) fn eviction_without(&self, pod: &PodId, rules: &[RuleId]) -> Option<Eviction> {
        let known = self.pods.get(&pod.key).filter(|known| PodId::of(known).as_ref() == Some(pod))?;
        let others = || self.evicting.values().filter(|rule| !rules.contains(&rule.id));
        self.pod_eviction(known, |_, claim| self.claim_eviction_by(claim, others()))
    }

    /// The pod waits for slots of these rules among its reasons. The others have slots for it, and evict it later, so it waits for none of
    /// theirs: the pods behind it must not wait until then.
    pub(super) fn hold(&mut self, pod: &PodId, eviction: &Eviction, rules: &[RuleId], now: Time) {
        for rule in eviction.reasons.rules() {
            let had_to_store = self.must_store_count(rule);
            let Some(record) = self.records.get_mut(rule) else { continue };
            let place = (eviction.at, pod.clone());
            if rules.contains(rule) {
                record.waiting.insert(place);
                self.store_if_new(rule, had_to_store);
            } else if record.waiting.remove(&place) {
                self.release(rule, now);
            }
        }
    }

    /// Other rules evict the pod, so it does not wait for slots of these rules: the pods behind it must not wait until its pass succeeds. If
    /// the other rules stop, a later step of the pass holds the pod again.
    pub(super) fn end_wait(&mut self, pod: &PodId, at: Time, rules: &[RuleId], now: Time) {
        let place = (at, pod.clone());
        for rule in rules {
            if self.records.get_mut(rule).is_some_and(|record| record.waiting.remove(&place)) {
                self.release(rule, now);
            }
        }
    }

    /// Writes the status at once if its number must be stored since now. A write that fails has a backoff, which further pods do not end.
    fn store_if_new(&mut self, rule: &RuleId, had_to_store: bool) {
        if !had_to_store && self.must_store_count(rule) {
            self.effects.rule_now(rule.clone(), Urgency::High);
        }
    }

    /// Takes a slot of each rule. The caller has checked that each rule has one for the pod.
    pub(super) fn take_slots(&mut self, pod: &PodId, eviction: &Eviction) {
        self.set_slots(pod, eviction, |known| Some(known.unwrap_or(Slot::Taken)));
    }

    /// A call that deletes the pod begins. An earlier call that has no answer may have deleted it.
    pub(super) fn use_slots(&mut self, pod: &PodId, eviction: &Eviction) {
        self.set_slots(pod, eviction, |known| match known {
            None | Some(Slot::Taken) => Some(Slot::Asked),
            Some(Slot::Asked | Slot::Used) => Some(Slot::Used),
        });
    }

    /// The call that deletes the pod has ended. `is_certain` if the server has certainly not deleted the pod with this call.
    pub(super) fn end_use_of_slots(&mut self, pod: &PodId, eviction: &Eviction, is_certain: bool) {
        self.set_slots(pod, eviction, |known| match known {
            Some(Slot::Asked) if is_certain => Some(Slot::Taken),
            _ if is_certain => known,
            None | Some(Slot::Taken | Slot::Asked | Slot::Used) => Some(Slot::Used),
        });
    }

    fn set_slots(&mut self, pod: &PodId, eviction: &Eviction, slot: impl Fn(Option<Slot>) -> Option<Slot>) {
        if self.settings.max_evictions_per_rule.is_none() {
            return;
        }
        let at = self.pending.get(pod).map(|pending| pending.at);
        for rule in eviction.reasons.rules() {
            let had_to_store = self.must_store_count(rule);
            let Some(record) = self.records.get_mut(rule) else { continue };
            let Some(slot) = slot(record.slots.get(&pod.uid).copied()) else { continue };
            if record.slots.insert(pod.uid.clone(), slot).is_some() {
                continue;
            }
            if let Some(at) = at {
                record.waiting.remove(&(at, pod.clone()));
            }
            self.store_if_new(rule, had_to_store);
            if self.must_report_limit(rule) {
                self.effects.rule_now(rule.clone(), Urgency::Normal);
            }
        }
    }

    /// The eviction of the pod is no longer pending, or has changed. `former` is the eviction from before.
    pub(super) fn leave_rules(&mut self, pod: &PodId, former: &Eviction, now: Time) {
        let place = (former.at, pod.clone());
        let mut left = Vec::new();
        for (rule, record) in &mut self.records {
            if record.waiting.remove(&place) {
                left.push(rule.clone());
            }
        }
        // The pods that wait behind this one may get its slot.
        left.iter().for_each(|rule| self.release(rule, now));
        self.free_slots(pod, now, now);
    }

    /// The pass of a pod has failed. If the pod was certainly not deleted, other pods may take its slots.
    pub(super) fn free_slots_later(&mut self, pod: &PodId, now: Time) {
        self.free_slots(pod, now + AFTER_FAILURE, now);
    }

    /// Frees the slots of a pod, unless the pod may have been deleted. Other pods may take them from `at` on.
    pub(super) fn free_slots(&mut self, pod: &PodId, at: Time, now: Time) {
        let is_taken = |record: &RuleRecord| record.slots.get(&pod.uid) == Some(&Slot::Taken);
        let taken: Vec<_> =
            self.records.iter().filter(|(_, record)| is_taken(record)).map(|(rule, _)| rule.clone()).collect();
        for rule in taken {
            if let Some(record) = self.records.get_mut(&rule) {
                record.slots.remove(&pod.uid);
            }
            self.effects.rule_at(&rule, now + STATUS_DELAY);
            self.release(&rule, at);
        }
    }

    /// Pods that wait for a slot of a rule may have one, but not before a time. They are queued once, when the effects are taken: if many
    /// pods leave a rule together, each of them releases it.
    pub(super) fn release(&mut self, rule: &RuleId, not_before: Time) {
        if self.records.get(rule).is_none_or(|record| record.waiting.is_empty()) {
            return;
        }
        match self.released.get_mut(rule) {
            Some(earlier) => *earlier = not_before.min(*earlier),
            None => drop(self.released.insert(rule.clone(), not_before)),
        }
    }

    /// Queues the first of the pods that wait for a slot of a rule, as many as there are free slots, but not before a time. They wait until
    /// they have a slot. Without a limit or after the end of the rule, no pod has to wait.
    pub(super) fn queue_waiting(&mut self, rule: &RuleId, not_before: Time) {
        let limit = self.known_limit(rule);
        let Some(record) = self.records.get(rule) else { return };
        let free = limit.map_or(usize::MAX, |limit| record.free(limit));
        for (at, pod) in record.waiting.iter().take(free) {
            self.effects.pod(*at, pod, not_before);
        }
    }
}

/// The number in the annotation, if it is valid.
pub(super) fn continue_to(rule: &DeviceTaintRule) -> Option<u64> {
    annotation(rule)?.trim().parse().ok()
}

/// The text of the annotation.
pub(super) fn annotation(rule: &DeviceTaintRule) -> Option<&str> {
    rule.metadata.annotations.as_ref()?.get(CONTINUE_ANNOTATION).map(String::as_str)
}

/// Why the annotation does not count, if it is set.
pub(super) fn annotation_problem(rule: &DeviceTaintRule) -> Option<String> {
    let text = annotation(rule).filter(|_| continue_to(rule).is_none())?;
    Some(format!(
        "the annotation {CONTINUE_ANNOTATION} is ignored, because \"{}\" is no number",
        plain(text, MAX_ANNOTATION)
    ))
}
