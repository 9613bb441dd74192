//! What the controller records of a rule: its numbers, its slots and the pods that wait for them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use podwright_model::ids::PodUid;
use podwright_model::time::Time;

use super::super::api::PodId;
use super::{CountedEvictions, LIMIT_CONDITION};

/// The state of a slot that a pod has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// The pod was certainly not deleted.
    Taken,
    /// A call that deletes the pod has no answer yet.
    Asked,
    /// The pod was deleted, or may have been deleted.
    Used,
}

/// What the controller records of a rule in addition to its object.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct RuleRecord {
    /// The pods that were evicted for the rule since the start of the controller.
    pub(in super::super) evicted: u64,
    /// The number of evictions before the start of the controller, with those that were only reserved.
    pub(super) earlier: u64,
    /// The largest number that this controller has written to the condition of the limit. The watch may show an older write of this
    /// controller, whose number is larger than that of the last write.
    pub(super) written: u64,
    /// The number that the server is known to have in the condition, or a smaller one. The rule gives slots up to this number.
    pub(super) stored: u64,
    /// The number of a write that has no answer, or the lower one that the watch has shown since its beginning.
    pub(super) in_flight: Option<u64>,
    pub(super) slots: BTreeMap<PodUid, Slot>,
    /// The pods that are due and have found no slot, in the order of their evictions.
    pub(super) waiting: BTreeSet<(Time, PodId)>,
    /// The conditions that the last pass of the rule has written, or has found in the status.
    pub(in super::super) conditions: Vec<Condition>,
    /// A time in the status of the rule that is ahead of this clock, and when this controller first read it.
    ahead: Option<(Time, Time)>,
}

impl RuleRecord {
    /// The record of a rule that is new to this controller, after this number of evictions.
    pub(super) fn after(earlier: u64) -> Self {
        RuleRecord { earlier, stored: earlier, ..RuleRecord::default() }
    }

    pub(super) fn used(&self) -> u64 {
        self.earlier.saturating_add(self.slots.len() as u64)
    }

    /// The number of slots that the rule may still give.
    pub(super) fn free(&self, limit: u64) -> usize {
        usize::try_from(self.stored.min(limit).saturating_sub(self.used())).unwrap_or(usize::MAX)
    }

    /// Whether one of the free slots is left for a pod. Pods that wait and were due earlier come first.
    pub(super) fn has_slot_for(&self, pod: &PodId, at: Time, limit: u64) -> bool {
        let free = self.free(limit);
        if free == 0 {
            return false;
        }
        self.waiting.len() < free || self.waiting.range(..(at, pod.clone())).take(free).count() < free
    }

    /// A pass writes these conditions with this number, unless the watch has shown them and the server is known to have the number. Returns
    /// whether it writes. Until a write has an answer, the server may have the number from before or this one, so the smaller one counts.
    pub(in super::super) fn begin_write(
        &mut self,
        conditions: &[Condition],
        counted: CountedEvictions,
        is_shown: bool,
    ) -> bool {
        conditions.clone_into(&mut self.conditions);
        if conditions.iter().any(|condition| condition.type_ == LIMIT_CONDITION) {
            self.written = self.written.max(counted.all());
        }
        let is_needed = !is_shown || self.stored != counted.all();
        self.stored = self.stored.min(counted.all());
        self.in_flight = is_needed.then_some(counted.all());
        is_needed
    }

    /// Whether the last conditions say that the limit is reached.
    pub(super) fn says_limit_is_reached(&self) -> bool {
        self.conditions.iter().any(|condition| condition.type_ == LIMIT_CONDITION && condition.status == "True")
    }

    /// When this controller first read a time that is ahead of its clock.
    pub(in super::super) fn first_read(&mut self, stamp: Time, now: Time) -> Time {
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
