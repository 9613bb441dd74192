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
    let mut queue = WorkQueue::new(Backoff { first: Duration::from_secs(50), longest: Duration::from_secs(100) });
    queue.add(&"a", Urgency::Normal);
    queue.take(at(0));
    queue.done(&"a", RETRY, at(0));
    queue.add_at(&"a", at(60));
    assert_eq!(queue.next_due(), Some(at(50)));
    queue.add_at(&"a", at(20));
    assert_eq!(queue.take(at(20)), Some("a"));
    queue.add_at(&"a", at(21));
    queue.done(&"a", RETRY, at(20));
    assert_eq!((queue.next_due(), queue.failures(&"a").unwrap().0.count), (Some(at(21)), 2));
}

#[test]
fn no_addition_shortens_the_delay_that_the_server_requested() {
    let mut queue = WorkQueue::new(BACKOFF);
    queue.add(&"a", Urgency::Normal);
    queue.take(at(0));
    // During the work.
    queue.add(&"a", Urgency::High);
    queue.add_at(&"a", at(0));
    queue.done(&"a", Outcome::Retry { at_least: Duration::from_secs(60) }, at(1));
    assert_eq!(queue.next_due(), Some(at(61)));
    // During the delay.
    queue.add(&"a", Urgency::High);
    queue.add_at(&"a", at(10));
    assert_eq!((queue.next_due(), queue.take(at(60))), (Some(at(61)), None));

    assert_eq!(queue.take(at(61)), Some("a"));
    queue.done(&"a", Outcome::Finished, at(61));
    queue.add_at(&"a", at(62));
    assert_eq!(queue.take(at(62)), Some("a"), "a success ends the delay");
}

#[test]
fn an_addition_shortens_a_backoff_down_to_the_delay_that_the_server_requested() {
    let mut queue = WorkQueue::new(BACKOFF);
    queue.add(&"a", Urgency::Normal);
    for (now, due) in [(0, 1), (1, 3), (3, 7)] {
        assert_eq!(queue.take(at(now)), Some("a"));
        queue.done(&"a", RETRY, at(now));
        assert_eq!(queue.next_due(), Some(at(due)));
    }
    queue.take(at(7));
    queue.done(&"a", Outcome::Retry { at_least: Duration::from_secs(2) }, at(7));
    assert_eq!(queue.next_due(), Some(at(15)));
    queue.add_at(&"a", at(12));
    assert_eq!(queue.next_due(), Some(at(12)));
    queue.add_at(&"a", at(8));
    assert_eq!((queue.next_due(), queue.take(at(9))), (Some(at(9)), Some("a")));
}

/// The times of delays are wrong then.
#[test]
fn a_jump_of_the_clock_ends_the_delay_that_the_server_requested() {
    let mut queue = WorkQueue::new(BACKOFF);
    queue.add(&"a", Urgency::Normal);
    queue.take(at(1000));
    queue.done(&"a", Outcome::Retry { at_least: Duration::from_secs(60) }, at(1000));
    queue.make_all_ready();
    assert_eq!(queue.take(at(5)), Some("a"));
    queue.add_at(&"a", at(6));
    queue.done(&"a", RETRY, at(5));
    assert_eq!(queue.next_due(), Some(at(6)), "the delay does not come back");
}

#[test]
fn an_addition_with_a_time_ends_a_wait() {
    let mut queue = WorkQueue::new(BACKOFF);
    queue.add(&"a", Urgency::Normal);
    queue.take(at(0));
    queue.done(&"a", Outcome::Wait(Duration::from_secs(10)), at(0));
    queue.add(&"a", Urgency::Normal);
    assert_eq!((queue.take(at(2)), queue.next_due()), (None, Some(at(10))));
    queue.add_at(&"a", at(3));
    assert_eq!(queue.take(at(3)), Some("a"));
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
    assert_eq!((queue.take(at(7)), queue.next_due()), (None, Some(at(8))));
    let mut taken = [queue.take(at(8)), queue.take(at(8))];
    taken.sort_unstable();
    assert_eq!((taken, queue.active()), ([Some("a"), Some("b")], 3));
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
    let retry = (0..6u64).prop_map(|seconds| Outcome::Retry { at_least: Duration::from_secs(seconds) });
    let outcome = prop_oneof![Just(Outcome::Finished), retry];
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

    /// Each added key is taken once time passes and no work fails. A key is never taken while another caller works on it, or before the
    /// shortest delay of its last failure.
    #[test]
    fn no_addition_is_lost_or_early(steps in steps()) {
        let mut queue = WorkQueue::new(BACKOFF);
        let mut now = at(0);
        let mut active: HashMap<u8, bool> = HashMap::new();
        let mut owed: HashMap<u8, bool> = HashMap::new();
        let mut not_before: HashMap<u8, Time> = HashMap::new();
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
                        prop_assert!(not_before.get(&key).is_none_or(|at| *at <= now), "key {key} was taken too early");
                        owed.insert(key, false);
                    }
                }
                Step::Done(key, outcome) => {
                    if active.insert(key, false).unwrap_or(false) {
                        queue.done(&key, outcome, now);
                        not_before.remove(&key);
                        if let Outcome::Retry { at_least } = outcome {
                            owed.insert(key, true);
                            not_before.insert(key, now + at_least);
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
