//! Which waits have become long enough to be told of.

use std::collections::HashMap;
use std::time::Duration;

use super::wait::{Wait, What};
use crate::ids::PodUid;
use crate::time::Time;

/// Remembers of which waits was told: each is told of once.
#[derive(Debug)]
pub struct Patience {
    after: Duration,
    waits: HashMap<PodUid, Watched>,
}

/// The wait of a pod as of the last look.
#[derive(Debug)]
struct Watched {
    what: What,
    name: String,
    /// Since when a hook fails.
    failing: Option<Time>,
    since: Time,
    looked: Time,
    /// Since when it waits for nothing.
    rests: Option<Time>,
    told: bool,
}

impl Patience {
    /// A wait is told of after so long; zero tells of none.
    pub fn new(after: Duration) -> Self {
        Patience { after, waits: HashMap::new() }
    }

    /// After how long a wait is told of, if at all.
    pub fn limit(&self) -> Option<Duration> {
        (!self.after.is_zero()).then_some(self.after)
    }

    /// Whether a pod is worth a look now: one that waits is looked at ten times until its time is over, and as often after.
    pub fn wants_look(&self, uid: &PodUid, now: Time) -> bool {
        self.waits.get(uid).is_none_or(|watched| now.since(watched.looked) >= self.after / 10)
    }

    /// Looks at the nearest wait of a pod; true once per wait, when it has lasted long enough and tells of trouble.
    ///
    /// A wait whose start is not known counts from the first look at it. It is another wait if it is for something else,
    /// not if what it waits for was tried again, or ended again as a crash does. While a hook fails, `failing` tells since when:
    /// then all is one wait, from the first failure on, whether the hook waits to be called again, or waits itself.
    pub fn is_over(&mut self, uid: &PodUid, wait: &Wait, failing: Option<Time>, now: Time) -> bool {
        if wait.what.is_rest() {
            self.rest(uid, now);
            return false;
        }
        let new = || {
            let since = [failing, wait.since].into_iter().flatten().min().unwrap_or(now);
            Watched {
                what: wait.what,
                name: wait.on.name.clone(),
                failing,
                since,
                looked: now,
                rests: None,
                told: false,
            }
        };
        let watched = self.waits.entry(uid.clone()).or_insert_with(new);
        let fails_on = watched.failing.is_some() && watched.failing == failing;
        let is_same = fails_on || (watched.what == wait.what && watched.name == wait.on.name);
        if !is_same {
            *watched = new();
        }
        watched.failing = failing;
        watched.looked = now;
        watched.rests = None;
        if watched.told || now.since(watched.since) < self.after || !wait.is_trouble(now) {
            return false;
        }
        watched.told = true;
        true
    }

    /// The pod waits for nothing. Once that has lasted for a tenth of the limit its next wait counts anew: a container that
    /// runs for moments between its crashes is one wait.
    pub fn rest(&mut self, uid: &PodUid, now: Time) {
        let Some(watched) = self.waits.get_mut(uid) else { return };
        if now.since(*watched.rests.get_or_insert(now)) >= self.after / 10 {
            self.waits.remove(uid);
        }
    }

    /// Forgets the pods of which `keep` says no.
    pub fn retain(&mut self, keep: impl Fn(&PodUid) -> bool) {
        self.waits.retain(|uid, _| keep(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::wait::{LifecycleHook, On, Subject};

    fn wait(what: What, name: &str, since: u64) -> Wait {
        Wait::new(what, On::new(Subject::Container, name), "", "").since(Time::from_secs(1000 + since))
    }

    #[test]
    fn each_wait_is_told_of_once() {
        let mut patience = Patience::new(Duration::from_secs(300));
        let uid = PodUid::new("u");
        let mut is_over = |wait: &Wait, at: u64| patience.is_over(&uid, wait, None, Time::from_secs(1000 + at));
        let image = wait(What::Image, "a", 0);
        assert_eq!([0, 299, 300, 301, 9000].map(|at| is_over(&image, at)), [false, false, true, false, false]);
        // Tried again it is the same; for another it is not.
        assert!(!is_over(&wait(What::Image, "a", 8000), 9001));
        assert!(is_over(&wait(What::Image, "b", 8000), 9001));
        // Once all was well, the next one counts anew.
        let rest = wait(What::Nothing, "", 0);
        assert!(!is_over(&rest, 9002));
        assert!(!is_over(&wait(What::Image, "b", 8000), 9003), "it was well for a moment");
        assert!(!is_over(&rest, 9004) && !is_over(&rest, 9034));
        assert!(is_over(&wait(What::Image, "b", 8000), 9035));
    }

    // A hook that takes long before it fails is looked at while it waits and while it is called. Each try of a container that
    // crashes over and over is a failure of its own.
    #[test]
    fn a_failure_is_told_of_once_however_its_tries_look() {
        let mut patience = Patience::new(Duration::from_secs(300));
        let uid = PodUid::new("u");
        let mut told = |from: u64, failing: Option<u64>| {
            let looks = (from..from + 2000).step_by(30).filter(|at| {
                let call = wait(What::Volume, "", *at);
                let retry = wait(What::Volume, "data", from);
                let wait = if at % 60 == 0 { retry } else { call };
                let failing = failing.map(|since| Time::from_secs(1000 + since));
                patience.is_over(&uid, &wait, failing, Time::from_secs(1000 + at))
            });
            looks.collect::<Vec<_>>()
        };
        assert_eq!(told(0, Some(0)), [300]);
        assert!(told(3000, Some(3000)).is_empty(), "what fails anew is the same that failed before");
    }

    // What goes on as it should is not told of, however long it takes; what should have ended by itself is.
    #[test]
    fn a_stop_or_a_hook_is_told_of_beyond_its_time() {
        let mut patience = Patience::new(Duration::from_secs(300));
        let mut told_at = |wait: &Wait, uid: &str| {
            let uid = PodUid::new(uid);
            (0..1000).find(|at| patience.is_over(&uid, wait, None, Time::from_secs(1000 + at * 10)))
        };
        let until = |what, next: Option<u64>| wait(what, "a", 0).next(next.map(|next| Time::from_secs(1000 + next)));
        assert_eq!(told_at(&until(What::InitContainer, None), "init"), None);
        assert_eq!(told_at(&until(What::Grace, Some(3600)), "long grace"), Some(361));
        assert_eq!(told_at(&until(What::Grace, Some(30)), "cannot be killed"), Some(30));
        assert_eq!(told_at(&until(What::ContainerStop, Some(600)), "a container"), Some(61));
        assert_eq!(told_at(&until(What::LifecycleHook(LifecycleHook::PreStop), Some(600)), "pre-stop"), Some(61));
        assert_eq!(told_at(&until(What::LifecycleHook(LifecycleHook::PostStart), None), "post-start"), Some(30));
    }
}
