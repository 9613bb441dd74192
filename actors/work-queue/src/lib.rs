//! A queue of keys that need work, such as the pods whose status has to be written, or the pools whose slices have to be published.
//! Pure.
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
//! does not shorten the backoff, because the next attempt uses the newest state. [`WorkQueue::add_at`] does, down to the delay that the
//! [failure](Outcome::Retry) requires. The queue reads no clock and starts no task. `docs/decisions/work-queue.md` compares it with the
//! scheduler of kube-runtime.
//!
//! ```
//! use std::time::Duration;
//!
//! use podwright_model::time::Time;
//! use podwright_work_queue::{Backoff, Outcome, Urgency, WorkQueue};
//!
//! let mut queue = WorkQueue::new(Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) });
//! queue.add(&"web", Urgency::Normal);
//! let now = Time::from_secs(10);
//! assert_eq!(queue.take(now), Some("web"));
//! queue.done(&"web", Outcome::Retry { at_least: Duration::ZERO }, now);
//! assert_eq!((queue.take(now), queue.next_due()), (None, Some(Time::from_secs(11))));
//! ```
//!
//! # Arrows
//!
//! The crate uses `podwright-model` for the times. The parts of a node, the controllers and the publisher of slices use the crate.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use foldhash::fast::FixedState;
use podwright_model::time::Time;

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
        /// The shortest delay: requested by the server, or set by the caller. No addition shortens it.
        at_least: Duration,
    },
    /// The work waits for something that takes this long. The key is ready again then, or when [`WorkQueue::add_at`] makes it ready. That
    /// is no failure and no success.
    Wait(Duration),
}

/// The numbers of a queue at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueNumbers {
    /// The number of keys that wait for a worker. Keys with a delay are not counted.
    pub depth: u64,
    /// How often a key was added, also after a delay. A key that is added twice before it is taken counts once.
    pub adds: u64,
    /// The number of delays after a failure.
    pub retries: u64,
    /// The sum of the durations of all work that runs.
    pub unfinished: Duration,
    /// The duration of the work that has run longest.
    pub longest: Duration,
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
    /// How often a key was taken.
    taken: u64,
    /// How often the work on a key failed.
    retries: u64,
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
    /// `since` is the time that the addition named, or the end of the backoff.
    Ready {
        urgency: Urgency,
        number: u64,
        since: Option<Time>,
    },
    Delayed {
        until: Time,
        number: u64,
        urgency: Urgency,
        delay: Delay,
    },
    Active {
        again: Option<Again>,
        ready_since: Option<Time>,
        since: Time,
    },
}

/// What delays a key.
#[derive(Clone, Copy, Debug)]
enum Delay {
    /// An addition for a later time. Each earlier addition ends it.
    Addition,
    /// Work that has not succeeded. Only an addition with a time ends it earlier, and not before this time.
    Work { not_before: Time },
}

impl Delay {
    /// When an addition for a time makes the key ready.
    fn allows(self, at: Time) -> Time {
        match self {
            Delay::Addition => at,
            Delay::Work { not_before } => at.max(not_before),
        }
    }
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
            taken: 0,
            retries: 0,
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
            None => self.make_ready(key, urgency, Failures::NONE, None),
            Some(State::Ready { urgency: old, number, since }) if urgency < old => {
                self.ready.remove(&(old, number));
                self.ready.insert((urgency, number), key.clone());
                self.set(key, State::Ready { urgency, number, since });
            }
            Some(State::Ready { .. }) => {}
            Some(State::Delayed { until, number, urgency: old, delay: delay @ Delay::Work { .. } }) => {
                self.set(key, State::Delayed { until, number, urgency: old.min(urgency), delay });
            }
            Some(State::Delayed { until, number, urgency: old, delay: Delay::Addition }) => {
                self.delayed.remove(&(until, number));
                self.make_ready(key, urgency.min(old), self.failures_of(key), None);
            }
            Some(State::Active { again, ready_since, since }) => {
                let again = again.map_or(Again { urgency, by: None, is_now: true }, |old| Again {
                    urgency: old.urgency.min(urgency),
                    is_now: true,
                    ..old
                });
                self.set(key, State::Active { again: Some(again), ready_since, since });
            }
        }
    }

    /// Adds a key with normal urgency, so that it is ready at a time, or makes it ready by that time. Also ends its backoff then, but not
    /// before the shortest delay of its last failure.
    pub fn add_at(&mut self, key: &K, at: Time) {
        match self.keys.get(key).map(|entry| entry.state) {
            None => self.delay(key, at, Urgency::Normal, Failures::NONE, Delay::Addition),
            Some(State::Ready { .. }) => {}
            Some(State::Delayed { until, number, urgency, delay }) => {
                let at = delay.allows(at);
                if at < until {
                    self.delayed.remove(&(until, number));
                    self.delay(key, at, urgency, self.failures_of(key), delay);
                }
            }
            Some(State::Active { again, ready_since, since }) => {
                let old = again.unwrap_or(Again { urgency: Urgency::Normal, by: None, is_now: false });
                let again = Again { by: Some(old.by.map_or(at, |by| by.min(at))), ..old };
                self.set(key, State::Active { again: Some(again), ready_since, since });
            }
        }
    }

    /// The next key to work on. The caller must report the end of the work with [`done`](WorkQueue::done).
    pub fn take(&mut self, now: Time) -> Option<K> {
        while let Some(due) = self.delayed.first_entry().filter(|due| due.key().0 <= now) {
            let key = due.remove();
            if let Some(&QueueEntry { state: State::Delayed { urgency, until, .. }, failures }) = self.keys.get(&key) {
                self.make_ready(&key, urgency, failures, Some(until));
            }
        }
        let (_, key) = self.ready.pop_first()?;
        let ready_since = match self.keys.get(&key).map(|entry| entry.state) {
            Some(State::Ready { since, .. }) => since,
            Some(State::Delayed { .. } | State::Active { .. }) | None => None,
        };
        self.set(&key, State::Active { again: None, ready_since, since: now });
        self.active += 1;
        self.taken += 1;
        Some(key)
    }

    /// Ends the work on a key that was [taken](WorkQueue::take).
    pub fn done(&mut self, key: &K, outcome: Outcome, now: Time) {
        let Some(&QueueEntry { state: State::Active { again, .. }, failures }) = self.keys.get(key) else { return };
        self.active -= 1;
        match (outcome, again) {
            (Outcome::Finished, None) => {
                self.keys.remove(key);
            }
            (Outcome::Finished, Some(Again { urgency, by: Some(by), is_now: false })) => {
                self.delay(key, by, urgency, Failures::NONE, Delay::Addition);
            }
            (Outcome::Finished, Some(again)) => self.make_ready(key, again.urgency, Failures::NONE, Some(now)),
            (Outcome::Wait(wait), again) => self.delay_again(key, again, now + wait, now, failures),
            (Outcome::Retry { at_least }, again) => {
                self.retries += 1;
                let failures = failures.with_one_more(now);
                let until = now + self.backoff.after(failures.count).max(at_least).max(self.pause(now));
                self.delay_again(key, again, until, now + at_least, failures);
            }
        }
    }

    /// Ends the work on all keys as failed, because nobody works on them any more.
    pub fn retry_active(&mut self, at_least: Duration, now: Time) {
        let is_active = |entry: &QueueEntry| matches!(entry.state, State::Active { .. });
        let active = self.keys.iter().filter(|(_, entry)| is_active(entry)).map(|(key, _)| key.clone());
        for key in active.collect::<Vec<_>>() {
            self.done(&key, Outcome::Retry { at_least }, now);
        }
    }

    /// Makes each delayed key ready, because the clock was set, so that the delays are wrong, also those that failures require. The
    /// failures of a key stay.
    pub fn make_all_ready(&mut self) {
        self.paced = Time::ZERO;
        for key in std::mem::take(&mut self.delayed).into_values() {
            if let Some(&QueueEntry { state: State::Delayed { urgency, .. }, failures }) = self.keys.get(&key) {
                self.make_ready(&key, urgency, failures, None);
            }
        }
        for entry in self.keys.values_mut() {
            if let State::Active { again: Some(again), .. } = &mut entry.state {
                again.is_now = true;
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

    /// How long a key that is worked on has waited since the time that its addition named, or since the end of its backoff. `None`
    /// if it was added without a time.
    pub fn waited(&self, key: &K) -> Option<Duration> {
        match self.keys.get(key)?.state {
            State::Active { ready_since, since, .. } => Some(since.since(ready_since?)),
            State::Ready { .. } | State::Delayed { .. } => None,
        }
    }

    /// How long a key has been worked on. `None` if nobody works on it.
    pub fn worked(&self, key: &K, now: Time) -> Option<Duration> {
        match self.keys.get(key)?.state {
            State::Active { since, .. } => Some(now.since(since)),
            State::Ready { .. } | State::Delayed { .. } => None,
        }
    }

    /// The numbers of the queue for metrics. This reads each key.
    pub fn numbers(&self, now: Time) -> QueueNumbers {
        let due = self.delayed.range(..=(now, u64::MAX)).count();
        let mut numbers = QueueNumbers { depth: (self.ready.len() + due) as u64, ..QueueNumbers::default() };
        let mut again = 0;
        for entry in self.keys.values() {
            if let State::Active { again: next, since, .. } = entry.state {
                let worked = now.since(since);
                numbers.unfinished += worked;
                numbers.longest = numbers.longest.max(worked);
                again += u64::from(next.is_some_and(|next| next.is_now || next.by.is_some_and(|by| by <= now)));
            }
        }
        numbers.adds = self.taken + numbers.depth + again;
        numbers.retries = self.retries;
        numbers
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

    fn delay(&mut self, key: &K, until: Time, urgency: Urgency, failures: Failures, delay: Delay) {
        let number = self.number();
        self.delayed.insert((until, number), key.clone());
        let state = State::Delayed { until, number, urgency, delay };
        self.keys.insert(key.clone(), QueueEntry { state, failures });
    }

    /// Delays a key whose work has not succeeded. The additions during the work may make it ready earlier, but not before a time.
    fn delay_again(&mut self, key: &K, again: Option<Again>, until: Time, not_before: Time, failures: Failures) {
        let delay = Delay::Work { not_before };
        let until = again.and_then(|again| again.by).map_or(until, |by| delay.allows(by).min(until));
        let urgency = again.map_or(Urgency::Normal, |again| again.urgency);
        self.delay(key, until, urgency, failures, delay);
    }

    fn failures_of(&self, key: &K) -> Failures {
        self.keys.get(key).map_or(Failures::NONE, |entry| entry.failures)
    }

    fn make_ready(&mut self, key: &K, urgency: Urgency, failures: Failures, since: Option<Time>) {
        let number = self.number();
        self.ready.insert((urgency, number), key.clone());
        self.keys.insert(key.clone(), QueueEntry { state: State::Ready { urgency, number, since }, failures });
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
mod tests;
