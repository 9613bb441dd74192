//! The largest number of evictions for a rule.
//!
//! A rule has a slot for each eviction that its limit permits. Before a pod is deleted, it takes a slot of each rule among its reasons.
//! If the pass ends without a deletion, the slots become free again, unless this controller may have deleted the pod. A rule that has no
//! slot for a pod does not count for this pod. If nothing else evicts the pod now, the pod is held: it stays pending, and its item leaves
//! the queue until the limit changes, a slot becomes free or the number of slots is stored.
//!
//! The condition of the limit has the number of slots that are not free, so that a later leader continues with this number. When the
//! term of a leader ends, the next one does not know the slots that are not in the condition yet. When these are a tenth of the limit,
//! rounded down (at least one), the status is written at once, and the rule gives no further slot until it is stored. A rule needs at most
//! 19 such writes until its limit, and about ten if the limit is large.
//!
//! The write of an earlier leader may reach the server after the later leader has read the rule. Its number then counts from that moment
//! on, also for the pods that have a slot and are not being deleted yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use podwright_model::ids::PodUid;
use podwright_model::text::plain;
use podwright_model::time::Time;

use super::api::{PodId, RuleId};
use super::cache::{Core, STATUS_DELAY};
use super::eviction::Eviction;
use super::rule_pass::condition;
use super::rules::rule_id;
use super::status::plural;

/// The annotation of a rule that raises its limit: the number of pods that may be evicted for the rule in all.
pub const CONTINUE_ANNOTATION: &str = "podwright.dev/continue-evictions";
/// The type of the condition that says whether a rule has reached its limit. It exists from the first eviction on.
pub const LIMIT_CONDITION: &str = "podwright.dev/EvictionLimitReached";
/// The delay until other pods may take the slot of a pod whose pass failed. Without it, passes that all fail would follow each other at
/// once.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The evictions that are one of this many equal parts of the limit (at least one eviction) must be stored before further ones.
const PARTS_OF_LIMIT: u64 = 10;
/// The largest length of the annotation in texts.
const MAX_ANNOTATION: usize = 64;

/// The state of a slot that a pod has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// The pod was certainly not deleted.
    Taken,
    /// A call that deletes the pod has no answer yet.
    Asked,
    /// The pod was deleted, or may have been deleted.
    Used,
}

/// The part of a message of the condition that a later leader reads: the number of evictions that count for the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CountedEvictions(pub(super) u64);

impl CountedEvictions {
    const END: &str = " counted";

    /// Finds the part in a message.
    pub(super) fn read(message: &str) -> Option<Self> {
        let counted = |piece: &str| piece.strip_suffix(Self::END)?.split(' ').next()?.parse().ok();
        message.split("; ").find_map(counted).map(CountedEvictions)
    }
}

impl fmt::Display for CountedEvictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", plural(self.0, "eviction", "evictions"), Self::END)
    }
}

/// What the controller records of a rule in addition to its object.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleRecord {
    /// The pods that were evicted for the rule since the start of the controller.
    pub(super) evicted: u64,
    /// The number of evictions before the start of the controller, as far as it is known.
    earlier: u64,
    /// The largest number of evictions that this controller has written to the condition of the limit. The watch may show an older write
    /// of this controller, whose number is larger than that of the last write if a slot became free meanwhile.
    written: u64,
    /// The last number of evictions that the server is known to have in the condition.
    stored: u64,
    slots: BTreeMap<PodUid, Slot>,
    held: BTreeSet<PodId>,
    /// The conditions that the last pass of the rule has written, or has found in the status.
    pub(super) conditions: Vec<Condition>,
    /// A time in the status of the rule that is ahead of this clock, and when this controller first read it.
    ahead: Option<(Time, Time)>,
}

impl RuleRecord {
    fn used(&self) -> u64 {
        self.earlier.saturating_add(self.slots.len() as u64)
    }

    /// The number of evictions that a later leader would not know.
    fn unstored(&self) -> u64 {
        self.used().saturating_sub(self.stored)
    }

    /// Whether the server is known to have this number in the condition.
    pub(super) fn has_stored(&self, counted: CountedEvictions) -> bool {
        self.stored == counted.0
    }

    /// Records the conditions that a pass writes, or has found in the status.
    pub(super) fn set_conditions(&mut self, conditions: &[Condition]) {
        conditions.clone_into(&mut self.conditions);
        if conditions.iter().any(|condition| condition.type_ == LIMIT_CONDITION) {
            self.written = self.written.max(self.used());
        }
    }

    /// When this controller first read a time that is ahead of its clock.
    pub(super) fn first_read(&mut self, stamp: Time, now: Time) -> Time {
        match self.ahead {
            // This clock may have been set back since then.
            Some((known, first_read)) if known == stamp && first_read <= now => first_read,
            Some(_) | None => {
                self.ahead = Some((stamp, now));
                now
            }
        }
    }
}

impl Core {
    /// The largest number of evictions for a rule. `None` if there is no limit.
    pub(super) fn limit_of(&self, rule: &DeviceTaintRule) -> Option<u64> {
        let limit = self.settings.max_evictions_per_rule?.get();
        Some(limit.max(continue_to(rule).unwrap_or(0)))
    }

    /// The record of a rule that is new to this controller.
    pub(super) fn new_record(&self, rule: &DeviceTaintRule) -> RuleRecord {
        let earlier = self.shown_evictions(rule);
        RuleRecord { earlier, stored: earlier, ..RuleRecord::default() }
    }

    /// The number of evictions that a later leader would read in the status. If the condition says that the limit is reached, and has no
    /// number, all slots of the limit count as used.
    fn shown_evictions(&self, rule: &DeviceTaintRule) -> u64 {
        let Some(limit) = condition(rule, LIMIT_CONDITION) else { return 0 };
        let counted = CountedEvictions::read(&limit.message).map(|counted| counted.0);
        counted.or_else(|| self.limit_of(rule).filter(|_| limit.status == "True")).unwrap_or(0)
    }

    /// Reads the number of evictions that the watch shows. It differs from that of this controller if the write of an earlier leader has
    /// reached the server late. A number that is larger than each number that this controller has written is from an earlier leader. It has
    /// none of the evictions of this controller, and counts in addition to them. A number below the stored one must be corrected before the
    /// rule gives further slots. An older write of this controller that the watch shows late costs one more write then.
    pub(super) fn read_evictions(&mut self, rule: &DeviceTaintRule, now: Time) {
        let id = rule_id(rule);
        let (shown, has_limit) = (self.shown_evictions(rule), self.limit_of(rule).is_some());
        let counted = condition(rule, LIMIT_CONDITION).and_then(|limit| CountedEvictions::read(&limit.message));
        let had_to_store = self.must_store_count(&id);
        let Some(record) = self.records.get_mut(&id) else { return };
        if let Some(CountedEvictions(counted)) = counted
            && counted > record.earlier.max(record.written)
        {
            (record.earlier, record.stored) = (counted, counted);
            self.effects.rule_now(id.clone());
        } else if has_limit && shown < record.stored {
            record.stored = shown;
        } else {
            return;
        }
        self.stored_changed(&id, had_to_store, now);
    }

    /// The number of evictions that count for the limit of a rule.
    pub(super) fn counted_evictions(&self, rule: &RuleId) -> CountedEvictions {
        CountedEvictions(self.records.get(rule).map_or(0, RuleRecord::used))
    }

    /// Whether a rule must store the number of its evictions before a further pod gets a slot.
    pub(super) fn must_store_count(&self, rule: &RuleId) -> bool {
        let (Some(known), Some(record)) = (self.rule(rule), self.records.get(rule)) else { return false };
        self.limit_of(known).is_some_and(|limit| record.unstored() >= (limit / PARTS_OF_LIMIT).max(1))
    }

    /// The server has stored the number of evictions of a rule.
    pub(super) fn count_stored(&mut self, rule: &RuleId, counted: CountedEvictions, now: Time) {
        let had_to_store = self.must_store_count(rule);
        if let Some(record) = self.records.get_mut(rule) {
            record.stored = counted.0;
        }
        self.stored_changed(rule, had_to_store, now);
    }

    /// The stored number of evictions has changed. If the present one must be stored, the status is written at once. Otherwise, the pods
    /// that waited for that may get slots. The stored number may fall: that of a write is as old as its beginning.
    fn stored_changed(&mut self, rule: &RuleId, had_to_store: bool, now: Time) {
        if self.must_store_count(rule) {
            self.effects.rule_now(rule.clone());
        } else if had_to_store {
            self.release_held(rule, now);
        }
    }

    /// Whether a rule has reached its limit: no further pod gets a slot.
    pub(super) fn is_at_limit(&self, rule: &RuleId) -> bool {
        let (Some(known), Some(record)) = (self.rule(rule), self.records.get(rule)) else { return false };
        self.limit_of(known).is_some_and(|limit| record.used() >= limit)
    }

    /// Whether a rule has reached its limit, and one of its pending pods has no slot.
    pub(super) fn is_stopped(&self, rule: &RuleId) -> bool {
        self.is_at_limit(rule)
            && self.pending.iter().any(|(pod, eviction)| eviction.reasons.names(rule) && !self.may_evict(rule, pod))
    }

    /// Whether a pod has a slot of a rule that counts, or would get one.
    pub(super) fn may_evict(&self, rule: &RuleId, pod: &PodId) -> bool {
        let Some(record) = self.records.get(rule) else { return true };
        match record.slots.get(&pod.uid) {
            None => !self.is_at_limit(rule) && !self.must_store_count(rule),
            // The number of an earlier leader that this controller has read since then may leave no slot. So may a lower annotation.
            Some(Slot::Taken) => {
                let limit = self.rule(rule).and_then(|known| self.limit_of(known));
                limit.is_none_or(|limit| record.used() <= limit)
            }
            Some(Slot::Asked | Slot::Used) => true,
        }
    }

    /// The rules among the reasons of an eviction that have no slot for the pod.
    pub(super) fn rules_without_slot(&self, pod: &PodId, eviction: &Eviction) -> Vec<RuleId> {
        if self.settings.max_evictions_per_rule.is_none() {
            return Vec::new();
        }
        eviction.reasons.rules().filter(|rule| !self.may_evict(rule, pod)).cloned().collect()
    }

    /// The eviction of a pod as if these rules did not exist.
    pub(super) fn eviction_without(&self, pod: &PodId, rules: &[RuleId]) -> Option<Eviction> {
        let known = self.pods.get(&pod.key).filter(|known| PodId::of(known).as_ref() == Some(pod))?;
        let others = || self.evicting.values().filter(|rule| !rules.contains(&rule.id));
        self.pod_eviction(known, |_, claim| self.claim_eviction_by(claim, others()))
    }

    /// Records that these rules hold a pod.
    pub(super) fn hold(&mut self, pod: &PodId, rules: &[RuleId]) {
        for rule in rules {
            if let Some(record) = self.records.get_mut(rule) {
                record.held.insert(pod.clone());
            }
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
        for rule in eviction.reasons.rules() {
            let Some(record) = self.records.get_mut(rule) else { continue };
            let Some(slot) = slot(record.slots.get(&pod.uid).copied()) else { continue };
            let is_new = record.slots.insert(pod.uid.clone(), slot).is_none();
            if is_new && self.must_store_count(rule) {
                self.effects.rule_now(rule.clone());
            }
        }
    }

    /// The eviction of the pod is no longer pending, or has other reasons.
    pub(super) fn leave_rules(&mut self, pod: &PodId, now: Time) {
        for record in self.records.values_mut() {
            record.held.remove(pod);
        }
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
            self.release_held(&rule, at);
        }
    }

    /// Queues the pods that a rule holds, each for the time of its eviction and not before `at`. Their passes check the limit again.
    pub(super) fn release_held(&mut self, rule: &RuleId, at: Time) {
        let Some(record) = self.records.get_mut(rule) else { return };
        for pod in std::mem::take(&mut record.held) {
            if let Some(eviction) = self.pending.get(&pod) {
                self.effects.pod(eviction.at.max(at), &pod);
            }
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
