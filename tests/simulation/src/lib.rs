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
//! A simulation takes less than 13 minutes of virtual time: 7 minutes for steps and faults, 3 minutes and up to 20 seconds more until every
//! pod has reached its final state, and at most 2 minutes until all pods are removed. After each agent its recording is replayed
//! and has to reach the same states.
//!
//! The program `podwright-simulation` runs a range of seeds, seeds for a given time, or one seed with its whole trace.

#![allow(clippy::unwrap_used, reason = "a simulation fails by panicking, in its helpers too")]

mod admission;
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
mod laws;
mod machine;
mod pod_objects;
mod rng;
mod runner;
mod scenario;
mod shrink;
mod sources;
mod trace;
mod usage;

use std::num::NonZeroUsize;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

use runner::{Report, run};
use scenario::Scenario;
use shrink::shrink;
use trace::KEPT;

/// The seeds of `failed-seeds.txt`. Each of them failed once, and the file names the fault that it found.
pub fn seeds_that_failed() -> Vec<u64> {
    let lines = include_str!("failed-seeds.txt").lines();
    lines.filter_map(|line| line.split('#').next()?.trim().parse().ok()).collect()
}

/// Simulates seeds on all cores until `next` returns `None`. As soon as a seed fails, calls `failed` with the seed and the description
/// of the failure. Returns the number of simulated seeds.
pub fn simulate(next: impl FnMut() -> Option<u64> + Send, failed: impl FnMut(u64, String) + Send) -> usize {
    let (next, failed) = (Mutex::new(next), Mutex::new(failed));
    let count = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZeroUsize::get) {
            scope.spawn(|| {
                loop {
                    // The lock is not held while a seed is simulated.
                    let seed = (next.lock())();
                    let Some(seed) = seed else { break };
                    count.fetch_add(1, Ordering::Relaxed);
                    if let Err(failure) = simulate_seed(seed) {
                        (failed.lock())(seed, failure);
                    }
                }
            });
        }
    });
    count.into_inner()
}

/// Simulates one seed.
///
/// # Errors
/// The violation, the command that repeats it, the smallest scenario that still fails, and the last lines of its trace.
pub fn simulate_seed(seed: u64) -> Result<(), String> {
    let simulated = catch_unwind(|| {
        let scenario = Arc::new(generator::scenario(seed));
        let report = run(&scenario, KEPT);
        describe(&scenario, report, KEPT)
    });
    simulated.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("the simulation panicked: {}", text.unwrap_or("without a text")))
    })
}

/// Simulates one seed, and keeps its whole trace.
///
/// # Errors
/// The violation, the command that repeats it, the whole scenario and the whole trace.
pub fn trace_seed(seed: u64) -> Result<(), String> {
    let scenario = Arc::new(generator::scenario(seed));
    let report = run(&scenario, usize::MAX);
    describe(&scenario, report, usize::MAX)
}

/// Describes the violation in a report. If the whole trace is kept, the scenario is not shrunk.
fn describe(scenario: &Arc<Scenario>, report: Report, kept: usize) -> Result<(), String> {
    let Some(violation) = report.violation.clone() else { return Ok(()) };
    let again = run(scenario, KEPT);
    if again.hash != report.hash || again.violation != report.violation {
        // Both traces are kept in full, because the first difference may be long before the end.
        let [one, other] = [(); 2].map(|()| run(scenario, usize::MAX).trace);
        let difference = one.lines().zip(other.lines()).find(|(one, other)| one != other);
        return Err(format!(
            "{violation}\n\nSeed {} does not repeat: another run found {:?}. Something random does not come from the seed: fix \
             that too. Two more runs differ first at {difference:?}.\n\n{}",
            scenario.seed, again.violation, report.trace,
        ));
    }
    let whole = scenario.steps.len();
    let (small, report) = if kept == KEPT { shrink(scenario.clone(), report) } else { (scenario.clone(), report) };
    Err(format!(
        "{violation}\n\nTo repeat it with its whole trace:\n    make simulate SEED={}\n\n\
         {} of {whole} steps are enough:\n{small}\n{}\n{}",
        small.seed,
        small.steps.len(),
        report.trace,
        report.violation.unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// These seeds find most mistakes in a change. `make soak` searches with new seeds.
    const SEEDS: u64 = 300;

    // Takes a minute: it simulates the histories of about 350 nodes.
    #[test]
    fn random_lives_of_a_node_keep_every_invariant() {
        let mut seeds = seeds_that_failed().into_iter().chain(1..=SEEDS);
        let mut failures = Vec::new();
        let count = simulate(|| seeds.next(), |_, failure| failures.push(failure));
        assert!(failures.is_empty(), "{} of {count} seeds fail:\n\n{}", failures.len(), failures.join("\n\n"));
    }

    #[test]
    fn simulation_seed_repeats_every_step() {
        for seed in 0..8 {
            let reports = [(); 2].map(|()| run(&Arc::new(generator::scenario(seed)), usize::MAX));
            assert_eq!(reports[0].hash, reports[1].hash, "seed {seed}");
            assert!(reports[0].trace.lines().count() > 100, "seed {seed}");
        }
    }

    #[test]
    fn simulation_failure_that_does_not_repeat_is_reported() {
        let scenario = Arc::new(generator::scenario(0));
        let once = Report { violation: Some("happened once".to_owned()), ..run(&scenario, KEPT) };
        let failure = describe(&scenario, once, KEPT).unwrap_err();
        assert!(failure.contains("does not repeat"), "{failure}");
    }

    #[test]
    fn a_failed_seed_is_listed_once() {
        let seeds = seeds_that_failed();
        assert!(seeds.len() > 40, "the file has {seeds:?}");
        assert_eq!(seeds.iter().collect::<BTreeSet<_>>().len(), seeds.len(), "{seeds:?}");
    }
}
