//! The operations on claims that pods wait for: to explain the waits, and to end them when a driver is back.

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
    /// When each driver became usable, for tries that began before that and fail after it.
    usable: HashMap<DriverName, Time, FixedState>,
}

#[derive(Debug)]
struct PodTries {
    operation: ClaimOperation,
    /// When the first try began.
    since: Time,
    /// When the last try began.
    begin: Time,
    tries: u32,
    /// Why the last try failed.
    causes: Vec<Cause>,
}

impl Tries {
    /// A try has begun.
    pub(super) fn begun(&mut self, uid: &PodUid, operation: ClaimOperation, now: Time) {
        let new = || PodTries { operation, since: now, begin: now, tries: 0, causes: Vec::new() };
        let tries = self.pods.entry(uid.clone()).or_insert_with(new);
        if tries.operation != operation {
            *tries = new();
        }
        tries.begin = now;
    }

    /// A try has ended. Returns whether the next one should follow at once: a driver that the try lacked has become usable meanwhile.
    pub(super) fn ended(&mut self, uid: &PodUid, operation: ClaimOperation, result: &Result<(), ClaimsError>) -> bool {
        let Err(error) = result else {
            self.pods.remove(uid);
            return false;
        };
        let Some(tries) = self.pods.get_mut(uid).filter(|tries| tries.operation == operation) else { return false };
        tries.tries = tries.tries.saturating_add(1);
        tries.causes = error.causes();
        let mut drivers = tries.causes.iter().filter_map(|cause| cause.driver.as_ref());
        drivers.any(|driver| self.usable.get(driver).is_some_and(|at| *at >= tries.begin))
    }

    /// A driver has become usable. Returns the pods whose last try failed because of it.
    pub(super) fn usable(&mut self, driver: &DriverName, now: Time) -> Vec<PodUid> {
        if self.pods.is_empty() {
            // No try runs that could have missed one of these.
            self.usable.clear();
        }
        self.usable.insert(driver.clone(), now);
        let waits = |tries: &PodTries| tries.causes.iter().any(|cause| cause.driver.as_ref() == Some(driver));
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

    fn failed(driver: &str) -> Result<(), ClaimsError> {
        Err(ClaimsError::NoDriver { claim: crate::ids::ClaimName::new("shop", "cam"), driver: driver.into() })
    }

    #[test]
    fn pods_that_lack_a_driver_are_tried_again_when_it_is_usable() {
        let (mut tries, prepare) = (Tries::default(), ClaimOperation::Prepare);
        for (pod, driver) in [("a", "gpu"), ("b", "nic")] {
            tries.begun(&pod.into(), prepare, Time::from_secs(1));
            assert!(!tries.ended(&pod.into(), prepare, &failed(driver)));
        }
        assert_eq!(tries.usable(&"gpu".into(), Time::from_secs(2)), [PodUid::from("a")]);
        assert_eq!(tries.waits(&"b".into(), &[])[0].driver.as_deref(), Some("nic"));
    }

    /// The try found the driver missing, the driver became usable, and then the try failed.
    #[test]
    fn driver_that_becomes_usable_during_a_try_leads_to_another_try() {
        let (mut tries, prepare, pod) = (Tries::default(), ClaimOperation::Prepare, PodUid::from("a"));
        tries.begun(&pod, prepare, Time::from_secs(1));
        assert_eq!(tries.usable(&"gpu".into(), Time::from_secs(2)), []);
        assert!(tries.ended(&pod, prepare, &failed("gpu")));
        tries.begun(&pod, prepare, Time::from_secs(3));
        assert!(!tries.ended(&pod, prepare, &failed("gpu")));
    }
}
