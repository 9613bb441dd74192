//! Ongoing failures, and the health of housekeeping. Parts of the node record them, and `explain` reports them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::ids::PodUid;
use crate::time::Time;

/// How often a housekeeping pass runs (upstream `housekeepingPeriod`, kubelet 1.36).
pub const HOUSEKEEPING_PERIOD: Duration = Duration::from_secs(2);

/// If the last housekeeping pass ended longer ago than this, the node counts as unhealthy. Twice the resync period applies if
/// that is longer (upstream `SyncLoopHealthCheck`, kubelet 1.36).
pub(crate) const MAX_PASS_AGE: Duration = Duration::from_secs(300);

/// An operation that has failed at least once and has not succeeded since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OngoingFailure {
    /// The time of the first failure in the row.
    pub since: Time,
    /// The number of failures in the row.
    pub tries: u32,
    /// The error of the last failure.
    pub error: String,
}

impl OngoingFailure {
    /// Adds one more failure to the row in `failure`, or begins a row.
    pub fn note(failure: &mut Option<OngoingFailure>, error: String, now: Time) {
        let (since, tries) = failure.as_ref().map_or((now, 1), |last| (last.since, last.tries.saturating_add(1)));
        *failure = Some(OngoingFailure { since, tries, error });
    }
}

/// The end of the last housekeeping pass, why passes end early, and what they cannot remove.
#[derive(Debug, Default)]
pub struct PassHealth(Mutex<PassHealthState>);

#[derive(Debug, Default)]
struct PassHealthState {
    last_end: Option<Time>,
    failure: Option<OngoingFailure>,
    leftovers: BTreeMap<PodUid, OngoingFailure>,
}

impl PassHealth {
    /// When the last pass ended, whether or not it failed. `None` before the first one ended.
    pub fn last_end(&self) -> Option<Time> {
        self.0.lock().last_end
    }

    /// Why passes end early, if the last one did.
    pub fn failure(&self) -> Option<OngoingFailure> {
        self.0.lock().failure.clone()
    }

    /// Notes the end of a pass. Returns whether the recorder should note it too: a pass that failed, or the first one
    /// that succeeded after a failure. All other passes are equal.
    pub(crate) fn pass_ended(&self, now: Time, error: Option<String>) -> bool {
        let PassHealthState { last_end, failure, .. } = &mut *self.0.lock();
        *last_end = Some(now);
        let is_notable = failure.is_some() || error.is_some();
        match error {
            None => *failure = None,
            Some(error) => OngoingFailure::note(failure, error, now),
        }
        is_notable
    }

    /// The removed pods whose directory or cgroup cannot be removed, and why.
    pub fn leftovers(&self) -> Vec<(PodUid, OngoingFailure)> {
        self.0.lock().leftovers.iter().map(|(uid, failure)| (uid.clone(), failure.clone())).collect()
    }

    /// Notes the pods of which a pass could not remove everything, with the errors. All other pods have no leftovers.
    pub(crate) fn leftovers_failed(&self, now: Time, errors: impl IntoIterator<Item = (PodUid, String)>) {
        let mut state = self.0.lock();
        let mut before = std::mem::take(&mut state.leftovers);
        for (uid, error) in errors {
            let mut failure = before.remove(&uid);
            OngoingFailure::note(&mut failure, error, now);
            state.leftovers.extend(failure.map(|failure| (uid, failure)));
        }
    }
}
