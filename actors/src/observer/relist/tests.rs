//! Tests when lists and reads are due, and the laws that hold under every order of events.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::*;

/// Applies events at their milliseconds, and compares the effects less the next turns.
fn check(rows: Vec<(u64, Event, Vec<Effect>)>) {
    let start = Instant::now();
    let mut relists = Relists::new(start);
    for (row, (millis, event, expected)) in rows.into_iter().enumerate() {
        let text = format!("row {row}: {event:?}");
        let mut effects = relists.step(event, start + Duration::from_millis(millis));
        effects.retain(|effect| !matches!(effect, Effect::WakeAt(_)));
        assert_eq!(effects, expected, "{text}");
    }
}

fn turn() -> Event {
    Event::Turn { has_events: true, unread: Vec::new() }
}

fn hint(uid: &str) -> Event {
    Event::Hint(uid.into())
}

fn listed(uids: &[&str]) -> Event {
    Event::Listed(uids.iter().map(|uid| PodUid::from(*uid)).collect())
}

fn list_failed() -> Event {
    Event::ListFailed { error: "no answer".to_owned() }
}

fn read_ended(uid: &str) -> Event {
    Event::Read(uid.into())
}

fn list() -> Effect {
    Effect::List { since_last_start: None }
}

fn list_after(seconds: u64) -> Effect {
    Effect::List { since_last_start: Some(Duration::from_secs(seconds)) }
}

fn read(uid: &str) -> Effect {
    Effect::Read(uid.into())
}

fn relisted(seconds: u64) -> Effect {
    Effect::Relisted { took: Duration::from_secs(seconds) }
}

fn unreachable() -> Effect {
    Effect::Unreachable { error: "no answer".to_owned() }
}

#[test]
fn the_period_of_lists_depends_on_the_events_of_the_runtime() {
    let rows = [
        ("no events", false, listed(&[]), false, 999, false),
        ("no events", false, listed(&[]), false, 1_000, true),
        ("events", true, listed(&[]), false, 9_999, false),
        ("events", true, listed(&[]), false, 10_000, true),
        ("events, but no answer", true, list_failed(), false, 999, false),
        ("events, but no answer", true, list_failed(), false, 1_000, true),
        ("lost hints", true, listed(&[]), true, 1, true),
    ];
    for (name, has_events, end, hints_lost, millis, is_due) in rows {
        let start = Instant::now();
        let mut relists = Relists::new(start);
        let _ = relists.step(Event::Turn { has_events, unread: Vec::new() }, start);
        let _ = relists.step(end, start);
        if hints_lost {
            assert_eq!(relists.step(Event::HintsLost, start), [], "only a turn lists");
        }
        let now = start + Duration::from_millis(millis);
        let effects = relists.step(Event::Turn { has_events, unread: Vec::new() }, now);
        let lists = effects.iter().any(|effect| matches!(effect, Effect::List { .. }));
        assert_eq!(lists, is_due, "{name}, {millis} ms after the last list");
    }
}

#[test]
fn one_list_is_under_way_at_a_time() {
    check(vec![
        (0, turn(), vec![list()]),
        (1_000, Event::HintsLost, vec![]),
        (20_000, turn(), vec![]),
        (20_000, listed(&[]), vec![relisted(20), Effect::Health(true)]),
        // The hints were lost after the list had begun.
        (21_000, turn(), vec![list_after(21)]),
        (22_000, listed(&[]), vec![relisted(1)]),
        (31_000, turn(), vec![]),
        (32_000, turn(), vec![list_after(11)]),
    ]);
}

#[test]
fn intervals_are_measured_once_a_list_has_succeeded() {
    check(vec![
        (0, turn(), vec![list()]),
        (0, list_failed(), vec![unreachable()]),
        (1_000, turn(), vec![list()]),
        (1_000, listed(&[]), vec![Effect::Reachable, relisted(0), Effect::Health(true)]),
        (11_000, turn(), vec![list_after(10)]),
        (11_000, list_failed(), vec![unreachable()]),
        (12_000, turn(), vec![list_after(1)]),
    ]);
}

#[test]
fn an_outage_is_logged_once() {
    check(vec![
        (0, turn(), vec![list()]),
        (0, list_failed(), vec![unreachable()]),
        (1_000, turn(), vec![list()]),
        (1_000, list_failed(), vec![]),
        (2_000, turn(), vec![list()]),
        (2_000, listed(&["a"]), vec![Effect::Reachable, read("a")]),
    ]);
}

#[test]
fn the_runtime_is_healthy_from_the_first_relist_until_its_last_list_is_old() {
    check(vec![
        (0, turn(), vec![list()]),
        (0, listed(&["a"]), vec![read("a")]),
        (1_000, read_ended("a"), vec![relisted(1), Effect::Health(true)]),
        (10_000, turn(), vec![list_after(10)]),
        (180_000, turn(), vec![]),
        (180_001, turn(), vec![Effect::Health(false)]),
        (181_000, turn(), vec![]),
        (190_000, listed(&["b"]), vec![Effect::Health(true), read("b")]),
        (191_000, read_ended("b"), vec![relisted(181)]),
    ]);
}

#[test]
fn lists_that_fail_make_the_runtime_unhealthy_after_three_minutes() {
    check(vec![
        (0, turn(), vec![list()]),
        (0, listed(&[]), vec![relisted(0), Effect::Health(true)]),
        (10_000, turn(), vec![list_after(10)]),
        (180_000, list_failed(), vec![unreachable()]),
        (181_000, turn(), vec![Effect::Health(false), list_after(171)]),
    ]);
}

#[test]
fn hints_during_a_read_lead_to_one_more_read() {
    check(vec![
        (0, hint("a"), vec![read("a")]),
        (0, hint("a"), vec![]),
        (0, hint("a"), vec![]),
        (0, hint("b"), vec![read("b")]),
        (1_000, read_ended("a"), vec![read("a")]),
        (2_000, read_ended("a"), vec![]),
        (3_000, read_ended("b"), vec![]),
    ]);
}

#[test]
fn a_relist_ends_after_reads_that_began_after_its_list() {
    check(vec![
        (0, turn(), vec![list()]),
        (0, hint("a"), vec![read("a")]),
        (1_000, listed(&["a"]), vec![]),
        (2_000, read_ended("a"), vec![read("a")]),
        (3_000, read_ended("a"), vec![relisted(3), Effect::Health(true)]),
    ]);
}

#[test]
fn failed_reads_are_repeated_while_the_runtime_answers() {
    let turn = || Event::Turn { has_events: true, unread: vec!["a".into()] };
    check(vec![
        (0, turn(), vec![list(), read("a")]),
        (0, read_ended("a"), vec![]),
        (1_000, turn(), vec![read("a")]),
        (1_000, read_ended("a"), vec![]),
        (1_000, list_failed(), vec![unreachable()]),
        (1_500, turn(), vec![]),
    ]);
}

#[test]
fn turns_follow_a_grid() {
    let start = Instant::now();
    let mut relists = Relists::new(start);
    for (millis, next) in [(0, 1_000), (1_300, 2_000), (2_999, 3_000), (10_000, 10_000), (10_000, 11_000)] {
        let at = |millis| start + Duration::from_millis(millis);
        let effects = relists.step(turn(), at(millis));
        assert_eq!(effects.first(), Some(&Effect::WakeAt(at(next))), "{millis}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Hint(u8),
    HintsLost,
    Turn,
    /// The list that is under way ends.
    Listed(BTreeSet<u8>),
    ListFailed,
    /// The read at this place of those under way ends.
    Read {
        place: usize,
        fails: bool,
    },
}

fn any_op() -> impl Strategy<Value = (Op, u64)> {
    // More pods than may be read at once.
    let pod = || 0u8..40;
    let op = prop_oneof![
        6 => pod().prop_map(Op::Hint),
        1 => Just(Op::HintsLost),
        3 => Just(Op::Turn),
        3 => btree_set(pod(), 0..30).prop_map(Op::Listed),
        1 => Just(Op::ListFailed),
        6 => (any::<usize>(), any::<bool>()).prop_map(|(place, fails)| Op::Read { place, fails }),
    ];
    (op, prop_oneof![8 => 0u64..3_000, 1 => 0u64..200_000])
}

/// What an observer with these relists does, and what it has to keep.
struct World {
    relists: Relists,
    now: Instant,
    has_events: bool,
    reading: BTreeSet<PodUid>,
    /// The pods that may have changed since their last read began.
    changed: BTreeSet<PodUid>,
    /// The pods whose last read failed.
    unread: Vec<PodUid>,
    listing: bool,
    hints_lost: bool,
    reachable: bool,
    list_ended: Option<Instant>,
    listed: Option<Instant>,
    /// The pods of the last relist without a read that began after the list and has ended.
    relist: Option<BTreeSet<PodUid>>,
    /// The reads that began after the last list.
    fresh: BTreeSet<PodUid>,
    has_relisted: bool,
    healthy: bool,
}

impl World {
    fn new(has_events: bool) -> Self {
        let now = Instant::now();
        World {
            relists: Relists::new(now),
            now,
            has_events,
            reading: BTreeSet::new(),
            changed: BTreeSet::new(),
            unread: Vec::new(),
            listing: false,
            hints_lost: false,
            reachable: true,
            list_ended: None,
            listed: None,
            relist: None,
            fresh: BTreeSet::new(),
            has_relisted: false,
            healthy: false,
        }
    }

    fn apply(&mut self, op: Op) {
        let uid = |number: u8| PodUid::from(format!("u{number:02}").as_str());
        match op {
            Op::Hint(number) => {
                self.changed.insert(uid(number));
                self.step(Event::Hint(uid(number)));
            }
            Op::HintsLost => {
                self.hints_lost = true;
                self.step(Event::HintsLost);
            }
            Op::Turn => self.turn(),
            Op::Listed(numbers) if self.listing => {
                let pods: BTreeSet<_> = numbers.into_iter().map(uid).collect();
                self.changed.extend(pods.iter().cloned());
                self.relist = Some(pods.clone());
                self.fresh.clear();
                self.listed = Some(self.now);
                self.end_list(true, Event::Listed(pods));
            }
            Op::ListFailed if self.listing => self.end_list(false, list_failed()),
            Op::Read { place, fails } if !self.reading.is_empty() => {
                let uid = self.reading.iter().nth(place % self.reading.len()).cloned().unwrap();
                self.end_read(uid, fails);
            }
            Op::Listed(_) | Op::ListFailed | Op::Read { .. } => {}
        }
    }

    fn turn(&mut self) {
        let unread = self.unread.clone();
        if self.reachable {
            self.changed.extend(unread.iter().cloned());
        }
        self.step(Event::Turn { has_events: self.has_events, unread });
        let period = Duration::from_secs(if self.has_events && self.reachable { 10 } else { 1 });
        let is_young = self.list_ended.is_some_and(|end| self.now - end < period);
        assert!(self.listing || is_young && !self.hints_lost, "a list is due");
    }

    fn end_list(&mut self, succeeded: bool, event: Event) {
        self.listing = false;
        self.reachable = succeeded;
        self.list_ended = Some(self.now);
        self.step(event);
    }

    fn end_read(&mut self, uid: PodUid, fails: bool) {
        self.reading.remove(&uid);
        self.unread.retain(|unread| *unread != uid);
        if fails {
            self.unread.push(uid.clone());
        }
        if self.fresh.remove(&uid)
            && let Some(relist) = &mut self.relist
        {
            relist.remove(&uid);
        }
        self.step(Event::Read(uid));
    }

    fn step(&mut self, event: Event) {
        let is_turn = matches!(event, Event::Turn { .. });
        for effect in self.relists.step(event, self.now) {
            match effect {
                Effect::WakeAt(at) => assert!(is_turn && at >= self.now),
                Effect::List { .. } => {
                    assert!(is_turn && !self.listing);
                    self.listing = true;
                    self.hints_lost = false;
                }
                Effect::Read(uid) => {
                    assert!(self.changed.remove(&uid), "{uid} is read without a reason");
                    assert!(self.reading.insert(uid.clone()), "{uid} is read twice at once");
                    self.fresh.insert(uid);
                }
                Effect::Relisted { .. } => {
                    assert_eq!(self.relist.take(), Some(BTreeSet::new()), "a pod is not read");
                    self.has_relisted = true;
                }
                Effect::Reachable => assert!(self.reachable),
                Effect::Unreachable { .. } => assert!(!self.reachable),
                Effect::Health(healthy) => {
                    assert_ne!(healthy, self.healthy, "only changes are reported");
                    self.healthy = healthy;
                }
            }
        }
        assert!(self.reading.len() <= 16);
        let waits = self.changed.iter().any(|uid| !self.reading.contains(uid));
        assert!(!waits || self.reading.len() == 16, "a changed pod is not read");
        let is_recent = self.listed.is_some_and(|at| self.now - at <= Duration::from_secs(180));
        assert!(!self.healthy || self.has_relisted);
        // A hint does not check the health.
        if is_turn {
            assert_eq!(self.healthy, is_recent && self.has_relisted);
        }
    }
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    #[test]
    fn no_change_is_lost_and_health_follows_the_lists(has_events in any::<bool>(), ops in vec(any_op(), 1..200)) {
        let mut world = World::new(has_events);
        world.turn();
        for (op, pause) in ops {
            world.now += Duration::from_millis(pause);
            world.apply(op);
        }
        // Every relist ends once all reads have ended.
        while let Some(uid) = world.reading.first().cloned() {
            world.end_read(uid, false);
        }
        prop_assert!(world.changed.is_empty());
        prop_assert_eq!(world.relist, None);
        prop_assert_eq!(world.has_relisted, world.listed.is_some());
    }
}
