//! The operations on claims that pods wait for, to explain the waits.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use podwright_metrics::ClaimOperation;

use super::error::{Cause, ClaimsError};
use crate::ids::{ClaimName, DriverName, PodUid};
use crate::ports::ResourceWait;
use crate::time::Time;

/// The operations that have not succeeded yet, by pod.
#[derive(Debug, Default)]
pub(super) struct Tries(HashMap<PodUid, PodTries, FixedState>);

#[derive(Debug)]
struct PodTries {
    operation: ClaimOperation,
    /// When the first try began.
    since: Time,
    tries: u32,
    /// Why the last try failed.
    causes: Vec<Cause>,
}

impl Tries {
    /// A try has begun.
    pub(super) fn begun(&mut self, uid: &PodUid, operation: ClaimOperation, now: Time) {
        let new = || PodTries { operation, since: now, tries: 0, causes: Vec::new() };
        let tries = self.0.entry(uid.clone()).or_insert_with(new);
        if tries.operation != operation {
            *tries = new();
        }
    }

    /// A try has ended.
    pub(super) fn ended(&mut self, uid: &PodUid, operation: ClaimOperation, result: &Result<(), ClaimsError>) {
        let Err(error) = result else {
            self.0.remove(uid);
            return;
        };
        let Some(tries) = self.0.get_mut(uid).filter(|tries| tries.operation == operation) else { return };
        tries.tries = tries.tries.saturating_add(1);
        tries.causes = error.causes();
    }

    /// The waits of a pod: why its last try failed, and what the current one waits for. `running` has the claims of the current try
    /// with the drivers that have not answered, and without a driver if an operation of another pod on the claim comes first.
    pub(super) fn waits(&self, uid: &PodUid, running: &[(ClaimName, Option<DriverName>)]) -> Vec<ResourceWait> {
        let Some(pod) = self.0.get(uid) else { return Vec::new() };
        let wait = |claim: Option<&ClaimName>, driver: Option<&DriverName>, error: Option<&str>| ResourceWait {
            is_release: pod.operation == ClaimOperation::Unprepare,
            resource: claim.map(ToString::to_string).unwrap_or_default(),
            driver: driver.map(ToString::to_string),
            since: pod.since,
            tries: pod.tries,
            error: error.map(str::to_owned),
        };
        let is_known = |claim: &ClaimName, driver: Option<&DriverName>| {
            let mut of_claim = pod.causes.iter().filter(|cause| cause.claim.as_ref() == Some(claim));
            of_claim.any(|cause| driver.is_none() || cause.driver.as_ref() == driver)
        };
        let failed =
            pod.causes.iter().map(|cause| wait(cause.claim.as_ref(), cause.driver.as_ref(), Some(&cause.text)));
        let running = running.iter().filter(|(claim, driver)| !is_known(claim, driver.as_ref()));
        let waits: Vec<_> =
            failed.chain(running.map(|(claim, driver)| wait(Some(claim), driver.as_ref(), None))).collect();
        if waits.is_empty() { vec![wait(None, None, None)] } else { waits }
    }
}
