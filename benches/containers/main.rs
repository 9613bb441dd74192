//! Measures what pods cost as containers: N one-container pods on the host network, started and removed by an agent, once as
//! manifests and once as pods of an API server, beside the floor: the same containers started and removed by the same runtime
//! calls without an agent.
//!
//! ```text
//! cargo bench --locked --bench containers                     100 pods, three runs: 12 minutes
//! cargo bench --locked --bench containers -- --n 20 --runs 1
//! ```
//!
//! Runs of the floor and of the agent take turns on one containerd with a root, state and socket of its own. Needs root,
//! containerd, runc and a static busybox; otherwise it prints what is missing and measures nothing. Targets: the agent within
//! 10 % of the floor, 2 millicores when idle, 25 MiB with manifests and 35 MiB with an API server, and 20 ms of CPU time for a scrape of
//! `/metrics/cadvisor` with 100 pods. The table goes to standard output, all values to `target/podwright-containers-bench.json`.

#![expect(clippy::disallowed_methods, reason = "the bench waits for other processes")]

mod agent;
#[path = "../support/args.rs"]
#[expect(dead_code, reason = "there is one workload, and its runs share a runtime")]
mod args;
mod cluster;
#[path = "../support/figures.rs"]
mod figures;
mod floor;
#[path = "../../tests/it/agent/cluster_node_api/https.rs"]
#[expect(clippy::unwrap_used, reason = "shared with tests, and nothing can be measured without it")]
mod https;
mod manifests;
mod report;

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use args::{Offer, Task};
use floor::Floor;
use podwright_containerd::{Instance, calls, image};
use podwright_fixtures::required::{Program, found_or_skip};
use report::Run;

/// A node's usual number of pods.
const SIZES: [usize; 1] = [100];
/// The size of a run that only shows that the bench runs.
const TINY: usize = 2;
const RUNS: usize = 3;
/// How long the idle agent is measured: one step of the CPU clock is 0.2 millicores.
const REST: Duration = Duration::from_secs(60);
/// The longest wait for any step.
const PATIENCE: Duration = Duration::from_secs(180);

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let offer = Offer { names: &["containers"], sizes: &SIZES, runs: RUNS };
    args::run(offer, "usage: cargo bench --locked --bench containers -- [--quick] [--n N]... [--runs RUNS]", perform)
}

fn perform(task: Task) -> Result<(), Error> {
    match task {
        Task::Measure(plan) => {
            for n in plan.sizes {
                let Some(runs) = measure(n, plan.runs, REST)? else { return Ok(()) };
                report::write(n, &runs)?;
            }
            Ok(())
        }
        Task::RunOne { .. } => Err("each run needs the runtime that the others leave: use --n and --runs".into()),
        Task::Try { names } => {
            for name in names {
                measure(TINY, 1, Duration::ZERO)?;
                println!("{name}: ok");
            }
            Ok(())
        }
        Task::List { names } => {
            names.iter().for_each(|name| println!("{name}: test"));
            Ok(())
        }
    }
}

/// All runs, or `None` if containerd cannot run.
fn measure(n: usize, count: usize, rest: Duration) -> Result<Option<Vec<Run>>, Error> {
    let instance = Instance::turn().map_err(|missing| format!("pods are not run as containers: {missing}"));
    let Some(instance) = found_or_skip(Program::Containerd, instance) else { return Ok(None) };
    if !instance.runs() {
        instance.prepare();
        instance.start();
        wait("containerd answers", || Ok(instance.runs().then_some(())))?;
    }
    // One thread serves the API server while this one waits.
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let floor = tokio.block_on(async { Floor::new(&instance) })?;
    wait("its plugins are there", || Ok(tokio.block_on(floor.is_ready()).then_some(())))?;
    instance.import(&[image::BUSYBOX, image::PAUSE]);
    instance.watch();
    empty(&tokio, &floor)?;
    // The first containers of a runtime are slower, so they are not measured.
    tokio.block_on(floor.run(n.min(10), 4))?;
    // Determined once. The best of several in each run would favour the floor, because it would select the fastest runs.
    let in_flight = tokio.block_on(floor.best_in_flight(n))?;
    let mut runs = Vec::new();
    for number in 1..=count {
        eprintln!("run {number} of {count}");
        let took = tokio.block_on(floor.run(n, in_flight))?;
        let manifests = manifests::run(&instance, n, rest)?;
        empty(&tokio, &floor)?;
        let cluster = cluster::run(&tokio, &instance, n, rest)?;
        empty(&tokio, &floor)?;
        runs.push(Run { floor: took, manifests, cluster });
    }
    Ok(Some(runs))
}

/// Removes all pods. The runtime refuses to remove a container that it is starting, so the removal is tried again.
fn empty(tokio: &tokio::runtime::Runtime, floor: &Floor) -> Result<(), Error> {
    let mut last = None;
    let emptied = wait("the runtime has no pods", || match tokio.block_on(floor.empty()) {
        Ok(()) => Ok(Some(())),
        Err(error) => {
            last = Some(error);
            Ok(None)
        }
    });
    emptied.map_err(|error| last.map_or_else(|| error.to_string(), |last| format!("{error}: {last}")).into())
}

/// The value at this share of the sorted values, such as 0.5 for the median.
fn at(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len()) - 1]
}

/// Calls `poll` until it returns a value.
fn wait<T>(what: &str, mut poll: impl FnMut() -> Result<Option<T>, Error>) -> Result<T, Error> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        sleep(Duration::from_millis(20));
    }
    Err(format!("{what}: not within {PATIENCE:?}").into())
}
