//! Measures the controllers against the API server of the tests, which runs in another process.
//!
//! ```text
//! cargo bench --locked --bench controllers                   2,000 pods: one minute
//! cargo bench --locked --bench controllers -- --n 5000 failures
//! cargo bench --locked --bench controllers -- --n 5000 evictions
//! cargo bench --locked --bench controllers -- --n 50000 evaluations
//! ```
//!
//! Workloads of the ResourceClaim controller:
//! - `backlog`: N pods with one claim each exist before the controller starts. A latency counts from the start of the controller.
//! - `stream`: 200 pods with one claim each are created in each second. A latency counts from the creation of the pod.
//! - `failures`: N pods with two claims each, and 10 % of the writes fail: refusals, conflicts, lost requests and lost answers. After
//!   100 failures, the controller repeats 10 passes in a second, as upstream does. So this takes minutes.
//!
//! Targets: the backlog needs 2 requests for each claim, a create and the write of a status; each entry of a pod has exactly one claim.
//! Upstream's controller (1.36) followed 217 pods per second on a real server with raised client limits, with a 99th percentile of
//! 0.26 s and 155 MiB.
//!
//! Workloads of the device taint eviction controller:
//! - `evictions`: N pods use devices of one driver. A rule taints all of them at one time. The times count from the creation of the rule.
//!   Another run has the same N pods, and its rule taints the device of one of them. The RSS of both runs shows what the evictions need.
//! - `evaluations`: the core alone with N claims and pods. A rule that hits all of them is added and removed; each time, all claims are
//!   computed and all pods evaluated.
//!
//! Targets: 3 requests for each pod, never more than 8 calls in flight, and memory that grows with the cluster and not with the rule.
//! `evictions` fails if more than one request of a hundred pods is repeated, or, with 1,000 pods or more, if an evicted pod needs more than
//! 8 KiB.
//! Upstream's controller (1.36) marked 2,000 pods for deletion in 11.1 s on a real server with raised client limits, half of them in 5.8 s,
//! with 3.4 s of CPU and 168 MiB.

#[path = "../support/args.rs"]
#[expect(dead_code, reason = "each workload runs once")]
mod args;
mod controller;
#[path = "../support/figures.rs"]
#[expect(dead_code, reason = "the figures go to standard output only")]
mod figures;
mod taints;
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

/// A workload.
#[derive(Clone, Copy)]
enum Workload {
    Claims(Kind),
    Evictions,
    Evaluations,
}

const WORKLOADS: [(&str, Workload); 5] = [
    ("backlog", Workload::Claims(Kind::Backlog)),
    ("stream", Workload::Claims(Kind::Stream)),
    ("failures", Workload::Claims(Kind::Failures)),
    ("evictions", Workload::Evictions),
    ("evaluations", Workload::Evaluations),
];
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
    args::run(offer, "usage: cargo bench --locked --bench controllers -- [--quick] [--n N]... [WORKLOAD]...", perform)
}

fn perform(task: Task) -> Result<(), String> {
    match task {
        Task::Measure(plan) => {
            println!("{}", figures::machine());
            for name in plan.names {
                plan.sizes.iter().try_for_each(|n| measure(name, *n, true))?;
            }
        }
        Task::RunOne { name, n } => measure(name, n, true)?,
        Task::Try { names } => {
            for name in names {
                measure(name, TINY, false)?;
                println!("{name}: ok");
            }
        }
        Task::List { names } => names.iter().for_each(|name| println!("{name}: test")),
    }
    Ok(())
}

/// Runs a workload, and prints its figures.
fn measure(name: &str, n: usize, prints: bool) -> Result<(), String> {
    let workload = WORKLOADS.iter().find(|(other, _)| *other == name).map(|(_, workload)| *workload);
    let lines = match workload.unwrap_or(Workload::Claims(Kind::Backlog)) {
        Workload::Claims(kind) => of_claims(&run(kind, n)?),
        Workload::Evictions => of_evictions(&taints::evictions(n)?),
        Workload::Evaluations => of_evaluations(&taints::evaluations(n)),
    };
    if prints {
        println!("\n{name}, {n} pods");
        lines.iter().for_each(|(what, value)| println!("{what:<34} {value:>11}"));
    }
    Ok(())
}

fn of_claims(figures: &Figures) -> Vec<(&'static str, String)> {
    vec![
        ("claims", figures.claims.to_string()),
        ("claims per second", number(figures.claims as f64 / figures.seconds)),
        ("p50, ms", number(figures.p50_ms)),
        ("p99, ms", number(figures.p99_ms)),
        ("requests per claim", number(figures.requests as f64 / figures.claims as f64)),
        ("largest RSS, MiB", number(figures.rss_mib)),
        ("duplicate or missing claims", figures.wrong.to_string()),
    ]
}

fn of_evictions(figures: &taints::Evictions) -> Vec<(&'static str, String)> {
    vec![
        ("half of the pods deleted after, s", number(figures.half_seconds)),
        ("all pods deleted after, s", number(figures.all_seconds)),
        ("pods per second", number(figures.pods as f64 / figures.all_seconds)),
        ("requests per pod", number(figures.requests as f64 / figures.pods as f64)),
        ("pods deleted twice", figures.twice.to_string()),
        ("CPU, s", number(figures.usage.cpu_seconds)),
        ("largest RSS, MiB", number(figures.usage.rss_mib)),
        ("largest RSS if one pod is hit, MiB", number(figures.rss_of_one_mib)),
    ]
}

fn of_evaluations(figures: &taints::Evaluations) -> Vec<(&'static str, String)> {
    vec![
        ("evaluations of pods per second", number(figures.pods_per_second)),
        ("a rule added and evaluated, ms", number(figures.rule_ms)),
        ("largest RSS, MiB", number(figures.rss_mib)),
    ]
}
