//! Simulations of whole nodes in virtual time. Each seed generates one scenario of pods, updates, faults, crashes and
//! restarts. Invariants are checked at every call and every second.
//!
//! ```text
//! scenario(seed) -> Scenario    pure; a scenario stays valid when steps are dropped
//! run(scenario): agent (a real Node) over FaultyRuntime<SimulatedRuntime>, Disk, SimSources, SimApiServer, SimDrivers
//!                one thread, paused time, checks at every call and every second -> violation
//! faults end -> every pod reaches its final state -> sources drop all pods -> nothing is left
//! ```
//!
//! A simulation takes at most twelve minutes of virtual time: seven for steps and faults, three until every pod has
//! reached its final state, and two until all pods are removed. After each agent its recording is replayed and has to
//! reach the same states.
//!
//! A failing seed is printed with the command that repeats it. `PODWRIGHT_SIM_SEED=n` runs one seed and prints its
//! whole trace if it fails. `PODWRIGHT_SIM_SEEDS=n` sets the number of seeds and `PODWRIGHT_SIM_FROM=n` the first seed.
//! Without them a test run takes 500 new seeds, and the seeds of `failed-seeds.txt`.

mod api_server;
mod checks;
mod clock;
mod container_resources;
mod container_runs;
mod devices;
mod disk;
mod drivers;
mod faulty_ports;
mod generator;
mod journal;
mod machine;
mod pod_objects;
mod rng;
mod runner;
mod scenario;
mod shrink;
mod sources;
mod trace;
mod usage;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use runner::{Report, run};
use scenario::Scenario;
use shrink::shrink;
use trace::KEPT;

const SEED: &str = "PODWRIGHT_SIM_SEED";
const SEEDS: &str = "PODWRIGHT_SIM_SEEDS";
const FROM: &str = "PODWRIGHT_SIM_FROM";
const DEFAULT_SEEDS: u64 = 500;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a whole number"))
}

/// Runs seeds on all cores, and returns the first scenario that fails with its report.
fn first_failure(seeds: &[u64]) -> Option<(Arc<Scenario>, Report)> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let scenario = Arc::new(generator::scenario(*seed));
                    let report = run(&scenario, KEPT);
                    if report.violation.is_some() {
                        next.store(seeds.len(), Ordering::Relaxed);
                        failed.lock().get_or_insert((scenario, report));
                    }
                }
            });
        }
    });
    failed.into_inner()
}

/// Panics if a simulation found a violation. The message has the smallest scenario that still fails, or the whole
/// scenario if it should not be shrunk.
fn fail_on_violation(scenario: &Arc<Scenario>, report: Report, shrunk: bool) {
    let Some(violation) = report.violation.clone() else { return };
    let again = run(scenario, KEPT);
    if again.hash != report.hash || again.violation != report.violation {
        // Both traces are kept in full, because the first difference may be long before the end.
        let [one, other] = [(); 2].map(|()| run(scenario, usize::MAX).trace);
        let difference = one.lines().zip(other.lines()).find(|(one, other)| one != other);
        panic!(
            "{violation}\n\nSeed {} does not repeat: another run found {:?}. Something random does not come from the seed: fix \
             that too. Two more runs differ first at {difference:?}.\n\n{}",
            scenario.seed, again.violation, report.trace,
        );
    }
    let whole = scenario.steps.len();
    let (small, report) = if shrunk { shrink(scenario.clone(), report) } else { (scenario.clone(), report) };
    panic!(
        "{violation}\n\nTo repeat it with its whole trace:\n    {SEED}={} cargo test --test it simulation::random_lives\n\n\
         {} of {whole} steps are enough:\n{small}\n{}\n{}",
        small.seed,
        small.steps.len(),
        report.trace,
        report.violation.unwrap_or_default(),
    );
}

/// The first of the new seeds. Test runs in different minutes take different seeds.
fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970");
    since.as_secs() / 60 * 100_000
}

/// The seeds of `failed-seeds.txt`.
fn failed_before() -> Vec<u64> {
    let lines = include_str!("simulation/failed-seeds.txt").lines();
    let numbers = lines.filter_map(|line| line.split('#').next()?.trim().parse().ok());
    numbers.collect()
}

#[test]
fn random_lives_of_a_node_keep_every_invariant() {
    if let Some(seed) = number(SEED) {
        let scenario = Arc::new(generator::scenario(seed));
        let report = run(&scenario, usize::MAX);
        fail_on_violation(&scenario, report, false);
        return;
    }
    let count = number(SEEDS).unwrap_or(DEFAULT_SEEDS);
    let first = number(FROM).unwrap_or_else(fresh_seed);
    let seeds: Vec<u64> = failed_before().into_iter().chain(first..first + count).collect();
    let begin = Instant::now();
    if let Some((scenario, report)) = first_failure(&seeds) {
        fail_on_violation(&scenario, report, true);
    }
    eprintln!("{} seeds, {count} of them from {first}: {:.1?}", seeds.len(), begin.elapsed());
}

#[test]
fn simulation_seed_repeats_every_step() {
    for seed in 0..8 {
        let reports = [(); 2].map(|()| run(&Arc::new(generator::scenario(seed)), KEPT));
        assert_eq!(reports[0].hash, reports[1].hash, "seed {seed}");
        assert!(reports[0].length > 100, "seed {seed}");
    }
}

#[test]
#[should_panic(expected = "does not repeat")]
fn simulation_failure_that_does_not_repeat_is_reported() {
    let scenario = Arc::new(generator::scenario(0));
    let once = Report { violation: Some("happened once".to_owned()), ..run(&scenario, KEPT) };
    fail_on_violation(&scenario, once, true);
}
