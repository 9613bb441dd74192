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

/// Who worked on the keys is gone.
#[test]
fn keys_whose_work_was_dropped_are_tried_again_as_after_a_failure() {
    let mut queue = WorkQueue::new(BACKOFF);
    for key in ["a", "b", "c"] {
        queue.add(&key, Urgency::Normal);
    }
    assert_eq!((queue.take(at(5)), queue.take(at(5))), (Some("a"), Some("b")));
    queue.add_at(&"b", at(7));
    queue.retry_active(Duration::from_secs(3), at(5));
    assert_eq!((queue.active(), queue.take(at(5))), (0, Some("c")), "nobody has worked on it");
    assert_eq!((queue.take(at(6)), queue.take(at(7)), queue.take(at(7))), (None, Some("b"), None));
    assert_eq!((queue.take(at(8)), queue.active()), (Some("a"), 3));
    assert_eq!(queue.failures(&"a"), Some((Failures { count: 1, since: at(5) }, None)));
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
    #![proptest_config(podwright_random::cases(256))]

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
