//! A queue of keys that need work, such as the pods whose status has to be written, or the pools whose slices have to be published.
//!
//! ```text
//!            add                  take                 Finished
//!   (absent) ---> Ready, ordered ------> Active ---------------------> (absent)
//!                    ^                    |  |
//!                    |  due               |  `-- added since take ---> Ready
//!                    `------ Delayed <----'
//!                                 Retry
//! ```
//!
//! A key is at most once in the queue, and only one caller works on it at a time. A key that is added during the work is worked on
//! once more. A key whose work failed waits for its backoff, and for the [pace](Pace) of the failures of all keys. [`WorkQueue::add`]
//! does not shorten the backoff, because the next attempt uses the newest state. [`WorkQueue::add_at`] does. The queue reads no clock
//! and starts no task.

mod work;

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use foldhash::fast::FixedState;

use crate::time::Time;

pub(crate) use work::{Work, work};

/// The order in which keys are taken. Keys of one urgency are taken in the order of their addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Urgency {
    /// Taken before all others.
    High,
    /// Taken when no key of high urgency is ready.
    Normal,
}

/// The delay of a key after consecutive failures: `first`, doubled with each further failure, at most `longest`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first: Duration,
    /// The longest delay.
    pub longest: Duration,
}

impl Backoff {
    /// The delay after this many failures in a row.
    pub fn after(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

/// The rate of the failures of all keys: after `burst` failures, the next attempts follow each other by `every`.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The time between two attempts.
    pub every: Duration,
    /// The number of attempts that need not wait.
    pub burst: u32,
}

/// How the work on a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is left to do. The failures of the key are forgotten.
    Finished,
    /// The work failed. The key is ready again after its backoff, and not before `at_least`.
    Retry {
        /// The delay that the server requested.
        at_least: Duration,
    },
}

/// The queue. Every method is one step; the owner locks it.
#[derive(Debug)]
pub struct WorkQueue<K> {
    keys: HashMap<K, QueueEntry, FixedState>,
    ready: BTreeMap<(Urgency, u64), K>,
    delayed: BTreeMap<(Time, u64), K>,
    /// Numbers the additions, for the order.
    next_number: u64,
    active: usize,
    backoff: Backoff,
    pace: Option<Pace>,
    /// When the next failed key could be tried again if there were no burst.
    paced: Time,
}

#[derive(Clone, Copy, Debug)]
struct QueueEntry {
    state: State,
    failures: Failures,
}

/// The failures of a key without a success in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failures {
    /// The number of failures.
    pub count: u32,
    /// The time of the first failure.
    pub since: Time,
}

impl Failures {
    const NONE: Failures = Failures { count: 0, since: Time::ZERO };

    fn with_one_more(self, now: Time) -> Self {
        let since = if self.count == 0 { now } else { self.since };
        Failures { count: self.count.saturating_add(1), since }
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Ready { urgency: Urgency, number: u64 },
    Delayed { until: Time, number: u64, urgency: Urgency, is_backoff: bool },
    Active { again: Option<Again> },
}

/// The additions of a key during the work on it.
#[derive(Clone, Copy, Debug)]
struct Again {
    urgency: Urgency,
    /// The earliest time that an addition named. `None` if each is for now, and waits for the backoff.
    by: Option<Time>,
    /// Whether an addition is for now.
    is_now: bool,
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    /// An empty queue.
    pub fn new(backoff: Backoff) -> Self {
        WorkQueue {
            keys: HashMap::default(),
            ready: BTreeMap::new(),
            delayed: BTreeMap::new(),
            next_number: 0,
            active: 0,
            backoff,
            pace: None,
            paced: Time::ZERO,
        }
    }

    /// The queue with a rate of the failures of all keys.
    #[must_use]
    pub fn paced(self, pace: Pace) -> Self {
        WorkQueue { pace: Some(pace), ..self }
    }

    /// Adds a key, or raises the urgency of a key that is in the queue. A key that waits for its backoff goes on waiting.
    pub fn add(&mut self, key: &K, urgency: Urgency) {
        let state = self.keys.get(key).map(|entry| entry.state);
        match state {
            None => self.make_ready(key, urgency, Failures::NONE),
            Some(State::Ready { urgency: old, number }) if urgency < old => {
                self.ready.remove(&(old, number));
                self.ready.insert((urgency, number), key.clone());
                self.set(key, State::Ready { urgency, number });
            }
            Some(State::Ready { .. }) => {}
            Some(State::Delayed { until, number, urgency: old, is_backoff: true }) => {
                self.set(key, State::Delayed { until, number, urgency: old.min(urgency), is_backoff: true });
            }
            Some(State::Delayed { until, number, urgency: old, is_backoff: false }) => {
                self.delayed.remove(&(until, number));
                self.make_ready(key, urgency.min(old), self.failures_of(key));
            }
            Some(State::Active { again }) => {
                let again = again.map_or(Again { urgency, by: None, is_now: true }, |old| Again {
                    urgency: old.urgency.min(urgency),
                    is_now: true,
                    ..old
                });
                self.set(key, State::Active { again: Some(again) });
            }
        }
    }

    /// Adds a key with normal urgency, so that it is ready at a time, or makes it ready by that time. Also ends its backoff then.
    pub fn add_at(&mut self, key: &K, at: Time) {
        match self.keys.get(key).map(|entry| entry.state) {
            None => self.delay(key, at, Urgency::Normal, Failures::NONE, false),
            Some(State::Ready { .. }) => {}
            Some(State::Delayed { until, number, urgency, is_backoff }) if at < until => {
                self.delayed.remove(&(until, number));
                self.delay(key, at, urgency, self.failures_of(key), is_backoff);
            }
            Some(State::Delayed { .. }) => {}
            Some(State::Active { again }) => {
                let old = again.unwrap_or(Again { urgency: Urgency::Normal, by: None, is_now: false });
                let again = Again { by: Some(old.by.map_or(at, |by| by.min(at))), ..old };
                self.set(key, State::Active { again: Some(again) });
            }
        }
    }

    /// The next key to work on. The caller must report the end of the work with [`done`](WorkQueue::done).
    pub fn take(&mut self, now: Time) -> Option<K> {
        while let Some(due) = self.delayed.first_entry().filter(|due| due.key().0 <= now) {
            let key = due.remove();
            if let Some(&QueueEntry { state: State::Delayed { urgency, .. }, failures }) = self.keys.get(&key) {
                self.make_ready(&key, urgency, failures);
            }
        }
        let (_, key) = self.ready.pop_first()?;
        self.set(&key, State::Active { again: None });
        self.active += 1;
        Some(key)
    }

    /// Ends the work on a key that was [taken](WorkQueue::take).
    pub fn done(&mut self, key: &K, outcome: Outcome, now: Time) {
        let Some(&QueueEntry { state: State::Active { again }, failures }) = self.keys.get(key) else { return };
        self.active -= 1;
        match (outcome, again) {
            (Outcome::Finished, None) => {
                self.keys.remove(key);
            }
            (Outcome::Finished, Some(Again { urgency, by: Some(by), is_now: false })) => {
                self.delay(key, by, urgency, Failures::NONE, false);
            }
            (Outcome::Finished, Some(again)) => self.make_ready(key, again.urgency, Failures::NONE),
            (Outcome::Retry { at_least }, again) => {
                let failures = failures.with_one_more(now);
                let until = now + self.backoff.after(failures.count).max(at_least).max(self.pause(now));
                let until = again.and_then(|again| again.by).map_or(until, |by| by.min(until));
                let urgency = again.map_or(Urgency::Normal, |again| again.urgency);
                self.delay(key, until, urgency, failures, true);
            }
        }
    }

    /// How long the next attempt waits for those of other keys.
    fn pause(&mut self, now: Time) -> Duration {
        let Some(Pace { every, burst }) = self.pace else { return Duration::ZERO };
        let paced = self.paced.max(now);
        self.paced = paced + every;
        paced.since(now).saturating_sub(every * burst.saturating_sub(1))
    }

    /// Whether a key is ready, and nobody works on it.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When the next delayed key becomes ready. `None` if no key is delayed.
    pub fn next_due(&self) -> Option<Time> {
        self.delayed.first_key_value().map(|((until, _), _)| *until)
    }

    /// The failures of a key, and when the work on it is tried again. The time is `None` while the work is tried again, or when it
    /// is due. `None` for a key whose work has not failed since its last success.
    pub fn failures(&self, key: &K) -> Option<(Failures, Option<Time>)> {
        let QueueEntry { state, failures } = *self.keys.get(key).filter(|entry| entry.failures.count > 0)?;
        let next = match state {
            State::Delayed { until, .. } => Some(until),
            State::Ready { .. } | State::Active { .. } => None,
        };
        Some((failures, next))
    }

    /// The number of keys that are worked on.
    pub fn active(&self) -> usize {
        self.active
    }

    /// Whether the queue has no key, and nobody works on one.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The number of keys in the queue, with those that are worked on.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    fn delay(&mut self, key: &K, until: Time, urgency: Urgency, failures: Failures, is_backoff: bool) {
        let number = self.number();
        self.delayed.insert((until, number), key.clone());
        let state = State::Delayed { until, number, urgency, is_backoff };
        self.keys.insert(key.clone(), QueueEntry { state, failures });
    }

    fn failures_of(&self, key: &K) -> Failures {
        self.keys.get(key).map_or(Failures::NONE, |entry| entry.failures)
    }

    fn make_ready(&mut self, key: &K, urgency: Urgency, failures: Failures) {
        let number = self.number();
        self.ready.insert((urgency, number), key.clone());
        self.keys.insert(key.clone(), QueueEntry { state: State::Ready { urgency, number }, failures });
    }

    fn set(&mut self, key: &K, state: State) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.state = state;
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(8) };
    const RETRY: Outcome = Outcome::Retry { at_least: Duration::ZERO };

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    #[test]
    fn urgent_keys_come_first_and_others_in_the_order_of_their_addition() {
        let mut queue = WorkQueue::new(BACKOFF);
        for key in ["a", "b", "c"] {
            queue.add(&key, Urgency::Normal);
        }
        queue.add(&"c", Urgency::High);
        queue.add(&"c", Urgency::Normal);
        let order: Vec<_> = std::iter::from_fn(|| queue.take(at(0))).collect();
        assert_eq!(order, ["c", "a", "b"]);
        assert_eq!(queue.active(), 3);
    }

    #[test]
    fn a_key_that_is_added_during_its_work_is_worked_on_once_more() {
        let mut queue = WorkQueue::new(BACKOFF);
        queue.add(&"a", Urgency::Normal);
        assert_eq!(queue.take(at(0)), Some("a"));
        queue.add(&"a", Urgency::Normal);
        queue.add(&"a", Urgency::High);
        assert_eq!(queue.take(at(0)), None, "one caller works on a key at a time");
        queue.done(&"a", Outcome::Finished, at(0));
        assert_eq!(queue.take(at(0)), Some("a"));
        queue.done(&"a", Outcome::Finished, at(0));
        assert_eq!((queue.take(at(0)), queue.len(), queue.active()), (None, 0, 0));
    }

    #[test]
    fn the_backoff_doubles_up_to_its_limit_and_an_addition_does_not_shorten_it() {
        let mut queue = WorkQueue::new(BACKOFF);
        queue.add(&"a", Urgency::Normal);
        let mut now = at(0);
        for seconds in [1, 2, 4, 8, 8] {
            assert_eq!(queue.take(now), Some("a"));
            queue.done(&"a", RETRY, now);
            queue.add(&"a", Urgency::High);
            assert_eq!(queue.next_due(), Some(now + Duration::from_secs(seconds)));
            assert_eq!(queue.take(now), None);
            now = now + Duration::from_secs(seconds);
        }
        assert_eq!(queue.take(now), Some("a"));
        queue.done(&"a", Outcome::Finished, now);
        queue.add(&"a", Urgency::Normal);
        assert_eq!(queue.take(now), Some("a"), "a success ends the backoff");
        queue.done(&"a", Outcome::Retry { at_least: Duration::from_secs(60) }, now);
        assert_eq!(queue.next_due(), Some(now + Duration::from_secs(60)), "the server requested a longer delay");
    }

    #[test]
    fn failures_are_counted_since_the_first_one_until_a_success() {
        let mut queue = WorkQueue::new(BACKOFF);
        queue.add(&"a", Urgency::Normal);
        assert_eq!(queue.failures(&"a"), None, "it was not tried");
        for (now, next) in [(5, 6), (6, 8)] {
            queue.take(at(now));
            queue.done(&"a", RETRY, at(now));
            let failures = Failures { count: now as u32 - 4, since: at(5) };
            assert_eq!(queue.failures(&"a"), Some((failures, Some(at(next)))));
        }
        queue.take(at(8));
        assert_eq!(queue.failures(&"a"), Some((Failures { count: 2, since: at(5) }, None)), "the third try runs");
        queue.done(&"a", Outcome::Finished, at(8));
        assert_eq!(queue.failures(&"a"), None);
    }

    #[test]
    fn a_key_is_ready_at_the_earliest_of_its_times() {
        let mut queue = WorkQueue::new(BACKOFF);
        for (key, seconds) in [("a", 30), ("b", 2), ("a", 1), ("a", 60)] {
            queue.add_at(&key, at(seconds));
        }
        queue.add_at(&"c", at(9));
        queue.add(&"c", Urgency::Normal);
        assert_eq!((queue.take(at(0)), queue.take(at(0))), (Some("c"), None), "an addition for now ends a delay");
        assert_eq!(queue.next_due(), Some(at(1)));
        assert_eq!([queue.take(at(60)), queue.take(at(60)), queue.take(at(60))], [Some("a"), Some("b"), None]);

        queue.add_at(&"a", at(70));
        queue.add_at(&"a", at(65));
        queue.done(&"a", Outcome::Finished, at(61));
        assert_eq!(queue.next_due(), Some(at(65)), "the times of the additions during the work");
    }

    #[test]
    fn an_addition_with_a_time_ends_a_longer_backoff() {
        let mut queue = WorkQueue::new(BACKOFF);
        queue.add(&"a", Urgency::Normal);
        queue.take(at(0));
        queue.done(&"a", Outcome::Retry { at_least: Duration::from_secs(50) }, at(0));
        queue.add_at(&"a", at(60));
        assert_eq!(queue.next_due(), Some(at(50)));
        queue.add_at(&"a", at(20));
        assert_eq!(queue.take(at(20)), Some("a"));
        queue.add_at(&"a", at(21));
        queue.done(&"a", RETRY, at(20));
        assert_eq!((queue.next_due(), queue.failures(&"a").unwrap().0.count), (Some(at(21)), 2));
    }

    #[test]
    fn failures_of_many_keys_share_a_pace() {
        let pace = Pace { every: Duration::from_millis(100), burst: 100 };
        let mut queue = WorkQueue::new(BACKOFF).paced(pace);
        let mut delay = |key: u32| {
            queue.add(&key, Urgency::Normal);
            queue.take(at(0));
            queue.done(&key, RETRY, at(0));
            let (_, next) = queue.failures(&key).unwrap();
            next.unwrap().since(at(0))
        };
        let delays: Vec<_> = (0..130).map(&mut delay).collect();
        assert_eq!((delays[0], delays[99], delays[109]), (BACKOFF.first, BACKOFF.first, BACKOFF.first));
        assert_eq!(delays[129] - delays[128], pace.every);
        assert_eq!(delays[129], pace.every * 30);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8, Urgency),
        AddIn(u8, u64),
        Take,
        Done(u8, Outcome),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let urgency = prop_oneof![Just(Urgency::High), Just(Urgency::Normal)];
        let outcome = prop_oneof![Just(Outcome::Finished), Just(RETRY)];
        let step = prop_oneof![
            (0..4u8, urgency).prop_map(|(key, urgency)| Step::Add(key, urgency)),
            (0..4u8, 0..9u64).prop_map(|(key, seconds)| Step::AddIn(key, seconds)),
            Just(Step::Take),
            (0..4u8, outcome).prop_map(|(key, outcome)| Step::Done(key, outcome)),
            (0..5u64).prop_map(Step::Wait),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        /// Each added key is taken once time passes and no work fails. A key is never taken while another caller works on it.
        #[test]
        fn no_addition_is_lost(steps in steps()) {
            let mut queue = WorkQueue::new(BACKOFF);
            let mut now = at(0);
            let mut active: HashMap<u8, bool> = HashMap::new();
            let mut owed: HashMap<u8, bool> = HashMap::new();
            for step in steps {
                match step {
                    Step::Add(key, urgency) => {
                        queue.add(&key, urgency);
                        owed.insert(key, true);
                    }
                    Step::AddIn(key, seconds) => {
                        queue.add_at(&key, now + Duration::from_secs(seconds));
                        owed.insert(key, true);
                    }
                    Step::Take => {
                        if let Some(key) = queue.take(now) {
                            prop_assert!(!active.insert(key, true).unwrap_or(false), "key {key} was taken twice");
                            owed.insert(key, false);
                        }
                    }
                    Step::Done(key, outcome) => {
                        if active.insert(key, false).unwrap_or(false) {
                            queue.done(&key, outcome, now);
                            if outcome != Outcome::Finished {
                                owed.insert(key, true);
                            }
                        }
                    }
                    Step::Wait(seconds) => now = now + Duration::from_secs(seconds),
                }
                prop_assert_eq!(queue.active(), active.values().filter(|active| **active).count());
            }
            for key in active.iter().filter(|(_, active)| **active).map(|(key, _)| *key).collect::<Vec<_>>() {
                queue.done(&key, Outcome::Finished, now);
            }
            now = now + Duration::from_secs(100);
            while let Some(key) = queue.take(now) {
                owed.insert(key, false);
                queue.done(&key, Outcome::Finished, now);
            }
            prop_assert!(owed.values().all(|owed| !owed), "additions without work: {:?}", owed);
            prop_assert_eq!(queue.len(), 0);
        }
    }
}
