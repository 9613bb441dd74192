//! Runs a pass: performs its calls while this replica leads, and publishes what happened.

use std::future::pending;

use podwright_work_queue::Outcome;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::super::passes::PassEnd;
use super::super::resource_claim::{Fact, Key, PassError, Report, Step};
use super::{Shared, write_log};
use crate::ports::resource_claims::{Answer, ApiError, Request};

impl Shared {
    /// Runs the pass of a key.
    pub(super) async fn perform(&self, key: Key) -> Outcome {
        let pass = async {
            match self.pass(&key).await {
                Ok(()) => PassEnd::Finished,
                Err(error) if let Some(delay) = error.only_waits() => {
                    PassEnd::Waits { reason: error.to_string(), delay }
                }
                Err(error) => PassEnd::Failed { error: error.to_string(), at_least: error.delay_at_least() },
            }
        };
        self.passes.perform(key.clone(), pass).await
    }

    /// Runs one pass.
    async fn pass(&self, key: &Key) -> Result<(), PassError> {
        let mut pass = self.core.lock().begin(key);
        // Set during a create, and until its answer was counted and remembered.
        let mut in_flight = None;
        let mut answer = None;
        let Report { result, facts } = loop {
            let step = pass.step(&mut self.core.lock(), answer.take(), self.ports.clock.now());
            match step {
                Step::Call(request) => {
                    // The facts are published before the call, because a stop may drop the pass during it.
                    pass.take_facts().into_iter().for_each(|fact| self.publish(fact));
                    answer = Some(self.call(request, &mut in_flight).await);
                }
                Step::Done(report) => break report,
            }
        };
        facts.into_iter().for_each(|fact| self.publish(fact));
        result
    }

    /// Performs a call, if this replica still leads. Otherwise the end of the term drops the pass. `in_flight` is set for a create.
    async fn call(&self, request: Request, in_flight: &mut Option<TaskTrackerToken>) -> Result<Answer, ApiError> {
        // If the last call was a create, its answer was counted and remembered before this call.
        *in_flight = None;
        self.ports.lease.until_held().await;
        // Taken before the check, so that a stop either waits for this create or prevents it.
        let create = matches!(request, Request::CreateClaim(_)).then(|| self.end.creates.token());
        if self.end.ends.is_cancelled() {
            drop(create);
            return pending().await;
        }
        *in_flight = create;
        match request {
            Request::ListClaims { namespace } => self.lists.list(namespace, &self.ports).await,
            request => self.ports.api.call(request).await,
        }
    }

    /// Counts, records or logs what happened in a pass.
    fn publish(&self, fact: Fact) {
        match fact {
            Fact::Created { succeeded, admin_access } => {
                self.ports.metrics.resource_claims.created(succeeded, admin_access);
            }
            Fact::GenerationFailed(warning) => self.ports.api.record(warning),
            Fact::Foreign(error) => tracing::info!(%error, "a new ResourceClaim replaces the one of another object"),
            Fact::Full(claim) => tracing::warn!(%claim, "the ResourceClaim has the largest number of consumers"),
            Fact::Wrote(write) => write_log::log(&write),
        }
    }
}
