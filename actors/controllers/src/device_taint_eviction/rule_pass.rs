//! The pass of a rule: writes the conditions of its status if they differ.

use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use podwright_model::time::Time;

use super::api::{Answer, ApiError, ApiErrorKind, Request, RuleConditions, RuleId};
use super::cache::{Core, STATUS_DELAY};
use super::item::Item;
use super::limit::{CountedEvictions, LIMIT_CONDITION, RuleRecord};
use super::pass::{Outcome, Step, done, failed};
use super::status::IN_PROGRESS_CONDITION;

#[derive(Clone, Debug)]
pub(super) struct RulePass {
    rule: RuleId,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    Begin,
    /// A call writes the status, with these evictions if the rule has a limit.
    Writing(CountedEvictions),
    Over,
}

impl RulePass {
    pub(super) fn new(rule: RuleId) -> Self {
        RulePass { rule, stage: Stage::Begin }
    }

    /// Whether the next step may begin a call.
    pub(super) fn may_call(&self) -> bool {
        matches!(self.stage, Stage::Begin)
    }

    pub(super) fn step(&mut self, core: &mut Core, answer: Option<Result<Answer, ApiError>>, now: Time) -> Step {
        let is_missing = matches!(&answer, Some(Err(ApiError { kind: ApiErrorKind::NotFound, .. })));
        match (std::mem::replace(&mut self.stage, Stage::Over), answer) {
            (Stage::Begin, None) => self.begin(core, now),
            (Stage::Writing(counted), Some(Ok(Answer::Done))) => {
                core.count_stored(&self.rule, counted, now);
                done(Outcome::Finished)
            }
            (Stage::Writing(_), Some(Err(_))) if is_missing => {
                // The rule was deleted, and the watch shows that soon. Or this server does not serve rules, and another one does.
                self.write_later(core, now);
                done(Outcome::Finished)
            }
            (Stage::Begin | Stage::Writing(_) | Stage::Over, answer) => {
                let answer = answer.unwrap_or(Ok(Answer::Done));
                self.write_later(core, now);
                failed("write the status of", Item::Rule(self.rule.clone()), answer)
            }
        }
    }

    /// If pods wait for the write that has failed, writes again soon: the backoff of a long outage must not go on for as long again after
    /// it.
    fn write_later(&self, core: &mut Core, now: Time) {
        if core.must_store_count(&self.rule) {
            core.effects.rule_at(&self.rule, now + STATUS_DELAY);
        }
    }

    fn begin(&mut self, core: &mut Core, now: Time) -> Step {
        let Some(rule) = core.rule(&self.rule).cloned() else { return done(Outcome::Finished) };
        let may_write_later = !core.must_store_count(&self.rule) && !core.must_report_limit(&self.rule);
        let record = core.records.entry(self.rule.clone()).or_default();
        if let Some(at) = next_write(&rule, record, now).filter(|_| may_write_later) {
            return done(Outcome::Again(at));
        }
        let (contents, counted) = (core.conditions(&rule, now), core.counted_evictions(&self.rule, now));
        // The watch may not have shown the last write of this controller, so that the known conditions are older.
        let (is_shown, record) = (has_conditions(&rule, &contents), core.records.get_mut(&self.rule));
        if record.is_some_and(|record| !record.begin_write(&contents, counted, is_shown)) {
            return done(Outcome::Finished);
        }
        self.stage = Stage::Writing(counted);
        Step::Call(Request::ApplyRuleStatus(RuleConditions { rule: self.rule.clone(), conditions: contents }))
    }
}

/// When the status may be written again, if it was written for this spec a short time ago. The pass asks this before it counts the pods
/// of the rule, because the count reads all pending evictions.
fn next_write(rule: &DeviceTaintRule, record: &mut RuleRecord, now: Time) -> Option<Time> {
    let written = condition(rule, IN_PROGRESS_CONDITION)?;
    if written.observed_generation != rule.metadata.generation {
        return None;
    }
    let stamp = Time::from_timestamp(written.last_transition_time.0);
    // The clock of the machine that wrote the status may be ahead. Then the delay begins when this controller first read the status.
    let since = if stamp > now { record.first_read(stamp, now) } else { stamp };
    Some(since + STATUS_DELAY).filter(|at| *at > now)
}

/// Whether the status of a rule has these conditions of this controller and no others, at whatever time they were written. Conditions of
/// other types belong to other writers.
pub(super) fn has_conditions(rule: &DeviceTaintRule, conditions: &[Condition]) -> bool {
    let is_same = |old: &Condition, new: &Condition| {
        old.status == new.status
            && old.reason == new.reason
            && old.message == new.message
            && old.observed_generation == new.observed_generation
    };
    [IN_PROGRESS_CONDITION, LIMIT_CONDITION].iter().all(|type_| {
        match (condition(rule, type_), conditions.iter().find(|new| new.type_ == *type_)) {
            (Some(old), Some(new)) => is_same(old, new),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    })
}

/// A condition of a rule.
pub(super) fn condition<'a>(rule: &'a DeviceTaintRule, type_: &str) -> Option<&'a Condition> {
    rule.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == type_)
}
