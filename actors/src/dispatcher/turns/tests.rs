//! Tests the order of turns, and the laws that hold under every order of events.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::ports::{Severity, SourceKind, SourceProblem};

use SourceKind::{Api, File, Http};

const IDLE: Waiting = Waiting { pods: false, resizes: false };
const PODS: Waiting = Waiting { pods: true, resizes: false };
const RESIZES: Waiting = Waiting { pods: false, resizes: true };

/// An update that its number identifies.
fn update(source: SourceKind, number: u32) -> SourceUpdate {
    let (what, message) = (number.to_string(), String::new());
    SourceUpdate::NotYet {
        source,
        problems: vec![SourceProblem { what, message, pods: Vec::new(), severity: Severity::Fault }],
    }
}

fn number(update: &SourceUpdate) -> u32 {
    match update {
        SourceUpdate::NotYet { problems, .. } => problems[0].what.parse().unwrap(),
        SourceUpdate::Set(_) => unreachable!(),
    }
}

fn accept(source: SourceKind, number: u32) -> Event<u32> {
    Event::Accept { update: update(source, number), reply: number }
}

fn ended(waiting: Waiting) -> Event<u32> {
    Event::Ended { is_complete: true, waiting }
}

fn panicked() -> Event<u32> {
    Event::Ended { is_complete: false, waiting: IDLE }
}

/// Turns at times after their start, in milliseconds.
struct Bed {
    turns: Turns<u32>,
    start: Instant,
}

impl Bed {
    fn new() -> Self {
        Bed { turns: Turns::default(), start: Instant::now() }
    }

    fn step(&mut self, millis: u64, is_healthy: bool, event: Event<u32>) -> Vec<String> {
        let now = self.start + Duration::from_millis(millis);
        let effects = self.turns.step(event, is_healthy, now);
        effects.into_iter().map(|effect| self.text(effect)).collect()
    }

    fn text(&self, effect: Effect<u32>) -> String {
        match effect {
            Effect::Reply(number) => format!("reply {number}"),
            Effect::Refused => "refused".to_owned(),
            Effect::WakeAt(at) => format!("wake {}", (at - self.start).as_millis()),
            Effect::RetryResizes => "resizes".to_owned(),
            Effect::Begin(Turn::Readmit) => "readmit".to_owned(),
            Effect::Begin(Turn::Update(update)) => format!("update {}", number(&update)),
            Effect::Begin(Turn::RetryAdmission) => "retry".to_owned(),
            Effect::Hold => "hold".to_owned(),
        }
    }
}

/// Applies events at their milliseconds while the runtime is healthy, and compares the effects.
fn check<const N: usize>(rows: [(u64, Event<u32>, &[&str]); N]) {
    let mut bed = Bed::new();
    for (row, (millis, event, expected)) in rows.into_iter().enumerate() {
        let text = format!("row {row}: {event:?}");
        assert_eq!(bed.step(millis, true, event), expected, "{text}");
    }
}

#[test]
fn updates_wait_for_the_runtime_and_for_the_turn_before_them() {
    let mut bed = Bed::new();
    let rows: [(bool, Event<u32>, &[&str]); 8] = [
        (false, accept(File, 1), &["reply 1", "hold"]),
        (false, accept(Api, 2), &["reply 2", "hold"]),
        (true, Event::HealthChanged, &["update 1"]),
        (true, accept(File, 3), &["reply 3"]),
        (false, ended(IDLE), &["hold"]),
        (true, Event::HealthChanged, &["update 2"]),
        (true, ended(IDLE), &["update 3"]),
        (false, ended(IDLE), &[]),
    ];
    for (row, (is_healthy, event, expected)) in rows.into_iter().enumerate() {
        assert_eq!(bed.step(0, is_healthy, event), expected, "row {row}");
    }
}

#[test]
fn admission_is_retried_ten_seconds_after_a_panic() {
    check([
        (0, accept(File, 1), &["reply 1", "update 1"]),
        (0, panicked(), &["wake 10000"]),
        (4_000, accept(File, 2), &["reply 2", "update 2"]),
        // A further panic does not postpone the retry.
        (4_000, panicked(), &[]),
        (9_999, Event::TimePassed(IDLE), &[]),
        (10_000, Event::TimePassed(IDLE), &["retry"]),
        (10_000, panicked(), &["wake 20000"]),
        (20_000, Event::TimePassed(IDLE), &["retry"]),
        (20_000, ended(IDLE), &[]),
        (40_000, Event::TimePassed(IDLE), &[]),
    ]);
}

#[test]
fn admission_is_retried_after_the_accepted_updates() {
    check([
        (0, accept(File, 1), &["reply 1", "update 1"]),
        (0, accept(File, 2), &["reply 2"]),
        (0, Event::DecisionsWithdrawn, &[]),
        (0, ended(IDLE), &["update 2"]),
        (0, ended(IDLE), &["retry"]),
        (0, ended(IDLE), &[]),
    ]);
}

#[test]
fn decisions_that_are_withdrawn_during_a_retry_are_retried() {
    check([
        (0, Event::DecisionsWithdrawn, &["retry"]),
        (0, Event::DecisionsWithdrawn, &[]),
        (0, ended(IDLE), &["retry"]),
        (0, ended(IDLE), &[]),
    ]);
}

#[test]
fn the_time_of_an_earlier_retry_does_not_hasten_a_later_one() {
    check([
        (0, accept(File, 1), &["reply 1", "update 1"]),
        (0, panicked(), &["wake 10000"]),
        (4_000, Event::DecisionsWithdrawn, &["retry"]),
        (4_000, panicked(), &["wake 14000"]),
        (10_000, Event::TimePassed(IDLE), &[]),
        (14_000, Event::TimePassed(IDLE), &["retry"]),
    ]);
}

#[test]
fn the_queue_is_judged_when_pods_end_with_a_pause_and_every_two_seconds() {
    check([
        (0, Event::Freed(IDLE), &[]),
        (0, Event::Freed(PODS), &["wake 100", "readmit"]),
        (0, ended(PODS), &["wake 2000"]),
        (50, Event::Freed(PODS), &[]),
        (60, Event::Freed(PODS), &[]),
        (100, Event::TimePassed(PODS), &["wake 200", "readmit"]),
        (100, ended(PODS), &[]),
        (200, Event::TimePassed(PODS), &[]),
        (2_000, Event::TimePassed(PODS), &["wake 2100", "readmit"]),
        (2_000, ended(PODS), &["wake 4000"]),
        (2_050, Event::Freed(PODS), &[]),
        // The pods of the queue left their source meanwhile.
        (2_100, Event::TimePassed(IDLE), &[]),
        (4_000, Event::TimePassed(IDLE), &[]),
        (9_000, Event::TimePassed(IDLE), &[]),
    ]);
}

#[test]
fn the_queue_is_judged_before_updates_are_applied() {
    check([
        (0, accept(File, 1), &["reply 1", "update 1"]),
        (0, accept(File, 2), &["reply 2"]),
        (0, Event::Freed(PODS), &[]),
        (0, ended(PODS), &["wake 2000", "wake 100", "readmit"]),
        (0, ended(PODS), &["update 2"]),
    ]);
}

#[test]
fn resizes_are_decided_again_every_three_minutes_while_they_wait() {
    check([
        (0, accept(File, 1), &["reply 1", "update 1"]),
        (0, ended(RESIZES), &["wake 180000"]),
        (100_000, accept(File, 2), &["reply 2", "update 2"]),
        (100_000, ended(RESIZES), &[]),
        (180_000, Event::TimePassed(RESIZES), &["resizes", "wake 360000"]),
        (360_000, Event::TimePassed(IDLE), &[]),
        (360_000, accept(File, 3), &["reply 3", "update 3"]),
        (360_000, ended(RESIZES), &["wake 540000"]),
    ]);
}

#[test]
fn a_source_waits_for_its_reply_while_fifty_updates_are_before_its_own() {
    let mut bed = Bed::new();
    for number in 1..=50 {
        assert_eq!(bed.step(0, false, accept(File, number)), [format!("reply {number}"), "hold".to_owned()]);
    }
    assert_eq!(bed.step(0, false, accept(Api, 51)), ["hold"]);
    assert_eq!(bed.step(0, false, accept(Api, 52)), ["hold"]);
    assert_eq!(bed.step(0, true, Event::HealthChanged), ["reply 51", "update 1"]);
    assert_eq!(bed.step(0, true, ended(IDLE)), ["reply 52", "update 2"]);
}

#[test]
fn the_oldest_update_of_a_source_that_does_not_wait_is_dropped() {
    // The reply that becomes due: to the first update without room, or to the update that is dropped.
    for (others, due) in [(0, 51), (60, 61)] {
        let mut bed = Bed::new();
        for number in 1..=100 {
            let _ = bed.step(0, false, accept(if number <= others { Api } else { File }, number));
        }
        let effects = bed.step(0, false, accept(File, 101));
        assert_eq!(effects, ["refused".to_owned(), format!("reply {due}"), "hold".to_owned()]);
        let left: Vec<u32> = bed.turns.accepted().map(number).collect();
        let expected: Vec<u32> = (1..=101).filter(|number| *number != others + 1).collect();
        assert_eq!(left, expected);
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// A source sends this many updates and does not wait.
    Accept(SourceKind, u32),
    Freed,
    DecisionsWithdrawn,
    Health(bool),
    /// The turn that is under way ends.
    End {
        is_complete: bool,
        waiting: Waiting,
    },
}

fn any_op() -> impl Strategy<Value = (Op, u64)> {
    let source = prop_oneof![Just(File), Just(Http), Just(Api)];
    let waiting = (any::<bool>(), any::<bool>()).prop_map(|(pods, resizes)| Waiting { pods, resizes });
    let op = prop_oneof![
        4 => (source, prop_oneof![4 => 1u32..3, 1 => 30u32..90]).prop_map(|(source, count)| Op::Accept(source, count)),
        3 => Just(Op::Freed),
        1 => Just(Op::DecisionsWithdrawn),
        2 => prop_oneof![3 => Just(true), 1 => Just(false)].prop_map(Op::Health),
        8 => (prop_oneof![3 => Just(true), 1 => Just(false)], waiting)
            .prop_map(|(is_complete, waiting)| Op::End { is_complete, waiting }),
    ];
    (op, prop_oneof![4 => Just(0u64), 4 => 0u64..300, 1 => 0u64..20_000])
}

/// A dispatcher with these turns, and the laws that it keeps.
struct World {
    turns: Turns<u32>,
    now: Instant,
    is_healthy: bool,
    waiting: Waiting,
    under_way: bool,
    wakes: BTreeSet<Instant>,
    sent: u32,
    /// The updates that were neither dropped nor applied.
    accepted: Vec<(SourceKind, u32)>,
    replied: BTreeSet<u32>,
    /// Whether a pod has ended since the last judgement of the queue began, and pods wait.
    freed: bool,
    readmitted: Option<Instant>,
    /// Whether pods may be without a decision since the last retry began.
    undecided: bool,
}

impl World {
    fn new() -> Self {
        World {
            turns: Turns::default(),
            now: Instant::now(),
            is_healthy: false,
            waiting: IDLE,
            under_way: false,
            wakes: BTreeSet::new(),
            sent: 0,
            accepted: Vec::new(),
            replied: BTreeSet::new(),
            freed: false,
            readmitted: None,
            undecided: false,
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Accept(source, count) => (0..count).for_each(|_| self.accept(source)),
            Op::Freed => {
                self.freed |= self.waiting.pods;
                self.step(Event::Freed(self.waiting));
            }
            Op::DecisionsWithdrawn => {
                self.undecided = true;
                self.step(Event::DecisionsWithdrawn);
            }
            Op::Health(is_healthy) => {
                self.is_healthy = is_healthy;
                self.step(Event::HealthChanged);
            }
            Op::End { is_complete, waiting } if self.under_way => self.end(is_complete, waiting),
            Op::End { .. } => {}
        }
    }

    fn accept(&mut self, source: SourceKind) {
        self.sent += 1;
        let is_full = self.accepted.len() >= 100;
        if let Some(oldest) = self.accepted.iter().position(|(other, _)| is_full && *other == source) {
            self.accepted.remove(oldest);
        }
        self.accepted.push((source, self.sent));
        self.step(accept(source, self.sent));
    }

    fn end(&mut self, is_complete: bool, waiting: Waiting) {
        self.under_way = false;
        self.waiting = waiting;
        self.freed &= waiting.pods;
        self.undecided |= !is_complete;
        self.step(Event::Ended { is_complete, waiting });
    }

    /// Ends turns until none is under way. Each turn is for an update, for the queue or for the retry.
    fn settle(&mut self) {
        for _ in 0..self.sent + 3 {
            if self.under_way {
                self.end(true, PODS);
            }
        }
        assert!(!self.under_way, "turns do not end");
    }

    /// Lets time pass. Reports each requested time to the turns.
    fn pass(&mut self, pause: Duration) {
        let then = self.now + pause;
        while let Some(at) = self.wakes.first().copied().filter(|at| *at <= then) {
            self.wakes.remove(&at);
            self.now = self.now.max(at);
            self.step(Event::TimePassed(self.waiting));
        }
        self.now = then;
    }

    fn step(&mut self, event: Event<u32>) {
        for effect in self.turns.step(event, self.is_healthy, self.now) {
            match effect {
                Effect::Reply(number) => assert!(self.replied.insert(number), "two replies to update {number}"),
                Effect::WakeAt(at) => {
                    assert!(at > self.now);
                    self.wakes.insert(at);
                }
                Effect::RetryResizes => assert!(self.waiting.resizes),
                Effect::Begin(turn) => self.begin(turn),
                Effect::Hold => assert!(!self.is_healthy),
                Effect::Refused => {}
            }
        }
        let numbers: Vec<u32> = self.accepted.iter().map(|(_, number)| *number).collect();
        assert_eq!(self.turns.accepted().map(number).collect::<Vec<_>>(), numbers);
        // All others have had their reply: those with room, those that were dropped and those that were applied.
        let waits = numbers.get(50..).unwrap_or_default();
        assert!(waits.iter().all(|number| !self.replied.contains(number)), "a reply is early");
        assert_eq!(self.replied.len() + waits.len(), self.sent as usize, "a reply is late");
        if self.is_healthy && !self.under_way {
            assert!(self.accepted.is_empty(), "an update is not applied");
            let is_paused = self.readmitted.is_some_and(|at| self.now < at + Duration::from_millis(100));
            assert!(!self.freed || is_paused, "the queue is not judged");
        }
    }

    fn begin(&mut self, turn: Turn) {
        assert!(self.is_healthy && !self.under_way);
        self.under_way = true;
        match turn {
            Turn::Readmit => {
                let pause = self.readmitted.map(|at| self.now - at);
                assert!(pause.is_none_or(|pause| pause >= Duration::from_millis(100)), "judged after {pause:?}");
                self.readmitted = Some(self.now);
                self.freed = false;
            }
            Turn::Update(update) => assert_eq!((update.source(), number(&update)), self.accepted.remove(0)),
            Turn::RetryAdmission => {
                assert!(self.accepted.is_empty(), "updates come first");
                self.undecided = false;
            }
        }
    }
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    #[test]
    fn turns_lose_nothing_and_keep_their_order(ops in vec(any_op(), 1..120)) {
        let mut world = World::new();
        for (op, pause) in ops {
            world.pass(Duration::from_millis(pause));
            world.apply(op);
        }
        // A healthy runtime and handlers that do not panic: all work ends, and only pods that wait are judged again.
        world.apply(Op::Health(true));
        world.accept(File);
        world.settle();
        let before = world.now;
        for _ in 0..200 {
            world.pass(Duration::from_millis(100));
            world.settle();
        }
        prop_assert!(!world.undecided, "admission is not retried");
        prop_assert_eq!(world.replied.len() as u32, world.sent);
        prop_assert!(world.readmitted.is_some_and(|at| at > before && world.now - at <= Duration::from_millis(2_100)));
        world.waiting = IDLE;
        world.pass(Duration::from_secs(400));
        prop_assert!(!world.under_way && world.wakes.is_empty());
    }
}
