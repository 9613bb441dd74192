//! Measures how long the claims of pods take beyond the time of their drivers: N pods with one claim each, half of them of one simulated
//! driver, half of another, prepare and release their claims all at once. Each size runs in a process of its own.
//!
//! ```text
//! cargo bench --locked --bench claims                   100 and 1,000 pods: 10 seconds
//! cargo bench --locked --bench claims -- --n 5000
//! ```
//!
//! Workloads:
//! - `serial_drivers`: a driver serves one call after the other, as the drivers of upstream's helper do. A call takes 5 ms, and waits in
//!   the queue of its driver before that.
//! - `parallel_drivers`: a driver serves all calls at once, 5 ms each.
//!
//! Targets: the 99th percentile of a prepare is at most twice that of its driver (latency and queue). Each change of a claim adds one
//! record to the file, and a change costs as many bytes with 1,000 pods as with 100. The file is on the disk of the target directory,
//! and each write waits for the disk. The table goes to standard output, all values to `target/podwright-claims-bench.json`.

#[path = "../support/apart.rs"]
mod apart;
#[path = "../support/args.rs"]
#[expect(dead_code, reason = "each workload runs once")]
mod args;
#[path = "../support/figures.rs"]
mod figures;
mod ports;
mod report;
mod workload;

use std::process::ExitCode;

use mimalloc::MiMalloc;

use apart::apart;
use args::{Offer, Task};
use ports::Service;
use workload::{Figures, run};

/// A fast allocator, as in the engine's bench.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const WORKLOADS: [(&str, Service); 2] = [("serial_drivers", Service::Serial), ("parallel_drivers", Service::Parallel)];
/// A node's usual limit, and ten times as many.
const SIZES: [usize; 2] = [100, 1_000];
/// The size of a run that only shows that the bench runs.
const TINY: usize = 10;

fn main() -> ExitCode {
    let names = WORKLOADS.map(|(name, _)| name);
    let offer = Offer { names: &names, sizes: &SIZES, runs: 1 };
    args::run(offer, "usage: cargo bench --locked --bench claims -- [--quick] [--n N]... [WORKLOAD]...", perform)
}

fn perform(task: Task) -> Result<(), String> {
    match task {
        Task::Measure(plan) => {
            let mut results = Vec::new();
            for name in plan.names {
                let sizes = plan.sizes.iter();
                let figures =
                    sizes.map(|n| Ok((*n, apart::<Figures>(name, *n)?))).collect::<Result<Vec<_>, String>>()?;
                results.push((name, figures));
            }
            report::write(&results).map_err(|error| format!("cannot write the results: {error}"))
        }
        Task::RunOne { name, n } => {
            let figures = serde_json::to_string(&run(service(name), n)).map_err(|error| error.to_string())?;
            println!("{figures}");
            Ok(())
        }
        Task::Try { names } => {
            for name in names {
                run(service(name), TINY);
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

fn service(name: &str) -> Service {
    let found = WORKLOADS.iter().find(|(other, _)| *other == name);
    found.map_or(Service::Serial, |(_, service)| *service)
}
