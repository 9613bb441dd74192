//! Measures the ResourceClaim controller against the API server of the tests, which runs in another process.
//!
//! ```text
//! cargo bench --bench controllers                   2,000 pods: one minute
//! cargo bench --bench controllers -- --n 5000 failures
//! ```
//!
//! Workloads:
//! - `backlog`: N pods with one claim each exist before the controller starts. A latency counts from the start of the controller.
//! - `stream`: 200 pods with one claim each are created in each second. A latency counts from the creation of the pod.
//! - `failures`: N pods with two claims each, and 10 % of the writes fail: refusals, conflicts, lost requests and lost answers. After
//!   100 failures, the controller repeats 10 passes in a second, as upstream does. So this takes minutes.
//!
//! Targets: the backlog needs 2 requests for each claim, a create and the write of a status; each entry of a pod has exactly one claim.
//! Upstream's controller (1.36) followed 217 pods per second on a real server with raised client limits, with a 99th percentile of
//! 0.26 s and 155 MiB.

#[path = "../support/args.rs"]
#[expect(dead_code, reason = "each workload runs once")]
mod args;
mod controller;
#[path = "../support/figures.rs"]
#[expect(dead_code, reason = "the figures go to standard output only")]
mod figures;
mod workload;

use std::env;
use std::process::ExitCode;

use mimalloc::MiMalloc;

use args::{Offer, Task};
use figures::number;
use workload::{Figures, Kind, run};

/// The allocator of the other benches.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const WORKLOADS: [(&str, Kind); 3] =
    [("backlog", Kind::Backlog), ("stream", Kind::Stream), ("failures", Kind::Failures)];
/// The size for which upstream's figures are known.
const SIZES: [usize; 1] = [2_000];
/// The size of a run that only shows that the bench runs.
const TINY: usize = 10;

fn main() -> ExitCode {
    if let Some(kubeconfig) = env::var_os(controller::KUBECONFIG) {
        return controller::run(kubeconfig.as_ref());
    }
    let names = WORKLOADS.map(|(name, _)| name);
    let offer = Offer { names: &names, sizes: &SIZES, runs: 1 };
    args::run(offer, "usage: cargo bench --bench controllers -- [--quick] [--n N]... [WORKLOAD]...", perform)
}

fn perform(task: Task) -> Result<(), String> {
    match task {
        Task::Measure(plan) => {
            println!("{}", figures::machine());
            for name in plan.names {
                for n in &plan.sizes {
                    show(name, *n, &run(kind(name), *n)?);
                }
            }
        }
        Task::RunOne { name, n } => show(name, n, &run(kind(name), n)?),
        Task::Try { names } => {
            for name in names {
                run(kind(name), TINY)?;
                println!("{name}: ok");
            }
        }
        Task::List { names } => names.iter().for_each(|name| println!("{name}: test")),
    }
    Ok(())
}

fn kind(name: &str) -> Kind {
    WORKLOADS.iter().find(|(other, _)| *other == name).map_or(Kind::Backlog, |(_, kind)| *kind)
}

fn show(name: &str, n: usize, figures: &Figures) {
    println!("\n{name}, {n} pods");
    println!("{:<34} {:>11}", "claims", figures.claims);
    println!("{:<34} {:>11}", "claims per second", number(figures.claims as f64 / figures.seconds));
    println!("{:<34} {:>11}", "p50, ms", number(figures.p50_ms));
    println!("{:<34} {:>11}", "p99, ms", number(figures.p99_ms));
    println!("{:<34} {:>11}", "requests per claim", number(figures.requests as f64 / figures.claims as f64));
    println!("{:<34} {:>11}", "largest RSS, MiB", number(figures.rss_mib));
    println!("{:<34} {:>11}", "duplicate or missing claims", figures.wrong);
}
