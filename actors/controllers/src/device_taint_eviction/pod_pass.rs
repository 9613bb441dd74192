//! The pass of a pod: reads the pod, sets its condition, and deletes it.
//!
//! ```text
//!  Begin --due--> Reading --the same pod, alive--> Patching ---> Deleting ---> Over
//!    |               |            `-- has the condition ------------^
//!    |               `-- gone, replaced or being deleted --------------------> Over
//!    `-- not pending, not due or held ---------------------------------------> Over
//! ```
//!
//! Before each write, the pass checks that the eviction is still pending and due. The eviction of a pass leaves out the rules that have
//! no slot for the pod, because they have reached their limits or must store the number of their evictions first. The pass takes the slots
//! of the other rules when it begins, so that the order of the slots is that of the queue, whichever pod the server returns first.

use k8s_openapi::api::core::v1::Pod;
use podwright_model::time::Time;

use super::api::{Answer, ApiError, ApiErrorKind, EvictionEventKind, PodCondition, PodId, Request};
use super::cache::Core;
use super::eviction::Eviction;
use super::item::Item;
use super::pass::{Evicted, Outcome, Report, Step, done, failed};
use super::pending::Due;

#[derive(Clone, Debug)]
pub(super) struct PodPass {
    pod: PodId,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    Begin,
    /// A call reads the pod.
    Reading,
    /// A call sets the condition.
    Patching,
    /// A call deletes the pod. The eviction is the one that was due when the call began.
    Deleting(Eviction),
    Over,
}

impl PodPass {
    pub(super) fn new(pod: PodId) -> Self {
        PodPass { pod, stage: Stage::Begin }
    }

    /// Whether the next step may begin a call.
    pub(super) fn may_call(&self) -> bool {
        match self.stage {
            Stage::Begin | Stage::Reading | Stage::Patching => true,
            Stage::Deleting(_) | Stage::Over => false,
        }
    }

    pub(super) fn step(&mut self, core: &mut Core, answer: Option<Result<Answer, ApiError>>, now: Time) -> Step {
        let step = self.next(core, answer, now);
        match &step {
            Step::Call(_) => {}
            Step::Done(Report { outcome: Outcome::Failed(_), .. }) => core.free_slots_later(&self.pod, now),
            Step::Done(_) => core.free_slots(&self.pod, now, now),
        }
        step
    }

    fn next(&mut self, core: &mut Core, answer: Option<Result<Answer, ApiError>>, now: Time) -> Step {
        let is_missing = matches!(&answer, Some(Err(ApiError { kind: ApiErrorKind::NotFound, .. })));
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        match (stage, answer) {
            (Stage::Begin, None) => match self.due(core, now) {
                Ok(_) => {
                    self.stage = Stage::Reading;
                    Step::Call(Request::GetPod(self.pod.key.clone()))
                }
                Err(outcome) => done(outcome),
            },
            (Stage::Reading, Some(Ok(Answer::Pod(pod)))) => self.read(core, &pod, now),
            (Stage::Patching, Some(Ok(Answer::Done))) => self.delete(core, now),
            (Stage::Deleting(eviction), Some(Ok(Answer::Done))) => self.deleted(core, &eviction, now),
            (Stage::Reading | Stage::Patching, Some(_)) if is_missing => self.gone(core, now),
            (Stage::Deleting(eviction), Some(_)) if is_missing => {
                core.end_use_of_slots(&self.pod, &eviction, true);
                self.gone(core, now)
            }
            (stage, answer) => {
                let action = match &stage {
                    Stage::Begin | Stage::Over => "work on",
                    Stage::Reading => "read",
                    Stage::Patching => "set the condition of",
                    Stage::Deleting(_) => "delete",
                };
                let is_unknown = matches!(&answer, Some(Ok(_) | Err(ApiError { kind: ApiErrorKind::Unknown, .. })));
                if let Stage::Deleting(eviction) = &stage {
                    core.end_use_of_slots(&self.pod, eviction, !is_unknown);
                }
                failed(action, Item::Pod(self.pod.clone()), answer.unwrap_or(Ok(Answer::Done)))
            }
        }
    }

    /// The eviction, if it is due. Otherwise the end of the pass.
    fn due(&self, core: &mut Core, now: Time) -> Result<Eviction, Outcome> {
        core.evaluate_marked(&self.pod.key, now);
        match core.pending.due(&self.pod, now) {
            Due::Never => Err(Outcome::Finished),
            Due::At(at) => Err(Outcome::Again(at)),
            Due::Now(eviction) => self.permitted(core, eviction, now),
        }
    }

    /// The eviction without the rules that have no slot for the pod, if it is due. The pod then has a slot of each of its rules.
    fn permitted(&self, core: &mut Core, eviction: Eviction, now: Time) -> Result<Eviction, Outcome> {
        let without_slot = core.rules_without_slot(&self.pod, &eviction);
        if without_slot.is_empty() {
            core.take_slots(&self.pod, &eviction);
            return Ok(eviction);
        }
        let outcome = match core.eviction_without(&self.pod, &without_slot) {
            Some(left) if left.at <= now => {
                core.end_wait(&self.pod, eviction.at, &without_slot, now);
                core.take_slots(&self.pod, &left);
                return Ok(left);
            }
            Some(left) => Outcome::Again(left.at),
            None => Outcome::Finished,
        };
        core.hold(&self.pod, &eviction, &without_slot, now);
        core.status_later(eviction.reasons.rules(), now);
        Err(outcome)
    }

    fn read(&mut self, core: &mut Core, pod: &Pod, now: Time) -> Step {
        if PodId::of(pod).as_ref() != Some(&self.pod) || pod.metadata.deletion_timestamp.is_some() {
            return self.gone(core, now);
        }
        if let Err(outcome) = self.due(core, now) {
            return done(outcome);
        }
        if core.pending.announce(&self.pod) {
            core.effects.event(&self.pod, EvictionEventKind::Deletion);
        }
        match missing_condition(pod, &self.pod, now) {
            Some(condition) => {
                self.stage = Stage::Patching;
                Step::Call(Request::PatchPodStatus(condition))
            }
            None => self.delete(core, now),
        }
    }

    fn delete(&mut self, core: &mut Core, now: Time) -> Step {
        match self.due(core, now) {
            Ok(eviction) => {
                core.use_slots(&self.pod, &eviction);
                self.stage = Stage::Deleting(eviction);
                Step::Call(Request::DeletePod(self.pod.clone()))
            }
            Err(outcome) => done(outcome),
        }
    }

    /// The server has deleted the pod. The watch may have shown that already.
    fn deleted(&self, core: &mut Core, eviction: &Eviction, now: Time) -> Step {
        core.end_use_of_slots(&self.pod, eviction, false);
        if let Some(pending) = core.pending.remove(&self.pod) {
            core.leave_rules(&self.pod, &pending, now);
            core.status_later(pending.reasons.rules(), now);
        }
        let known = core.pods.get(&self.pod.key).and_then(|pod| PodId::of(pod));
        if known.as_ref() == Some(&self.pod) {
            core.pending.evicted(&self.pod);
        }
        for rule in eviction.reasons.rules() {
            // If the rule was deleted, its record was deleted too.
            if let Some(record) = core.records.get_mut(rule) {
                record.evicted += 1;
                core.effects.rule_at(rule, now + super::cache::STATUS_DELAY);
            }
        }
        let late = now.since(eviction.at);
        let evicted = Evicted { pod: self.pod.clone(), late, reasons: eviction.reasons.clone() };
        Step::Done(Report { outcome: Outcome::Finished, evicted: Some(evicted) })
    }

    /// The pod is gone or being deleted, and this pass has not deleted it.
    fn gone(&self, core: &mut Core, now: Time) -> Step {
        if let Some(eviction) = core.pending.remove(&self.pod) {
            core.leave_rules(&self.pod, &eviction, now);
            core.status_later(eviction.reasons.rules(), now);
        }
        done(Outcome::Finished)
    }
}

/// The condition that the pod lacks.
fn missing_condition(pod: &Pod, id: &PodId, now: Time) -> Option<PodCondition> {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let known = conditions.into_iter().find(|condition| condition.type_ == PodCondition::TYPE);
    let is_true = known.is_some_and(|known| known.status == "True");
    if is_true
        && known.and_then(|known| known.reason.as_deref()) == Some(PodCondition::REASON)
        && known.and_then(|known| known.message.as_deref()) == Some(PodCondition::MESSAGE)
    {
        return None;
    }
    let since = known.filter(|_| is_true).and_then(|known| known.last_transition_time.as_ref());
    let since = since.map_or(now, |since| Time::from_timestamp(since.0));
    Some(PodCondition { pod: id.clone(), since })
}
