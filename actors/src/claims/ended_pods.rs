//! The pods that have ended without their workers, while they refer to claims: pods that were deleted while no agent ran, or that only
//! the runtime knew. Pure.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use foldhash::fast::FixedState;

use crate::ids::PodUid;
use crate::time::Time;

/// The time between two tries to release the claims of a pod (upstream `defaultReconcilePeriod`, kubelet 1.36).
const RECONCILE_PERIOD: Duration = Duration::from_secs(60);

/// The pods that have ended without their workers.
#[derive(Debug, Default)]
pub(super) struct EndedPods {
    pods: BTreeMap<PodUid, Release>,
    /// The pods that were released since the last pass.
    released: Vec<PodUid>,
}

/// The release of the claims of a pod.
#[derive(Clone, Copy, Debug)]
enum Release {
    /// A try runs. `again` is whether another one follows at once if it fails.
    Running { again: bool },
    /// The last try has failed.
    Waiting { next: Time },
}

impl EndedPods {
    /// A pass over the pods that refer to claims. Returns the pods to release now, and those that were released since the last pass.
    pub(super) fn pass(
        &mut self,
        held: Vec<PodUid>,
        is_active: &dyn Fn(&PodUid) -> bool,
        now: Time,
    ) -> (Vec<PodUid>, Vec<PodUid>) {
        // A worker may have released the claims of a pod in the meantime.
        let held_uids: HashSet<_, FixedState> = held.iter().collect();
        self.pods.retain(|uid, _| held_uids.contains(uid));
        let may_try = |uid: &PodUid| match self.pods.get(uid) {
            None => true,
            Some(Release::Waiting { next }) => *next <= now,
            Some(Release::Running { .. }) => false,
        };
        let pods: Vec<_> = held.into_iter().filter(|uid| !is_active(uid) && may_try(uid)).collect();
        self.pods.extend(pods.iter().map(|uid| (uid.clone(), Release::Running { again: false })));
        (pods, std::mem::take(&mut self.released))
    }

    /// A try has ended. Returns whether a pass should follow at once: to report the release, or to try again.
    pub(super) fn tried(&mut self, uid: PodUid, is_released: bool, now: Time) -> bool {
        let again = matches!(self.pods.get(&uid), Some(Release::Running { again: true }));
        if is_released {
            self.pods.remove(&uid);
            self.released.push(uid);
        } else {
            let next = if again { now } else { now + RECONCILE_PERIOD };
            self.pods.insert(uid, Release::Waiting { next });
        }
        is_released || again
    }

    /// A driver that the releases of these pods lack is back.
    pub(super) fn try_again(&mut self, pods: &[PodUid], now: Time) {
        for uid in pods {
            match self.pods.get_mut(uid) {
                Some(Release::Running { again }) => *again = true,
                Some(Release::Waiting { next }) => *next = now,
                None => {}
            }
        }
    }

    /// The pods that still refer to claims, each with the time of the next try, or `None` while a try runs.
    pub(super) fn waiting(&self) -> Vec<(PodUid, Option<Time>)> {
        let next = |release: &Release| match release {
            Release::Running { .. } => None,
            Release::Waiting { next } => Some(*next),
        };
        self.pods.iter().map(|(uid, release)| (uid.clone(), next(release))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(ended: &mut EndedPods, held: &[&str], second: u64) -> (usize, usize) {
        let held = held.iter().map(|uid| (*uid).into()).collect();
        let (pods, released) = ended.pass(held, &|uid| *uid == "active".into(), Time::from_secs(second));
        (pods.len(), released.len())
    }

    #[test]
    fn failed_release_is_tried_after_60_seconds_or_when_its_driver_is_back() {
        let (mut ended, at, uid) = (EndedPods::default(), Time::from_secs, PodUid::from("a"));
        assert_eq!(pass(&mut ended, &["a", "active"], 0), (1, 0));
        assert_eq!(pass(&mut ended, &["a"], 100), (0, 0), "the try runs");
        assert!(!ended.tried(uid.clone(), false, at(100)));
        assert_eq!(ended.waiting(), [(uid.clone(), Some(at(160)))]);
        assert_eq!([159, 160].map(|second| pass(&mut ended, &["a"], second)), [(0, 0), (1, 0)]);
        assert!(!ended.tried(uid.clone(), false, at(161)));
        ended.try_again(std::slice::from_ref(&uid), at(170));
        assert_eq!(pass(&mut ended, &["a"], 170), (1, 0));
        // The driver comes back while the try runs.
        ended.try_again(std::slice::from_ref(&uid), at(171));
        assert!(ended.tried(uid.clone(), false, at(172)));
        assert_eq!(pass(&mut ended, &["a"], 172), (1, 0));
        assert!(ended.tried(uid, true, at(173)));
        assert_eq!(pass(&mut ended, &[], 174), (0, 1));
        assert_eq!(pass(&mut ended, &[], 175), (0, 0));
    }
}
