//! Decides which waits have lasted long enough to be reported. Pure.

use std::collections::HashMap;
use std::time::Duration;

use super::wait::{Wait, WaitKind};
use crate::ids::PodUid;
use crate::time::Time;

/// Remembers the waits that were reported, so that each is reported once.
#[derive(Debug)]
pub struct LongWaitReports {
    after: Duration,
    waits: HashMap<PodUid, WatchedWait>,
}

/// The wait of a pod at the last inspection.
#[derive(Debug)]
struct WatchedWait {
    what: WaitKind,
    name: String,
    /// When the hook began to fail.
    failing: Option<Time>,
    since: Time,
    inspected_at: Time,
    /// When the pod began to wait for nothing.
    idle_since: Option<Time>,
    reported: bool,
}

impl LongWaitReports {
    /// Reports waits that are longer than `after`; zero reports none.
    pub fn new(after: Duration) -> Self {
        LongWaitReports { after, waits: HashMap::new() }
    }

    /// The time after which a wait is reported, if any is.
    pub fn limit(&self) -> Option<Duration> {
        (!self.after.is_zero()).then_some(self.after)
    }

    /// Whether a pod is due for an inspection. A waiting pod is inspected ten times within the limit, and as often
    /// after it.
    pub fn is_inspection_due(&self, uid: &PodUid, now: Time) -> bool {
        self.waits.get(uid).is_none_or(|watched| now.since(watched.inspected_at) >= self.after / 10)
    }

    /// Inspects the nearest wait of a pod. Returns true once per wait: when the wait has lasted longer than the limit
    /// and means a failure.
    ///
    /// A wait without a start time counts from its first inspection. A wait for something else is a new wait; a retry
    /// of the same thing is not, nor is a further crash. `failing` is the time at which the hook began to fail. All
    /// waits since then count as one, whether the hook runs or waits for its retry.
    pub fn should_report(&mut self, uid: &PodUid, wait: &Wait, failing: Option<Time>, now: Time) -> bool {
        if wait.what.is_never_reported() {
            self.rest(uid, now);
            return false;
        }
        let new = || {
            let since = [failing, wait.since].into_iter().flatten().min().unwrap_or(now);
            WatchedWait {
                what: wait.what,
                name: wait.on.name.clone(),
                failing,
                since,
                inspected_at: now,
                idle_since: None,
                reported: false,
            }
        };
        let watched = self.waits.entry(uid.clone()).or_insert_with(new);
        let fails_on = watched.failing.is_some() && watched.failing == failing;
        let is_same = fails_on || (watched.what == wait.what && watched.name == wait.on.name);
        if !is_same {
            *watched = new();
        }
        watched.failing = failing;
        watched.inspected_at = now;
        watched.idle_since = None;
        if watched.reported || now.since(watched.since) < self.after || !wait.is_failure(now) {
            return false;
        }
        watched.reported = true;
        true
    }

    /// Records that the pod waits for nothing. If that lasts for a tenth of the limit, the next wait counts as a new
    /// one. A container that runs briefly between its crashes therefore stays one wait.
    pub fn rest(&mut self, uid: &PodUid, now: Time) {
        let Some(watched) = self.waits.get_mut(uid) else { return };
        if now.since(*watched.idle_since.get_or_insert(now)) >= self.after / 10 {
            self.waits.remove(uid);
        }
    }

    /// Removes the pods that `keep` rejects.
    pub fn retain(&mut self, keep: impl Fn(&PodUid) -> bool) {
        self.waits.retain(|uid, _| keep(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::wait::{LifecycleHook, SubjectKind, WaitSubject};

    fn wait(what: WaitKind, name: &str, since: u64) -> Wait {
        Wait::new(what, WaitSubject::new(SubjectKind::Container, name), "", "").since(Time::from_secs(1000 + since))
    }

    #[test]
    fn each_long_wait_is_reported_once() {
        let mut reports = LongWaitReports::new(Duration::from_secs(300));
        let uid = PodUid::new("u");
        let mut is_reported =
            |wait: &Wait, at: u64| reports.should_report(&uid, wait, None, Time::from_secs(1000 + at));
        let image = wait(WaitKind::Image, "a", 0);
        assert_eq!([0, 299, 300, 301, 9000].map(|at| is_reported(&image, at)), [false, false, true, false, false]);
        // A retry is the same wait; a wait for another image is a new one.
        assert!(!is_reported(&wait(WaitKind::Image, "a", 8000), 9001));
        assert!(is_reported(&wait(WaitKind::Image, "b", 8000), 9001));
        // After the pod was healthy, the next wait is a new one.
        let rest = wait(WaitKind::Nothing, "", 0);
        assert!(!is_reported(&rest, 9002));
        assert!(!is_reported(&wait(WaitKind::Image, "b", 8000), 9003), "the pod was healthy only for a short time");
        assert!(!is_reported(&rest, 9004) && !is_reported(&rest, 9034));
        assert!(is_reported(&wait(WaitKind::Image, "b", 8000), 9035));
    }

    // A hook that takes long before it fails is inspected while it waits and while it runs. Each crash of a container
    // is a failure of its own.
    #[test]
    fn a_failing_hook_is_reported_once_over_all_its_waits() {
        let mut reports = LongWaitReports::new(Duration::from_secs(300));
        let uid = PodUid::new("u");
        let mut reported = |from: u64, failing: Option<u64>| {
            let inspections = (from..from + 2000).step_by(30).filter(|at| {
                let call = wait(WaitKind::Volume, "", *at);
                let retry = wait(WaitKind::Volume, "data", from);
                let wait = if at % 60 == 0 { retry } else { call };
                let failing = failing.map(|since| Time::from_secs(1000 + since));
                reports.should_report(&uid, &wait, failing, Time::from_secs(1000 + at))
            });
            inspections.collect::<Vec<_>>()
        };
        assert_eq!(reported(0, Some(0)), [300]);
        assert!(reported(3000, Some(3000)).is_empty(), "a wait that was reported is not reported again");
    }

    // Normal work is not reported, however long it takes. A stop or a hook is reported when it exceeds its time limit.
    #[test]
    fn a_stop_or_hook_is_reported_beyond_its_time_limit() {
        let mut reports = LongWaitReports::new(Duration::from_secs(300));
        let mut reported_at = |wait: &Wait, uid: &str| {
            let uid = PodUid::new(uid);
            (0..1000).find(|at| reports.should_report(&uid, wait, None, Time::from_secs(1000 + at * 10)))
        };
        let until = |what, next: Option<u64>| wait(what, "a", 0).next(next.map(|next| Time::from_secs(1000 + next)));
        assert_eq!(reported_at(&until(WaitKind::InitContainer, None), "init"), None);
        assert_eq!(reported_at(&until(WaitKind::Grace, Some(3600)), "long grace"), Some(361));
        assert_eq!(reported_at(&until(WaitKind::Grace, Some(30)), "cannot be killed"), Some(30));
        assert_eq!(reported_at(&until(WaitKind::ContainerStop, Some(600)), "a container"), Some(61));
        assert_eq!(
            reported_at(&until(WaitKind::LifecycleHook(LifecycleHook::PreStop), Some(600)), "pre-stop"),
            Some(61)
        );
        assert_eq!(
            reported_at(&until(WaitKind::LifecycleHook(LifecycleHook::PostStart), None), "post-start"),
            Some(30)
        );
    }
}
