//! Why the claims of a pod could not be prepared or released. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{ClaimName, ClaimUid, DriverName};
use crate::ports::{ClaimRef, DriverError};
use crate::text::error_chain;

/// One reason why an operation on the claims of a pod failed. The text names the claim or the driver, but never the pod or its
/// namespace, because the pod's events and errors already name them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimFault {
    /// An earlier claim of the same name has not been released.
    #[error("ResourceClaim {}: the earlier claim with UID {old} is not released yet", .claim.name())]
    Replaced {
        /// The claim.
        claim: ClaimName,
        /// The UID of the earlier claim.
        old: ClaimUid,
    },
    /// The control plane has allocated other devices to the claim, and another pod has not released the earlier ones.
    #[error("ResourceClaim {}: its earlier devices are not released yet", .claim.name())]
    Reallocated {
        /// The claim.
        claim: ClaimName,
    },
    /// A call failed for all of its claims.
    #[error("{error}")]
    Call {
        /// The driver.
        driver: DriverName,
        /// The claims of the call.
        claims: Vec<ClaimName>,
        /// The error with its sources. Names the driver.
        error: String,
    },
    /// A driver could not prepare or unprepare one claim.
    #[error("ResourceClaim {}, DRA driver {driver}: {error}", .claim.name())]
    Refused {
        /// The claim.
        claim: ClaimName,
        /// The driver.
        driver: DriverName,
        /// The driver's error text.
        error: String,
    },
    /// A driver's answer lacks claims.
    #[error("DRA driver {driver} skipped {} of {called} claims", .claims.len())]
    Skipped {
        /// The driver.
        driver: DriverName,
        /// The claims without an answer.
        claims: Vec<ClaimName>,
        /// The number of claims in the call.
        called: usize,
    },
    /// A driver answered for a claim that was not in the call.
    #[error("DRA driver {driver} answered for the claim UID {uid}, which was not in the call")]
    Unexpected {
        /// The driver.
        driver: DriverName,
        /// The claims of the call.
        claims: Vec<ClaimName>,
        /// The UID in the answer.
        uid: ClaimUid,
    },
    /// An operator gave a driver up before it had prepared a claim.
    #[error("ResourceClaim {}: DRA driver {driver} was given up before it answered", .claim.name())]
    GivenUp {
        /// The claim.
        claim: ClaimName,
        /// The driver.
        driver: DriverName,
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
            | ClaimFault::Unexpected { driver, .. }
            | ClaimFault::GivenUp { driver, .. } => Some(driver),
            ClaimFault::Replaced { .. } | ClaimFault::Reallocated { .. } | ClaimFault::NotSaved(_) => None,
        }
    }

    /// The claims that are not prepared or not released because of this fault.
    pub fn claims(&self) -> &[ClaimName] {
        match self {
            ClaimFault::Replaced { claim, .. }
            | ClaimFault::Reallocated { claim }
            | ClaimFault::Refused { claim, .. }
            | ClaimFault::GivenUp { claim, .. } => std::slice::from_ref(claim),
            ClaimFault::Call { claims, .. }
            | ClaimFault::Skipped { claims, .. }
            | ClaimFault::Unexpected { claims, .. } => claims,
            ClaimFault::NotSaved(_) => &[],
        }
    }

    /// This fault without the claims in `late`. `None` if it concerns only claims in `late`.
    pub(super) fn without(mut self, late: &BTreeSet<ClaimName>) -> Option<Self> {
        let is_late = !self.claims().is_empty() && self.claims().iter().all(|claim| late.contains(claim));
        if let ClaimFault::Call { claims, .. }
        | ClaimFault::Skipped { claims, .. }
        | ClaimFault::Unexpected { claims, .. } = &mut self
        {
            claims.retain(|claim| !late.contains(claim));
        }
        (!is_late).then_some(self)
    }
}

/// The checked answer of a driver to one call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DriverAnswer<T> {
    /// The claims of the call that succeeded.
    pub succeeded: BTreeMap<ClaimName, T>,
    /// Why the others failed.
    pub faults: Vec<ClaimFault>,
    /// Whether nothing was sent to the driver, so that it cannot have prepared or unprepared anything.
    pub is_unsent: bool,
}

/// Checks what a driver answered to a call for `claims`.
///
/// An answer for a claim that was not in the call fails the whole call: the driver has mixed up its claims.
pub fn check_answer<T>(
    driver: &DriverName,
    claims: &[ClaimRef],
    answer: Result<BTreeMap<ClaimUid, Result<T, String>>, DriverError>,
) -> DriverAnswer<T> {
    let names = || claims.iter().map(|claim| claim.name.clone()).collect();
    let failed = |fault| DriverAnswer { succeeded: BTreeMap::new(), faults: vec![fault], is_unsent: false };
    let call = |error| failed(ClaimFault::Call { driver: driver.clone(), claims: names(), error });
    let mut answers = match answer {
        Ok(answers) => answers,
        Err(DriverError::Failed(source)) => return call(error_chain(&*source).to_string()),
        Err(DriverError::Unreachable(source)) => {
            return DriverAnswer { is_unsent: true, ..call(error_chain(&*source).to_string()) };
        }
        Err(error @ DriverError::NotRegistered(_)) => {
            return DriverAnswer { is_unsent: true, ..call(error.to_string()) };
        }
    };
    if let Some(uid) = answers.keys().find(|uid| claims.iter().all(|claim| claim.uid != **uid)) {
        return failed(ClaimFault::Unexpected { driver: driver.clone(), claims: names(), uid: uid.clone() });
    }
    let mut checked = DriverAnswer { succeeded: BTreeMap::new(), faults: Vec::new(), is_unsent: false };
    let mut skipped = Vec::new();
    for claim in claims {
        match answers.remove(&claim.uid) {
            Some(Ok(answer)) => {
                checked.succeeded.insert(claim.name.clone(), answer);
            }
            Some(Err(error)) => {
                let (claim, driver) = (claim.name.clone(), driver.clone());
                checked.faults.push(ClaimFault::Refused { claim, driver, error });
            }
            None => skipped.push(claim.name.clone()),
        }
    }
    if !skipped.is_empty() {
        checked.faults.push(ClaimFault::Skipped { driver: driver.clone(), claims: skipped, called: claims.len() });
    }
    checked
}
