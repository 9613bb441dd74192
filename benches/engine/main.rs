//! What the engine costs when the work it dispatches costs nothing: seven workloads, each run in fresh processes, beside
//! the figures of upstream's pod workers on the same workloads.
//!
//! ```text
//! cargo bench --bench engine                     five runs of all, up to 100,000 pods: 15 minutes
//! cargo bench --bench engine -- --quick          one run of all, up to 10,000 pods
//! cargo bench --bench engine -- w3 --n 1000      one workload
//! ```
//!
//! The table goes to standard output, all values to `target/podwright-bench.json`. Upstream's figures are from another
//! machine unless it was measured beside this; compare ratios. Not criterion, which repeats a closure in one process and knows
//! only its time: a workload here is a run of its own with memory, CPU time and tails, and is compared with upstream's
//! figures instead of its own last ones. Allocations are counted per thread and cost about a
//! nanosecond each, which is in all figures.

#[path = "../support/apart.rs"]
mod apart;
#[path = "../support/args.rs"]
mod args;
mod bed;
#[path = "../support/figures.rs"]
mod figures;
mod hooks;
mod housekeeping;
mod latency;
mod lifecycle;
mod measure;
mod memory;
#[path = "../support/pods.rs"]
mod pods;
#[path = "../support/process.rs"]
mod process;
mod queries;
#[path = "../support/refused.rs"]
mod refused;
mod report;
mod retry;
mod runs;
mod suites;
mod update_storm;

use std::env;
use std::process::ExitCode;

use alloc_tracker::Allocator;
use mimalloc::MiMalloc;

use args::{Offer, Task};
use bed::Scale;

/// A fast allocator, so that what the engine does is what shows; counted.
#[global_allocator]
static ALLOCATOR: Allocator<MiMalloc> = Allocator::new(MiMalloc);

/// Runs of each workload: the figures are medians, and a median of fewer says little.
const RUNS: usize = 5;
/// How to call it.
const USAGE: &str = "\
usage: cargo bench --bench engine -- [FILTER...] [--quick] [--n N]... [--runs RUNS]
       FILTER  workloads whose name contains it, such as w3 or lifecycle
       --quick one run each, up to 10,000 pods";
/// What a million is divided by where a run is only to show that it runs.
const TINY: Scale = Scale { n: 16, shrink: 10_000 };

fn main() -> ExitCode {
    let names: Vec<_> = suites::SUITES.iter().map(|suite| suite.name).collect();
    let offer = Offer { names: &names, sizes: &report::SIZES, runs: RUNS };
    let done = match args::parse(env::args().skip(1), offer) {
        Ok(task) => perform(task),
        Err(error) => Err(format!("{error}\n{USAGE}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: Task) -> Result<(), String> {
    match task {
        Task::Measure(plan) => {
            let results = runs::measure(&plan)?;
            report::write(&plan, &results).map_err(|error| format!("cannot write the results: {error}"))
        }
        Task::RunOne { name, n } => {
            let suite = suites::suite(name).ok_or_else(|| format!("no workload {name}"))?;
            let figures = (suite.run)(Scale { n, shrink: 1 });
            let figures: serde_json::Map<_, _> =
                figures.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
            println!("{}", serde_json::Value::Object(figures));
            Ok(())
        }
        Task::Try { names } => {
            for suite in suites::SUITES.iter().filter(|suite| names.contains(&suite.name)) {
                let figures = (suite.run)(TINY);
                match figures.iter().find(|(_, value)| !value.is_finite()) {
                    Some((figure, value)) => return Err(format!("{}: {figure} is {value}", suite.name)),
                    None => println!("{}: ok", suite.name),
                }
            }
            Ok(())
        }
        Task::List { names } => {
            names.iter().for_each(|name| println!("{name}: test"));
            Ok(())
        }
    }
}
