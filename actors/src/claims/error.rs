//! Why the claims of pods cannot be handled.

use super::fault::ClaimFault;
use super::resolve::ClaimRefused;
use crate::ids::{ClaimName, DriverName};
use crate::ports::{ApiError, CheckpointError};
use crate::text::error_chain;

/// Why the claims of a pod could not be prepared or released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimsError {
    /// A claim cannot be read.
    #[error("cannot read ResourceClaim {}", .claim.name())]
    Read {
        /// The claim.
        claim: ClaimName,
        /// The error of the API server.
        source: ApiError,
    },
    /// The pod may not use its claims.
    #[error(transparent)]
    Refused(#[from] ClaimRefused),
    /// A driver of the allocation is not registered with the node.
    #[error(
        "ResourceClaim {} needs DRA driver {driver}, which is not registered on this node: check that the driver runs",
        .claim.name()
    )]
    NoDriver {
        /// The claim.
        claim: ClaimName,
        /// The driver.
        driver: DriverName,
    },
    /// Without an API server, the agent cannot read claims.
    #[error(
        "the pod uses ResourceClaims, and the agent has no API server to read them from: start it with access to one"
    )]
    NoApi,
    /// Drivers or the file failed.
    #[error("{}", join(.0))]
    Failed(Vec<ClaimFault>),
    /// The agent has stopped.
    #[error("the agent has stopped: start it again")]
    Stopped,
}

impl ClaimsError {
    /// The causes, each with the text of its error and, if they are known, its claim and driver.
    pub(super) fn causes(&self) -> Vec<Cause> {
        let alone = |claim: Option<&ClaimName>, driver: Option<&DriverName>, text: String| {
            vec![Cause { claim: claim.cloned(), driver: driver.cloned(), text }]
        };
        let text = || error_chain(self).to_string();
        match self {
            ClaimsError::Failed(faults) => faults.iter().flat_map(of_fault).collect(),
            ClaimsError::NoDriver { claim, driver } => alone(Some(claim), Some(driver), text()),
            ClaimsError::Read { claim, .. } => alone(Some(claim), None, text()),
            ClaimsError::Refused(refused) => alone(refused.claim(), None, text()),
            ClaimsError::NoApi | ClaimsError::Stopped => alone(None, None, text()),
        }
    }
}

/// Why one claim is not ready or not released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    pub(super) claim: Option<ClaimName>,
    pub(super) driver: Option<DriverName>,
    pub(super) text: String,
}

fn of_fault(fault: &ClaimFault) -> Vec<Cause> {
    let cause = |claim: Option<&ClaimName>| Cause {
        claim: claim.cloned(),
        driver: fault.driver().cloned(),
        text: fault.to_string(),
    };
    match fault.claims() {
        [] => vec![cause(None)],
        claims => claims.iter().map(|claim| cause(Some(claim))).collect(),
    }
}

fn join(faults: &[ClaimFault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The claims that an earlier agent recorded cannot be read. The node must not start, because it would forget devices that are
/// prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenClaimsError {
    /// The file cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A record of the file is not valid.
    #[error(
        "the file of claims is damaged: drain the node, remove the file and its journal, and start the agent again"
    )]
    Damaged(#[source] Box<dyn std::error::Error + Send + Sync>),
}
