//! The operations on claims that pods wait for: to explain the waits, and to end them when a driver is back or a claim is released.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use podwright_metrics::ClaimOperation;

use super::error::{Cause, ClaimsError};
use crate::ids::{ClaimName, DriverName, PodUid};
use crate::ports::ResourceWait;
use crate::time::Time;

/// The operations that have not succeeded yet, by pod.
#[derive(Debug, Default)]
pub(super) struct Tries {
    pods: HashMap<PodUid, PodTries, FixedState>,
}

#[derive(Debug)]
struct PodTries {
    operation: ClaimOperation,
    /// When the first try began.
    since: Time,
    tries: u32,
    /// Why the last try failed.
    causes: Vec<Cause>,
    /// The changes since the last try began, which the try may have missed.
    changes: Vec<UnblockingChange>,
}

/// A change after which a failed try may succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnblockingChange {
    /// A driver can be called.
    DriverUsable(DriverName),
    /// A pod no longer refers to a claim.
    ClaimReleased(ClaimName),
}

impl UnblockingChange {
    /// Whether a try that failed for this cause may succeed after the change.
    fn ends(&self, cause: &Cause) -> bool {
        match self {
            UnblockingChange::DriverUsable(driver) => cause.driver.as_ref() == Some(driver),
            UnblockingChange::ClaimReleased(claim) => cause.driver.is_none() && cause.claim.as_ref() == Some(claim),
        }
    }
}

impl Tries {
    /// A try has begun.
    pub(super) fn begun(&mut self, uid: &PodUid, operation: ClaimOperation, now: Time) {
        let new = || PodTries { operation, since: now, tries: 0, causes: Vec::new(), changes: Vec::new() };
        let tries = self.pods.entry(uid.clone()).or_insert_with(new);
        if tries.operation != operation {
            *tries = new();
        }
        tries.changes.clear();
    }

    /// A try has ended. Returns whether the next one should follow at once, because the cause of its failure may have gone meanwhile.
    pub(super) fn ended(&mut self, uid: &PodUid, operation: ClaimOperation, result: &Result<(), ClaimsError>) -> bool {
        let Err(error) = result else {
            self.pods.remove(uid);
            return false;
        };
        let Some(tries) = self.pods.get_mut(uid).filter(|tries| tries.operation == operation) else { return false };
        tries.tries = tries.tries.saturating_add(1);
        tries.causes = error.causes();
        tries.causes.iter().any(|cause| tries.changes.iter().any(|change| change.ends(cause)))
    }

    /// A change has happened. Returns the pods whose last try may succeed now.
    pub(super) fn unblocked_by(&mut self, change: UnblockingChange) -> Vec<PodUid> {
        for tries in self.pods.values_mut().filter(|tries| !tries.changes.contains(&change)) {
            tries.changes.push(change.clone());
        }
        let waits = |tries: &PodTries| tries.causes.iter().any(|cause| change.ends(cause));
        self.pods.iter().filter(|(_, tries)| waits(tries)).map(|(uid, _)| uid.clone()).collect()
    }

    /// The waits of a pod: why its last try failed, and what the current one waits for. `running` has the claims of the current try
    /// with the drivers that have not answered, or without a driver if an operation of another pod on the claim comes first.
    pub(super) fn waits(&self, uid: &PodUid, running: &[(ClaimName, Option<DriverName>)]) -> Vec<ResourceWait> {
        let Some(pod) = self.pods.get(uid) else { return Vec::new() };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::fault::ClaimFault;

    fn cam() -> ClaimName {
        ClaimName::new("shop", "cam")
    }

    fn failed(driver: &str) -> Result<(), ClaimsError> {
        Err(ClaimsError::NoDriver { claim: cam(), driver: driver.into() })
    }

    fn usable(driver: &str) -> UnblockingChange {
        UnblockingChange::DriverUsable(driver.into())
    }

    #[test]
    fn pods_that_lack_a_driver_are_tried_again_when_it_is_usable() {
        let (mut tries, prepare) = (Tries::default(), ClaimOperation::Prepare);
        for (pod, driver) in [("a", "gpu"), ("b", "nic")] {
            tries.begun(&pod.into(), prepare, Time::from_secs(1));
            assert!(!tries.ended(&pod.into(), prepare, &failed(driver)));
        }
        assert_eq!(tries.unblocked_by(usable("gpu")), [PodUid::from("a")]);
        assert_eq!(tries.waits(&"b".into(), &[])[0].driver.as_deref(), Some("nic"));
    }

    /// The try found the driver missing, the driver became usable, and then the try failed.
    #[test]
    fn driver_that_becomes_usable_during_a_try_leads_to_another_try() {
        let (mut tries, prepare, pod) = (Tries::default(), ClaimOperation::Prepare, PodUid::from("a"));
        tries.begun(&pod, prepare, Time::from_secs(1));
        assert_eq!(tries.unblocked_by(usable("gpu")), []);
        assert!(tries.ended(&pod, prepare, &failed("gpu")));
        tries.begun(&pod, prepare, Time::from_secs(3));
        assert!(!tries.ended(&pod, prepare, &failed("gpu")));
    }

    /// A pod waits for the release of an earlier claim or of its earlier devices. It is tried again after that release, even if the release
    /// comes before the try has failed, and not after another release.
    #[test]
    fn pod_that_waits_for_a_release_is_tried_again_after_it() {
        let (mut tries, prepare, pod) = (Tries::default(), ClaimOperation::Prepare, PodUid::from("a"));
        let released = |name: &str| UnblockingChange::ClaimReleased(ClaimName::new("shop", name));
        for fault in
            [ClaimFault::Replaced { claim: cam(), old: "u-0".into() }, ClaimFault::Reallocated { claim: cam() }]
        {
            tries.begun(&pod, prepare, Time::from_secs(1));
            assert!(!tries.ended(&pod, prepare, &Err(ClaimsError::Failed(vec![fault.clone()]))));
            assert_eq!(tries.unblocked_by(released("mic")), []);
            assert_eq!(tries.unblocked_by(released("cam")), std::slice::from_ref(&pod));
            tries.begun(&pod, prepare, Time::from_secs(2));
            tries.unblocked_by(released("cam"));
            assert!(tries.ended(&pod, prepare, &Err(ClaimsError::Failed(vec![fault]))));
        }
        tries.begun(&pod, prepare, Time::from_secs(3));
        assert!(!tries.ended(&pod, prepare, &failed("gpu")));
        assert_eq!(tries.unblocked_by(released("cam")), [], "it waits for the driver");
    }
}
