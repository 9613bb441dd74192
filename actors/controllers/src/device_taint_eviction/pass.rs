//! One pass for one item of the queue: a machine that names the next call, and takes its answer.

use std::time::Duration;

use podwright_model::time::Time;

use super::api::{Answer, ApiError, PodId, Request};
use super::cache::Core;
use super::eviction::Reasons;
use super::item::Item;
use super::pod_pass::PodPass;
use super::rule_pass::RulePass;

/// A pass that runs. Dropping it at any point is safe: the item must then be tried again.
#[derive(Clone, Debug)]
pub struct Pass(Machine);

#[derive(Clone, Debug)]
enum Machine {
    Pod(PodPass),
    Rule(RulePass),
}

/// What a pass does next.
#[derive(Debug)]
#[must_use]
pub enum Step {
    /// Perform the call, and give the answer to the next step.
    Call(Request),
    /// The pass is over.
    Done(Report),
}

/// The end of a pass.
#[derive(Debug, PartialEq, Eq)]
pub struct Report {
    /// What becomes of the item.
    pub outcome: Outcome,
    /// The pod that was deleted.
    pub evicted: Option<Evicted>,
}

/// A pod that was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The pod.
    pub pod: PodId,
    /// The time since its eviction was due.
    pub late: Duration,
    /// The taints that have evicted it.
    pub reasons: Reasons,
}

/// What becomes of an item.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is left to do.
    Finished,
    /// The item is due again at this time.
    Again(Time),
    /// The item must be tried again after a backoff.
    Failed(Box<Fault>),
}

/// Why a pass failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A call failed.
    #[error("could not {action} {item}: {error}")]
    Api {
        /// What the call was to do.
        action: &'static str,
        /// The item.
        item: Item,
        /// The answer.
        error: ApiError,
    },
    /// The answer has a type that does not fit the call.
    #[error("the API server answered the call to {action} {item} with an unexpected type: the controller tries again")]
    UnexpectedAnswer {
        /// What the call was to do.
        action: &'static str,
        /// The item.
        item: Item,
    },
}

impl Fault {
    /// The shortest delay before the next try.
    pub fn delay_at_least(&self) -> Duration {
        match self {
            Fault::Api { error, .. } => error.retry_after,
            Fault::UnexpectedAnswer { .. } => Duration::ZERO,
        }
    }
}

impl Core {
    /// Begins the pass for an item. The first step has no answer.
    pub fn begin(&self, item: &Item) -> Pass {
        Pass(match item {
            Item::Pod(pod) => Machine::Pod(PodPass::new(pod.clone())),
            Item::Rule(rule) => Machine::Rule(RulePass::new(rule.clone())),
        })
    }
}

impl Pass {
    /// Whether the next step may begin a call. Otherwise it only takes an answer.
    pub fn may_call(&self) -> bool {
        match &self.0 {
            Machine::Pod(pass) => pass.may_call(),
            Machine::Rule(pass) => pass.may_call(),
        }
    }

    /// One step. `answer` is that of the call of the step before. Total: no I/O, no clock, no panic.
    pub fn step(&mut self, core: &mut Core, answer: Option<Result<Answer, ApiError>>, now: Time) -> Step {
        match &mut self.0 {
            Machine::Pod(pass) => pass.step(core, answer, now),
            Machine::Rule(pass) => pass.step(core, answer, now),
        }
    }
}

pub(super) fn done(outcome: Outcome) -> Step {
    Step::Done(Report { outcome, evicted: None })
}

pub(super) fn failed(action: &'static str, item: Item, answer: Result<Answer, ApiError>) -> Step {
    done(Outcome::Failed(Box::new(match answer {
        Ok(_) => Fault::UnexpectedAnswer { action, item },
        Err(error) => Fault::Api { action, item, error },
    })))
}
