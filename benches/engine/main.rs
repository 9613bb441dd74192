//! Measures what the engine costs when the hooks that it calls cost nothing: seven workloads, each run in a fresh process,
//! beside the figures of upstream's pod workers for the same workloads.
//!
//! ```text
//! cargo bench --locked --bench engine                     five runs of all, up to 100,000 pods: 15 minutes
//! cargo bench --locked --bench engine -- --quick          one run of all, up to 10,000 pods
//! cargo bench --locked --bench engine -- update_to_sync --n 1000      one workload
//! ```
//!
//! The table goes to standard output, all values to `target/podwright-bench.json`. Upstream's figures are from another
//! machine unless upstream was measured in the same session, so compare ratios. Criterion does not fit: it repeats a closure
//! in one process and measures only its time, and compares with its own last figures. A workload here has its own process,
//! memory, CPU time and tail latencies. Counting an allocation takes about a nanosecond, which is part of all figures.

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

use std::process::ExitCode;

use alloc_tracker::Allocator;
use mimalloc::MiMalloc;

use args::{Offer, Task};
use bed::Scale;

/// A fast allocator, so that the figures show the engine. It counts allocations.
#[global_allocator]
static ALLOCATOR: Allocator<MiMalloc> = Allocator::new(MiMalloc);

/// Runs of each workload. The figures are medians.
const RUNS: usize = 5;
/// The usage text.
const USAGE: &str = "\
usage: cargo bench --locked --bench engine -- [FILTER...] [--quick] [--n N]... [--runs RUNS]
       FILTER  workloads whose name contains it, such as update_storm or lifecycle
       --quick one run each, up to 10,000 pods";
/// The scale of a run that only shows that the workload runs.
const TINY: Scale = Scale { n: 16, shrink: 10_000 };

fn main() -> ExitCode {
    let names: Vec<_> = suites::SUITES.iter().map(|suite| suite.name).collect();
    let offer = Offer { names: &names, sizes: &report::SIZES, runs: RUNS };
    args::run(offer, USAGE, perform)
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
