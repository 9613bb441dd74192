//! The operations on claims that pods wait for, to explain the waits.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use podwright_metrics::ClaimOperation;

use super::error::ClaimsError;
use super::fault::ClaimFault;
use crate::ids::PodUid;
use crate::ports::ResourceWait;
use crate::text::error_chain;
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
    /// For each fault of the last try the claim, the driver and the text.
    faults: Vec<(Option<String>, Option<String>, String)>,
}

impl Tries {
    /// A try has begun.
    pub(super) fn begun(&mut self, uid: &PodUid, operation: ClaimOperation, now: Time) {
        let new = || PodTries { operation, since: now, tries: 0, faults: Vec::new() };
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
        tries.faults = match error {
            ClaimsError::Failed(faults) => faults.iter().map(of_fault).collect(),
            error => vec![(None, None, error_chain(error).to_string())],
        };
    }

    /// The waits of a pod.
    pub(super) fn waits(&self, uid: &PodUid) -> Vec<ResourceWait> {
        let Some(pod) = self.0.get(uid) else { return Vec::new() };
        let wait = |claim: Option<String>, driver: Option<String>, error: Option<String>| ResourceWait {
            is_release: pod.operation == ClaimOperation::Unprepare,
            resource: claim.unwrap_or_default(),
            driver,
            since: pod.since,
            tries: pod.tries,
            error,
        };
        if pod.faults.is_empty() {
            return vec![wait(None, None, None)];
        }
        pod.faults.iter().map(|(claim, driver, text)| wait(claim.clone(), driver.clone(), Some(text.clone()))).collect()
    }
}

fn of_fault(fault: &ClaimFault) -> (Option<String>, Option<String>, String) {
    let claim = match fault {
        ClaimFault::Refused { claim, .. } | ClaimFault::Replaced { claim, .. } => Some(claim.to_string()),
        _ => None,
    };
    (claim, fault.driver().map(ToString::to_string), fault.to_string())
}
