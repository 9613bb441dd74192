//! One pass for one item of the queue: a machine that names the next call, and takes its answer.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;
use podwright_model::time::Time;

use super::api::{Answer, ApiError, OwnerWarning, Request};
use super::cache::Core;
use super::claim_pass::ClaimPass;
use super::generate::TemplateRefused;
use super::keys::{Key, ObjectKey};
use super::names::NameError;
use super::owner_pass::OwnerPass;
use super::owners::Owner;
use super::ownership::{BindTargetError, NotOwned};
use super::unanswered::SETTLES_AFTER;

/// A pass that runs. Dropping it at any point is safe: the core remembers a create whose answer was not given to a step.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct Pass(Machine);

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
enum Machine {
    /// The object does not exist, or needs nothing.
    Nothing,
    Owner(Box<OwnerPass>),
    Claim(Box<ClaimPass>),
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
#[derive(Debug)]
pub struct Report {
    /// Whether the item is finished, or must be tried again.
    pub result: Result<(), PassError>,
    /// The facts that [`Pass::take_facts`] has not taken. The caller counts, records and logs them.
    pub facts: Vec<Fact>,
}

/// Something that happened in a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A create was answered, for `resourceclaim_controller_creates_total`.
    Created {
        /// Whether it succeeded.
        succeeded: bool,
        /// Whether a request of the claim has admin access.
        admin_access: bool,
    },
    /// A claim of a pod or group could not be generated: a Warning event with the reason [`EVENT_REASON`](super::EVENT_REASON).
    GenerationFailed(OwnerWarning),
    /// The name in the status is that of another object's claim. A new claim replaces it.
    Foreign(NotOwned),
    /// A claim has the largest number of consumers, so a further one is not added.
    Full(ObjectKey),
    /// The server has performed a write.
    Wrote(ClaimWrite),
}

/// A write that the server has performed, with its objects, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimWrite {
    /// A claim was created for a claim of the spec of a pod or group.
    Created {
        /// The claim.
        claim: ObjectKey,
        /// The name of the claim in the spec.
        entry: String,
    },
    /// New names of claims were written to the status of a pod or group.
    Recorded {
        /// The names in the spec with those of the claims, such as `res=web-res-x7f2k`.
        names: String,
    },
    /// A claim was reserved for a pod or group.
    Reserved {
        /// The claim.
        claim: ObjectKey,
        /// The pod or group, such as `pods web (UID)`.
        consumer: String,
    },
    /// Consumers that have ended were removed from a claim, or the allocation of a claim that is being deleted was removed.
    Released {
        /// The claim.
        claim: ObjectKey,
        /// The consumers, such as `pods web (UID)`.
        consumers: String,
        /// Whether the devices were given back.
        deallocated: bool,
    },
    /// The finalizer of a claim without consumers was removed.
    FinalizerRemoved {
        /// The claim.
        claim: ObjectKey,
    },
    /// The generated claim of a pod that has ended was deleted.
    Deleted {
        /// The claim.
        claim: ObjectKey,
        /// The UID of the claim.
        uid: String,
        /// The pod.
        pod: String,
    },
}

/// Why a part of a pass failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The group of the pod is not known.
    #[error("PodGroup {0} of the pod was not found: create it")]
    GroupNotFound(ObjectKey),
    /// The template is not known.
    #[error("ResourceClaimTemplate {0} was not found: create it")]
    TemplateNotFound(ObjectKey),
    /// The template may not be used.
    #[error("ResourceClaimTemplate {template} is refused: {refused}")]
    TemplateRefused {
        /// The template.
        template: ObjectKey,
        /// The reason.
        refused: TemplateRefused,
    },
    /// The claim of the spec has no known source.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It is not known for which object the claim is generated and reserved.
    #[error(transparent)]
    BindTarget(#[from] BindTargetError),
    /// A call failed.
    #[error("could not {action} {object}: {error}")]
    Api {
        /// What the call was to do.
        action: &'static str,
        /// The object of the call.
        object: ObjectKey,
        /// The answer.
        error: ApiError,
    },
    /// The result of a create is not known.
    #[error(
        "the result of the create of claim {entry:?} for {owner} is not known: the controller creates the claim again if the API server \
         does not list it {} s after the answer was lost",
        SETTLES_AFTER.as_secs()
    )]
    Unanswered {
        /// The pod or group.
        owner: ObjectKey,
        /// The name of the claim in its spec.
        entry: String,
        /// How long until the next list can settle the create.
        settles_in: Duration,
    },
    /// The answer has a type that does not fit the call.
    #[error(
        "the API server answered the call to {action} {object} with an unexpected type: the controller tries again"
    )]
    UnexpectedAnswer {
        /// What the call was to do.
        action: &'static str,
        /// The object of the call.
        object: ObjectKey,
    },
}

/// All faults of a pass. The item must be tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassError(
    /// The faults, at least one.
    pub Vec<Fault>,
);

impl fmt::Display for PassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join("; "))
    }
}

impl std::error::Error for PassError {}

impl PassError {
    /// The shortest delay before the next try, as the API server requested it.
    pub fn delay_at_least(&self) -> Duration {
        let requested =
            |fault: &Fault| if let Fault::Api { error, .. } = fault { Some(error.retry_after) } else { None };
        self.0.iter().filter_map(requested).max().unwrap_or_default()
    }

    /// How long the pass waits until creates can be settled. `None` if anything else has failed in the pass.
    pub fn only_waits(&self) -> Option<Duration> {
        let settles_in =
            |fault: &Fault| if let Fault::Unanswered { settles_in, .. } = fault { Some(*settles_in) } else { None };
        self.0.iter().map(settles_in).min().flatten()
    }
}

impl Core {
    /// Begins the pass for an item. The first step has no answer.
    pub fn begin(&self, key: &Key) -> Pass {
        let owner_pass = |owner: Owner| Machine::Owner(Box::new(OwnerPass::new(owner)));
        let machine = match key {
            Key::Claim(claim) => self.decoded_claim(claim).map(|claim| Machine::Claim(Box::new(ClaimPass::new(claim)))),
            Key::Pod(pod) => self.pods.get(pod).map(|pod| owner_pass(Owner::Pod(pod.clone()))),
            Key::PodGroup(group) => self.groups.get(group).map(|group| owner_pass(Owner::PodGroup(group.clone()))),
        };
        Pass(machine.unwrap_or(Machine::Nothing))
    }
}

impl Pass {
    /// One step. `answer` is that of the call of the step before. Total: no I/O, no clock, no panic.
    pub fn step(&mut self, core: &mut Core, answer: Option<Result<Answer, ApiError>>, now: Time) -> Step {
        match &mut self.0 {
            Machine::Nothing => Step::Done(report(Vec::new(), Vec::new())),
            Machine::Owner(pass) => pass.step(core, answer, now),
            Machine::Claim(pass) => pass.step(core, answer),
        }
    }

    /// Takes what has happened in the pass up to now. A pass that is dropped during a call has no report.
    pub fn take_facts(&mut self) -> Vec<Fact> {
        match &mut self.0 {
            Machine::Owner(pass) => std::mem::take(&mut pass.facts),
            Machine::Claim(pass) => std::mem::take(&mut pass.facts),
            Machine::Nothing => Vec::new(),
        }
    }
}

/// A consumer of a claim, for the log.
pub(super) fn consumer_text(consumer: &ResourceClaimConsumerReference) -> String {
    format!("{} {} ({})", consumer.resource, consumer.name, consumer.uid)
}

pub(super) fn report(faults: Vec<Fault>, facts: Vec<Fact>) -> Report {
    Report { result: if faults.is_empty() { Ok(()) } else { Err(PassError(faults)) }, facts }
}

pub(super) fn fault(action: &'static str, object: ObjectKey, answer: Result<Answer, ApiError>) -> Fault {
    match answer {
        Ok(_) => Fault::UnexpectedAnswer { action, object },
        Err(error) => Fault::Api { action, object, error },
    }
}
