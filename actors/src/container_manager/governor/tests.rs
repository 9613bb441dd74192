//! The governor under random events, and with a runtime that slows down under load.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::queue::{ROW, StartKind, Ticket};
use super::state::{Event, Governor};
use crate::time::Time;

#[derive(Clone, Copy, Debug)]
enum Op {
    Request(bool),
    /// The start at this index of the running ones succeeds.
    Started(usize),
    Failed(usize),
    /// The request at this index of the waiting ones is withdrawn.
    Withdraw(usize),
    TimePassed,
}

fn any_op() -> impl Strategy<Value = (Op, u64)> {
    let op = prop_oneof![
        4 => any::<bool>().prop_map(Op::Request),
        3 => (0usize..64).prop_map(Op::Started),
        1 => (0usize..64).prop_map(Op::Failed),
        1 => (0usize..64).prop_map(Op::Withdraw),
        1 => Just(Op::TimePassed),
    ];
    (op, prop_oneof![8 => 0u64..2_000, 1 => 0u64..40_000])
}

/// The governor's time limit of a start that hangs, in milliseconds.
const HANGS: u64 = 30_000;

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    #[test]
    fn governor_keeps_its_limit_and_grants_in_order(ops in proptest::collection::vec(any_op(), 1..400)) {
        let mut governor = Governor::default();
        let (mut now, mut waiting) = (1_000_000u64, VecDeque::<(Ticket, bool)>::new());
        let mut row = 0;
        let mut running: BTreeMap<Ticket, u64> = BTreeMap::new();
        for (op, pause) in ops {
            now += pause;
            let at = Time::from_nanos(now * 1_000_000);
            let pick = |place: usize| running.keys().nth(place % running.len().max(1)).copied();
            let event = match op {
                Op::Request(sandbox) => {
                    let ticket = governor.ticket();
                    waiting.push_back((ticket, sandbox));
                    Event::Request(ticket, if sandbox { StartKind::Sandbox } else { StartKind::Container })
                }
                Op::Started(place) => pick(place).map_or(Event::TimePassed, Event::Started),
                Op::Failed(place) => pick(place).map_or(Event::TimePassed, Event::Left),
                Op::Withdraw(place) if !waiting.is_empty() => {
                    Event::Left(waiting.remove(place % waiting.len()).unwrap().0)
                }
                Op::Withdraw(_) | Op::TimePassed => Event::TimePassed,
            };
            if let Event::Started(ticket) | Event::Left(ticket) = event {
                running.remove(&ticket);
            }
            let granted = governor.step(event, at);
            for ticket in &granted {
                let at = waiting.iter().position(|(waits, _)| waits == ticket);
                let (_, sandbox) = waiting.remove(at.expect("only waiting requests are granted")).unwrap();
                prop_assert!(waiting.iter().all(|(waits, kind)| *kind != sandbox || waits > ticket), "granted out of order");
                let passed = waiting.iter().any(|(waits, is_sandbox)| *is_sandbox && waits < ticket);
                row = if passed { row + 1 } else { 0 };
                prop_assert!(row <= ROW, "a sandbox waits for ever");
                running.insert(*ticket, now);
            }
            let counted = running.values().filter(|since| now - **since < HANGS).count();
            prop_assert_eq!(governor.running(), counted);
            prop_assert!(granted.is_empty() || counted <= governor.limit());
            prop_assert!(governor.limit() >= 2);
            // No grant is lost: no request waits while there is room.
            prop_assert!(waiting.is_empty() || counted >= governor.limit());
            prop_assert_eq!(governor.waiting(), waiting.len());
            if !matches!(op, Op::TimePassed) {
                continue;
            }
            // The reported order is the order of the grants.
            let (line, mut later) = (governor.queue().collect::<Vec<_>>(), governor.clone());
            let mut served = Vec::new();
            while later.waiting() > 0 {
                let past = Time::from_nanos((now + (1 + served.len() as u64) * HANGS) * 1_000_000);
                served.extend(later.step(Event::TimePassed, past));
            }
            prop_assert_eq!(line, served);
        }
        // Every request is granted, even if no running start ever ends.
        while !waiting.is_empty() {
            now += HANGS;
            let granted = governor.step(Event::TimePassed, Time::from_nanos(now * 1_000_000));
            prop_assert!(!granted.is_empty());
            waiting.retain(|(waits, _)| !granted.contains(waits));
        }
    }
}

/// A runtime that runs up to `width` starts at full speed and shares that speed among more.
struct Simulation {
    governor: Governor,
    /// The duration of a start alone, in seconds.
    base: f64,
    width: f64,
    rng: fastrand::Rng,
    now: f64,
    /// The remaining work of each start, in seconds at full speed.
    running: BTreeMap<Ticket, f64>,
}

impl Simulation {
    fn new(seed: u64, base: f64, width: f64) -> Self {
        let (governor, rng) = (Governor::default(), fastrand::Rng::with_seed(seed));
        Simulation { governor, base, width, rng, now: 1000.0, running: BTreeMap::new() }
    }

    fn step(&mut self, event: Event) {
        for ticket in self.governor.step(event, Time::from_nanos((self.now * 1e9) as u64)) {
            let work = self.base * (0.9 + 0.2 * self.rng.f64());
            self.running.insert(ticket, work);
        }
    }

    fn ask(&mut self) {
        let ticket = self.governor.ticket();
        self.step(Event::Request(ticket, StartKind::Container));
    }

    /// Completes the next start.
    fn next(&mut self) {
        let speed = (self.width / self.running.len() as f64).min(1.0);
        let (ticket, left) = self.running.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(t, l)| (*t, *l)).unwrap();
        self.now += left / speed;
        self.running.values_mut().for_each(|work| *work -= left);
        self.running.remove(&ticket);
        self.step(Event::Started(ticket));
    }

    /// Completes `ends` starts and returns the mean limit during them.
    fn mean_limit(&mut self, ends: u32) -> f64 {
        let limits = (0..ends).map(|_| {
            self.next();
            self.governor.limit() as f64
        });
        limits.sum::<f64>() / f64::from(ends)
    }
}

// KF35
#[test]
fn governor_limit_follows_the_runtimes_capacity() {
    for seed in 1..=20 {
        for (base, width) in [(1.0, 4.0), (0.5, 10.0), (2.0, 1.0), (0.3, 40.0)] {
            let mut simulation = Simulation::new(seed, base, width);
            (0..4000).for_each(|_| simulation.ask());
            (0..1000).for_each(|_| simulation.next());
            let begin = simulation.now;
            let mean = simulation.mean_limit(2000);
            let share = 2000.0 * base / width / (simulation.now - begin);
            let what = format!("seed {seed}, base {base}, width {width}: mean limit {mean:.1}, share {share:.2}");
            // The duration of a start alone is measured with two at once.
            assert!(mean <= 4.4 * width.max(2.0), "{what}");
            assert!(share >= 0.85, "{what}");

            // The runtime gets half as fast, and the limit follows.
            simulation.width = width / 2.0;
            simulation.mean_limit(600);
            let now = simulation.mean_limit(200);
            assert!(now <= 4.4 * (width / 2.0).max(2.0), "{what}, then {now:.1}");
        }
    }
}

#[test]
fn governor_does_not_hold_back_quick_starts() {
    // A hundred pods with two containers at once, on a runtime that takes 5 ms per start and has two cores.
    for seed in 1..=20 {
        let mut simulation = Simulation::new(seed, 0.005, 2.0);
        (0..300).for_each(|_| simulation.ask());
        (0..300).for_each(|_| simulation.next());
        let took = simulation.now - 1000.0;
        assert!(took < 300.0 * 0.005 / 2.0 * 1.05, "seed {seed}: {took}");
    }
}

#[test]
fn a_sandbox_starts_however_many_containers_restart() {
    let mut simulation = Simulation::new(7, 1.0, 3.0);
    let mut patient = BTreeSet::new();
    for _ in 0..10 {
        (0..5).for_each(|_| simulation.ask());
        let ticket = simulation.governor.ticket();
        patient.insert(ticket);
        simulation.step(Event::Request(ticket, StartKind::Sandbox));
    }
    for _ in 0..80 {
        simulation.ask();
        simulation.next();
        patient.retain(|ticket| !simulation.running.contains_key(ticket));
    }
    assert!(patient.is_empty(), "{patient:?}");
}

#[test]
fn a_pod_with_a_sandbox_starts_before_other_sandboxes() {
    let mut governor = Governor::default();
    let at = Time::from_secs(1_000);
    let mut kinds = BTreeMap::new();
    let mut running = VecDeque::new();
    let ask = |governor: &mut Governor, kinds: &mut BTreeMap<Ticket, StartKind>, kind| {
        let ticket = governor.ticket();
        kinds.insert(ticket, kind);
        governor.step(Event::Request(ticket, kind), at)
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
