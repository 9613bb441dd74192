//! Simulations of whole nodes in virtual time. Each seed generates one scenario of pods, updates, faults, crashes and
//! restarts. Invariants are checked at every call and every second.
//!
//! ```text
//! scenario(api, seed) -> Scenario       pure; a scenario stays valid when steps are dropped
//! run(scenario): agent (a real Node) over FaultyRuntime<SimulatedRuntime>, Disk, SimDrivers, and the API server:
//!                  ports:    SimSources, SimApiServer
//!                  adapters: PodSource, KubePodApi, KubeNodeApi, KubeEvents -> kube::Client -> Cluster<StandIn>
//!                one thread, paused time, checks at every call and every second -> violation
//! faults end -> every pod reaches its final state -> sources drop all pods -> nothing is left
//! ```
//!
//! Both API servers have the same steps, and check the same laws for each write. `ports` costs the least time, and its source can also drop
//! and repeat sets. `adapters` has HTTP, lists and watches, with broken connections, late answers, an expired history and lists that do not
//! end. Its client has no sockets, so the timeouts of connections are not simulated.
//!
//! Each run of a seed has the same steps:
//!
//! - All tasks run on one thread, in a runtime whose time is paused. No task blocks, and no code of a simulation starts a thread.
//! - The clocks of the node and of the API server follow that time.
//! - The backoffs of kube and of events draw from the generator of the thread, which gets the seed. The stand-in draws its names and UIDs
//!   from the seed too.
//! - tokio polls the branches of a `select!` at random, and wakes the receivers of a watch channel at random. So a `select!` whose branches
//!   can be ready at one time is `biased`, and the watches of the stand-in wait in one queue.
//! - The tasks of a killed agent are dropped in the order of their list, because the server may perform their requests then.
//! - The certificates of the stand-in differ in each run. No part of a simulation reads them.
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
mod cluster;
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

pub use scenario::Api;

/// The seeds of `failed-seeds.txt` and of `failed-adapter-seeds.txt`. Each of them failed once, and the file names the fault that it found.
pub fn seeds_that_failed(api: Api) -> Vec<u64> {
    let lines = match api {
        Api::Ports => include_str!("failed-seeds.txt").lines(),
        Api::Adapters => include_str!("failed-adapter-seeds.txt").lines(),
    };
    lines.filter_map(|line| line.split('#').next()?.trim().parse().ok()).collect()
}

/// Simulates seeds on all cores until `next` returns `None`. As soon as a seed fails, calls `failed` with the seed and the description
/// of the failure. Returns the number of simulated seeds.
pub fn simulate(api: Api, next: impl FnMut() -> Option<u64> + Send, failed: impl FnMut(u64, String) + Send) -> usize {
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
                    if let Err(failure) = simulate_seed(api, seed) {
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
pub fn simulate_seed(api: Api, seed: u64) -> Result<(), String> {
    let simulated = catch_unwind(|| {
        let scenario = Arc::new(generator::scenario(api, seed));
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
pub fn trace_seed(api: Api, seed: u64) -> Result<(), String> {
    let scenario = Arc::new(generator::scenario(api, seed));
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
        "{violation}\n\nTo repeat it with its whole trace:\n    make simulate SEED={} API={}\n\n\
         {} of {whole} steps are enough:\n{small}\n{}\n{}",
        small.seed,
        small.api.as_str(),
        small.steps.len(),
        report.trace,
        report.violation.unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Simulates the seeds that failed, and the first seeds. They find most mistakes in a change. `make soak` searches with new seeds.
    fn seeds_pass(api: Api, first: u64) {
        let mut seeds = seeds_that_failed(api).into_iter().chain(1..=first);
        let mut failures = Vec::new();
        let count = simulate(api, || seeds.next(), |_, failure| failures.push(failure));
        assert!(failures.is_empty(), "{} of {count} seeds fail:\n\n{}", failures.len(), failures.join("\n\n"));
    }

    // Takes over a minute: it simulates the histories of more than 340 nodes.
    #[test]
    fn random_lives_of_a_node_keep_every_invariant() {
        seeds_pass(Api::Ports, 300);
    }

    // Takes over 20 s: an agent with adapters needs several times the CPU time of one on ports, because each object is encoded and decoded.
    #[test]
    fn random_lives_of_a_node_with_an_api_server_keep_every_invariant() {
        seeds_pass(Api::Adapters, 20);
    }

    /// The trace of a seed that is simulated twice.
    fn repeated(api: Api, seed: u64) -> String {
        let [one, other] = [(); 2].map(|()| run(&Arc::new(generator::scenario(api, seed)), usize::MAX));
        let difference = one.trace.lines().zip(other.trace.lines()).find(|(one, other)| one != other);
        assert_eq!(one.hash, other.hash, "seed {seed} of the {} differs first at {difference:?}", api.as_str());
        assert!(one.trace.lines().count() > 100, "seed {seed} of the {}", api.as_str());
        one.trace
    }

    // Takes over 20 s: it simulates 16 nodes one after the other, and keeps their whole traces.
    #[test]
    fn simulation_seed_repeats_every_step() {
        (0..8).for_each(|seed| drop(repeated(Api::Ports, seed)));
    }

    // Takes over 20 s: it simulates 8 nodes with an API server one after the other, and keeps their whole traces.
    #[test]
    fn simulation_seed_of_the_adapters_repeats_every_request() {
        let traces: String = (0..4).map(|seed| repeated(Api::Adapters, seed)).collect();
        // The watch, a status, a mirror pod, an event, the lease and the node.
        for (method, path, answer) in [
            ("GET", "/api/v1/pods?", "200 OK"),
            ("PATCH", "/status?", "200 OK"),
            ("POST", "/api/v1/namespaces/sim/pods?", "201 Created"),
            ("POST", "/events?", "201 Created"),
            ("PUT", "/leases/node1?", "200 OK"),
            ("POST", "/api/v1/nodes?", "201 Created"),
        ] {
            let is_meant =
                |line: &str| line.contains(&format!(" {method} ")) && line.contains(path) && line.ends_with(answer);
            assert!(traces.lines().any(is_meant), "no {method} of {path} is answered with {answer}");
        }
    }

    #[test]
    fn simulation_failure_that_does_not_repeat_is_reported() {
        let scenario = Arc::new(generator::scenario(Api::Ports, 0));
        let once = Report { violation: Some("happened once".to_owned()), ..run(&scenario, KEPT) };
        let failure = describe(&scenario, once, KEPT).unwrap_err();
        assert!(failure.contains("does not repeat"), "{failure}");
    }

    #[test]
    fn a_failed_seed_is_listed_once() {
        for (api, known) in [(Api::Ports, 41), (Api::Adapters, 0)] {
            let seeds = seeds_that_failed(api);
            assert!(seeds.len() >= known, "the file has {seeds:?}");
            assert_eq!(seeds.iter().collect::<BTreeSet<_>>().len(), seeds.len(), "{seeds:?}");
        }
    }
}
