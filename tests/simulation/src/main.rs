//! Simulates nodes from seeds, and prints each seed that fails with its smallest scenario.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use podwright_simulation::{Api, simulate, trace_seed};

/// Simulates whole nodes in virtual time. Without --seed, simulates the seeds from --from on: --seeds of them, or as many as fit into
/// --time.
#[derive(Parser)]
struct Args {
    /// What the agent uses as its API server.
    #[arg(long, value_enum, default_value_t = Api::Ports)]
    api: Api,
    /// Simulate this seed alone, and print its whole trace if it fails.
    #[arg(long, conflicts_with_all = ["from", "seeds", "time"])]
    seed: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// The number of seeds.
    #[arg(long, default_value_t = 1000, conflicts_with = "time")]
    seeds: u64,
    /// Simulate seeds for this many seconds, instead of a number of seeds.
    #[arg(long)]
    time: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(seed) = args.seed {
        if let Err(failure) = trace_seed(args.api, seed) {
            println!("seed {seed} fails: {failure}");
            return ExitCode::FAILURE;
        }
        println!("seed {seed} passes");
        return ExitCode::SUCCESS;
    }
    let begin = Instant::now();
    let mut seed = args.from;
    let next = || {
        let goes_on = match args.time {
            Some(seconds) => begin.elapsed() < Duration::from_secs(seconds),
            None => seed - args.from < args.seeds,
        };
        seed += u64::from(goes_on);
        goes_on.then(|| seed - 1)
    };
    let mut failed = Vec::new();
    let count = simulate(args.api, next, |seed, failure| {
        println!("seed {seed} fails: {failure}\n");
        failed.push(seed);
    });
    println!(
        "simulation of the {}: {count} seeds from {} in {:.0?}, {} failed: {failed:?}",
        args.api.as_str(),
        args.from,
        begin.elapsed(),
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
