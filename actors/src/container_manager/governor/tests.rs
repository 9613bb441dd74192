//! The governor under any order of events, and on a runtime that is slower the more it has to do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::queue::{ROW, StartKind, Ticket};
use super::state::{Event, Governor};
use crate::time::Time;

/// A small generator of numbers, so that a seed is all that a run depends on.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Ask(bool),
    /// The start at this place of those that run.
    Started(usize),
    Failed(usize),
    /// The wait at this place of those that wait.
    GoAway(usize),
    Look,
}

fn any_op() -> impl Strategy<Value = (Op, u64)> {
    let op = prop_oneof![
        4 => any::<bool>().prop_map(Op::Ask),
        3 => (0usize..64).prop_map(Op::Started),
        1 => (0usize..64).prop_map(Op::Failed),
        1 => (0usize..64).prop_map(Op::GoAway),
        1 => Just(Op::Look),
    ];
    (op, prop_oneof![8 => 0u64..2_000, 1 => 0u64..40_000])
}

/// Hangs no more than so long, in milliseconds, as far as the governor counts it.
const HANGS: u64 = 30_000;

proptest! {
    #[test]
    fn the_limit_holds_and_places_are_given_in_order(ops in proptest::collection::vec(any_op(), 1..400)) {
        let mut governor = Governor::default();
        let (mut now, mut waiting) = (1_000_000u64, VecDeque::<(Ticket, bool)>::new());
        let mut row = 0;
        let mut running: BTreeMap<Ticket, u64> = BTreeMap::new();
        for (op, pause) in ops {
            now += pause;
            let at = Time::from_nanos(now * 1_000_000);
            let pick = |place: usize| running.keys().nth(place % running.len().max(1)).copied();
            let event = match op {
                Op::Ask(sandbox) => {
                    let ticket = governor.ticket();
                    waiting.push_back((ticket, sandbox));
                    Event::Ask(ticket, if sandbox { StartKind::Sandbox } else { StartKind::Container })
                }
                Op::Started(place) => pick(place).map_or(Event::Look, Event::Started),
                Op::Failed(place) => pick(place).map_or(Event::Look, Event::Left),
                Op::GoAway(place) if !waiting.is_empty() => {
                    Event::Left(waiting.remove(place % waiting.len()).unwrap().0)
                }
                Op::GoAway(_) | Op::Look => Event::Look,
            };
            if let Event::Started(ticket) | Event::Left(ticket) = event {
                running.remove(&ticket);
            }
            let granted = governor.step(event, at);
            for ticket in &granted {
                let at = waiting.iter().position(|(waits, _)| waits == ticket);
                let (_, sandbox) = waiting.remove(at.expect("only who waits is served")).unwrap();
                prop_assert!(waiting.iter().all(|(waits, kind)| *kind != sandbox || waits > ticket), "in its turn");
                let passed = waiting.iter().any(|(waits, is_sandbox)| *is_sandbox && waits < ticket);
                row = if passed { row + 1 } else { 0 };
                prop_assert!(row <= ROW, "a sandbox waits for ever");
                running.insert(*ticket, now);
            }
            let counted = running.values().filter(|since| now - **since < HANGS).count();
            prop_assert_eq!(governor.running(), counted);
            prop_assert!(granted.is_empty() || counted <= governor.limit());
            prop_assert!(governor.limit() >= 2);
            // No wake-up is lost: nobody waits where there is room.
            prop_assert!(waiting.is_empty() || counted >= governor.limit());
            prop_assert_eq!(governor.waiting(), waiting.len());
            if !matches!(op, Op::Look) {
                continue;
            }
            // The line is told as it will be served.
            let (line, mut later) = (governor.line().collect::<Vec<_>>(), governor.clone());
            let mut served = Vec::new();
            while later.waiting() > 0 {
                let past = Time::from_nanos((now + (1 + served.len() as u64) * HANGS) * 1_000_000);
                served.extend(later.step(Event::Look, past));
            }
            prop_assert_eq!(line, served);
        }
        // Whoever waits is served, even if nothing that runs ever ends.
        while !waiting.is_empty() {
            now += HANGS;
            let granted = governor.step(Event::Look, Time::from_nanos(now * 1_000_000));
            prop_assert!(!granted.is_empty());
            waiting.retain(|(waits, _)| !granted.contains(waits));
        }
    }
}

/// A runtime that does up to `width` starts at full speed and shares that speed among more.
struct Simulation {
    governor: Governor,
    /// What a start takes alone, in seconds.
    base: f64,
    width: f64,
    dice: Dice,
    now: f64,
    /// What is left of each, in seconds of full speed.
    running: BTreeMap<Ticket, f64>,
}

impl Simulation {
    fn new(seed: u64, base: f64, width: f64) -> Self {
        let (governor, dice) = (Governor::default(), Dice(seed));
        Simulation { governor, base, width, dice, now: 1000.0, running: BTreeMap::new() }
    }

    fn step(&mut self, event: Event) {
        for ticket in self.governor.step(event, Time::from_nanos((self.now * 1e9) as u64)) {
            let work = self.base * (0.9 + 0.2 * self.dice.roll());
            self.running.insert(ticket, work);
        }
    }

    fn ask(&mut self) {
        let ticket = self.governor.ticket();
        self.step(Event::Ask(ticket, StartKind::Container));
    }

    /// Lets the next start end.
    fn next(&mut self) {
        let speed = (self.width / self.running.len() as f64).min(1.0);
        let (ticket, left) = self.running.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(t, l)| (*t, *l)).unwrap();
        self.now += left / speed;
        self.running.values_mut().for_each(|work| *work -= left);
        self.running.remove(&ticket);
        self.step(Event::Started(ticket));
    }

    /// Lets so many end; answers with the limit in that time.
    fn mean_limit(&mut self, ends: u32) -> f64 {
        let limits = (0..ends).map(|_| {
            self.next();
            self.governor.limit() as f64
        });
        limits.sum::<f64>() / f64::from(ends)
    }
}

#[test]
fn the_limit_finds_what_the_runtime_bears_and_follows_it() {
    for seed in 1..=20 {
        for (base, width) in [(1.0, 4.0), (0.5, 10.0), (2.0, 1.0), (0.3, 40.0)] {
            let mut simulation = Simulation::new(seed, base, width);
            (0..4000).for_each(|_| simulation.ask());
            (0..1000).for_each(|_| simulation.next());
            let begin = simulation.now;
            let mean = simulation.mean_limit(2000);
            let share = 2000.0 * base / width / (simulation.now - begin);
            let what = format!("seed {seed}, base {base}, width {width}: mean limit {mean:.1}, share {share:.2}");
            // What a start takes alone is seen with two at once.
            assert!(mean <= 4.4 * width.max(2.0), "{what}");
            assert!(share >= 0.85, "{what}");

            // The runtime becomes half as able: so does the limit.
            simulation.width = width / 2.0;
            simulation.mean_limit(600);
            let now = simulation.mean_limit(200);
            assert!(now <= 4.4 * (width / 2.0).max(2.0), "{what}, then {now:.1}");
        }
    }
}

#[test]
fn quick_starts_are_never_held_back_for_long() {
    // A hundred pods of two containers at once on a runtime that takes five milliseconds and has two cores.
    for seed in 1..=20 {
        let mut simulation = Simulation::new(seed, 0.005, 2.0);
        (0..300).for_each(|_| simulation.ask());
        (0..300).for_each(|_| simulation.next());
        let took = simulation.now - 1000.0;
        assert!(took < 300.0 * 0.005 / 2.0 * 1.05, "seed {seed}: {took}");
    }
}

#[test]
fn a_pod_begins_however_many_containers_start_again() {
    let mut simulation = Simulation::new(7, 1.0, 3.0);
    let mut patient = BTreeSet::new();
    for _ in 0..10 {
        (0..5).for_each(|_| simulation.ask());
        let ticket = simulation.governor.ticket();
        patient.insert(ticket);
        simulation.step(Event::Ask(ticket, StartKind::Sandbox));
    }
    for _ in 0..80 {
        simulation.ask();
        simulation.next();
        patient.retain(|ticket| !simulation.running.contains_key(ticket));
    }
    assert!(patient.is_empty(), "{patient:?}");
}

#[test]
fn a_pod_that_began_is_finished_before_others_begin() {
    let mut governor = Governor::default();
    let at = Time::from_secs(1_000);
    let mut kinds = BTreeMap::new();
    let mut running = VecDeque::new();
    let ask = |governor: &mut Governor, kinds: &mut BTreeMap<Ticket, StartKind>, kind| {
        let ticket = governor.ticket();
        kinds.insert(ticket, kind);
        governor.step(Event::Ask(ticket, kind), at)
    };
    for _ in 0..100 {
        running.extend(ask(&mut governor, &mut kinds, StartKind::Sandbox));
    }
    let (mut sandboxes, mut containers) = (0, 0);
    while let Some(ticket) = running.pop_front() {
        running.extend(governor.step(Event::Started(ticket), at));
        match kinds[&ticket] {
            StartKind::Sandbox => {
                sandboxes += 1;
                running.extend(ask(&mut governor, &mut kinds, StartKind::Container));
            }
            StartKind::Container => containers += 1,
        }
        assert!(sandboxes - containers <= 2 * governor.limit(), "{sandboxes} sandboxes, {containers} containers");
    }
    assert_eq!((sandboxes, containers), (100, 100));
}
