//! What a whole node costs when its containers cost nothing: N pods of the simulated runtime are created, idle, lose a
//! tenth of their containers, are updated and deleted. Each size runs in a process of its own.
//!
//! ```text
//! cargo bench --bench node                     1,000, 10,000 and 100,000 pods: 5 minutes
//! cargo bench --bench node -- --quick          1,000 and 10,000 pods
//! cargo bench --bench node -- --n 5000
//! ```
//!
//! What to look at is the last column: cost per pod at the largest size over that at the smallest. A node in which some
//! pass looks at all pods for each pod would show it there. Target: at most 3, as for the engine. The table goes to
//! standard output, all values to `target/podwright-node-bench.json`.

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

use std::env;
use std::process::{Command, ExitCode, Stdio};

use mimalloc::MiMalloc;
use serde_json::{Map, Value};

/// A fast allocator, as in the engine's bench.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// A node's usual limit times ten, and two decades.
const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
/// Where a run is only to show that it runs.
const TINY: usize = 20;

fn main() -> ExitCode {
    match perform(env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}\nusage: cargo bench --bench node -- [--quick] [--n N]...");
            ExitCode::FAILURE
        }
    }
}

/// Cargo gives `--bench` for `cargo bench` only; nextest asks for `--list` first and then for one name.
fn perform(mut args: impl Iterator<Item = String>) -> Result<(), String> {
    let (mut bench, mut quick, mut list, mut ignored, mut run) = (false, false, false, false, false);
    let mut sizes = Vec::new();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--bench" => bench = true,
            "--quick" => quick = true,
            "--list" => list = true,
            "--ignored" => ignored = true,
            "--run" => run = true,
            "--n" => sizes.push(value()?.parse().map_err(|error| format!("--n: {error}"))?),
            "--format" | "--color" | "--test-threads" => drop(value()?),
            flag if flag.starts_with('-') && !["--exact", "--nocapture", "--quiet"].contains(&flag) => {
                return Err(format!("unknown argument {flag}"));
            }
            _ => {}
        }
    }
    if list || ignored {
        if !ignored {
            println!("node: test");
        }
        return Ok(());
    }
    if run {
        let n = *sizes.first().ok_or("--run needs --n")?;
        println!("{}", Value::Object(phases::run(n, phases::IDLE)));
        return Ok(());
    }
    if !bench {
        phases::run(TINY, phases::IDLE / 50);
        println!("node: ok");
        return Ok(());
    }
    if sizes.is_empty() {
        sizes = SIZES.into_iter().filter(|n| !quick || *n <= 10_000).collect();
    }
    let results = sizes.iter().map(|n| Ok((*n, apart(*n)?))).collect::<Result<Vec<_>, String>>()?;
    report::write(&results).map_err(|error| format!("cannot write the results: {error}"))
}

/// One run in a process of its own.
fn apart(n: usize) -> Result<Map<String, Value>, String> {
    eprintln!("{n} pods");
    let what = |error: String| format!("{n} pods: {error}");
    let program = env::current_exe().map_err(|error| what(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(["--run", "--n", &n.to_string()]).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| what(error.to_string()))?;
    if !output.status.success() {
        return Err(what(output.status.to_string()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| what(format!("{line:?}: {error}")))
}
