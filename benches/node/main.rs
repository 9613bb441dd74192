//! Measures what a whole node costs when its containers cost nothing: N pods of the simulated runtime are created, idle, lose a
//! tenth of their containers, are updated and deleted. Each size runs in a process of its own.
//!
//! ```text
//! cargo bench --locked --bench node                     1,000, 10,000 and 100,000 pods: 5 minutes
//! cargo bench --locked --bench node -- --quick          1,000 and 10,000 pods
//! cargo bench --locked --bench node -- --n 5000
//! ```
//!
//! The last column is the result: the cost per pod at the largest size divided by the cost at the smallest. If some
//! pass iterated over all pods for each pod, this would show there. Target: at most 3, as for the engine. The table goes to
//! standard output, all values to `target/podwright-node-bench.json`.

#[path = "../support/apart.rs"]
mod apart;
#[path = "../support/args.rs"]
#[expect(dead_code, reason = "there is one workload, run once")]
mod args;
#[path = "../support/figures.rs"]
mod figures;
mod marks;
mod phases;
#[path = "../support/pods.rs"]
#[expect(dead_code, reason = "pods are made one by one")]
mod pods;
mod ports;
#[path = "../support/process.rs"]
#[expect(dead_code, reason = "the engine's workloads measure more")]
mod process;
mod report;

use std::process::ExitCode;

use mimalloc::MiMalloc;
use serde_json::Value;

use apart::apart;
use args::{Offer, Task};

/// A fast allocator, as in the engine's bench.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// A node's usual limit times ten, and two decades.
const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
/// The size of a run that only shows that the bench runs.
const TINY: usize = 20;

fn main() -> ExitCode {
    let offer = Offer { names: &["node"], sizes: &SIZES, runs: 1 };
    args::run(offer, "usage: cargo bench --locked --bench node -- [--quick] [--n N]...", perform)
}

fn perform(task: Task) -> Result<(), String> {
    match task {
        Task::Measure(plan) => {
            let mut results = Vec::new();
            for (name, n) in plan.names.iter().flat_map(|name| plan.sizes.iter().map(move |n| (name, *n))) {
                eprintln!("{n} pods");
                results.push((n, apart(name, n)?));
            }
            report::write(&results).map_err(|error| format!("cannot write the results: {error}"))
        }
        Task::RunOne { n, .. } => {
            println!("{}", Value::Object(phases::run(n, phases::IDLE)));
            Ok(())
        }
        Task::Try { names } => {
            for name in names {
                phases::run(TINY, phases::IDLE / 50);
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
