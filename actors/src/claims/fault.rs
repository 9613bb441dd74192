//! Why the claims of a pod could not be prepared or released.

use std::collections::BTreeMap;

use crate::ids::{ClaimName, ClaimUid, DriverName};
use crate::ports::{ClaimRef, DriverError};
use crate::text::error_chain;

/// One reason why an operation on the claims of a pod failed. Names the claim or the driver, and never the pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimFault {
    /// An earlier claim of the same name has not been released.
    #[error("ResourceClaim {claim}: the earlier claim with UID {old} is not released yet")]
    Replaced {
        /// The claim.
        claim: ClaimName,
        /// The UID of the earlier claim.
        old: ClaimUid,
    },
    /// A whole call failed.
    #[error("{error}")]
    Call {
        /// The driver.
        driver: DriverName,
        /// The error with its sources. Names the driver.
        error: String,
    },
    /// A driver could not prepare or unprepare one claim.
    #[error("ResourceClaim {claim}, DRA driver {driver}: {error}")]
    Refused {
        /// The claim.
        claim: ClaimName,
        /// The driver.
        driver: DriverName,
        /// The driver's text.
        error: String,
    },
    /// A driver's answer lacks claims.
    #[error("DRA driver {driver} skipped {skipped} of {called} claims")]
    Skipped {
        /// The driver.
        driver: DriverName,
        /// The number of claims without an answer.
        skipped: usize,
        /// The number of claims in the call.
        called: usize,
    },
    /// A driver answered for a claim that was not in the call.
    #[error("DRA driver {driver} answered for the claim UID {uid}, which was not in the call")]
    Unexpected {
        /// The driver.
        driver: DriverName,
        /// The UID in the answer.
        uid: ClaimUid,
    },
    /// The file of claims cannot be written.
    #[error("the file of claims cannot be written: {0}")]
    NotSaved(String),
}

impl ClaimFault {
    /// The driver at fault, if a driver is.
    pub fn driver(&self) -> Option<&DriverName> {
        match self {
            ClaimFault::Call { driver, .. }
            | ClaimFault::Refused { driver, .. }
            | ClaimFault::Skipped { driver, .. }
            | ClaimFault::Unexpected { driver, .. } => Some(driver),
            ClaimFault::Replaced { .. } | ClaimFault::NotSaved(_) => None,
        }
    }
}

/// The checked answer of a driver to one call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DriverAnswer<T> {
    /// The claims of the call that succeeded.
    pub succeeded: BTreeMap<ClaimName, T>,
    /// Why the others failed.
    pub faults: Vec<ClaimFault>,
}

/// Checks what a driver answered to a call for `claims`.
///
/// An answer for a claim that was not in the call fails the whole call: the driver has mixed up its claims.
pub fn check_answer<T>(
    driver: &DriverName,
    claims: &[ClaimRef],
    answer: Result<BTreeMap<ClaimUid, Result<T, String>>, DriverError>,
) -> DriverAnswer<T> {
    let failed = |fault| DriverAnswer { succeeded: BTreeMap::new(), faults: vec![fault] };
    let mut answers = match answer {
        Ok(answers) => answers,
        Err(DriverError::Failed(source)) => {
            return failed(ClaimFault::Call { driver: driver.clone(), error: error_chain(&*source).to_string() });
        }
        Err(error @ DriverError::NotRegistered(_)) => {
            return failed(ClaimFault::Call { driver: driver.clone(), error: error.to_string() });
        }
    };
    if let Some(uid) = answers.keys().find(|uid| claims.iter().all(|claim| claim.uid != **uid)) {
        return failed(ClaimFault::Unexpected { driver: driver.clone(), uid: uid.clone() });
    }
    let mut checked = DriverAnswer { succeeded: BTreeMap::new(), faults: Vec::new() };
    let mut skipped = 0;
    for claim in claims {
        match answers.remove(&claim.uid) {
            Some(Ok(answer)) => {
                checked.succeeded.insert(claim.name.clone(), answer);
            }
            Some(Err(error)) => {
                let (claim, driver) = (claim.name.clone(), driver.clone());
                checked.faults.push(ClaimFault::Refused { claim, driver, error });
            }
            None => skipped += 1,
        }
    }
    if skipped > 0 {
        checked.faults.push(ClaimFault::Skipped { driver: driver.clone(), skipped, called: claims.len() });
    }
    checked
}
