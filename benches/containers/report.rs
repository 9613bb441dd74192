//! The table and the file.

use std::fs;

use serde::Serialize;
use serde_json::json;

use super::Error;
use super::agent::Figures;
use super::figures::{file, machine, number};
use super::floor::Took;

/// One turn of both.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) floor: Took,
    pub(crate) agent: Figures,
}

/// Prints the medians and writes all runs.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(n: usize, runs: &[Run]) -> Result<(), Error> {
    let median = |of: &dyn Fn(&Run) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let floor = median(&|run| run.floor.start_s);
    let all = median(&|run| run.agent.running_all_s);
    println!("{}\n{n} pods, medians of {} runs\n", machine(), runs.len());
    println!("{:<44} {:>9} {:>6}  target", "figure", "value", "unit");
    let line = |what: &str, value: f64, unit: &str, target: Option<f64>| {
        let judged = target.map(|most| {
            let word = if value <= most { "pass" } else { "MISS" };
            format!("at most {} {word}", number(most))
        });
        println!("{what:<44} {:>9} {unit:>6}  {}", number(value), judged.unwrap_or_default());
    };
    line("floor: all started", floor, "s", None);
    line("floor: all removed", median(&|run| run.floor.remove_s), "s", None);
    line("agent: Running, p50", median(&|run| run.agent.running_p50_s), "s", None);
    line("agent: Running, p99", median(&|run| run.agent.running_p99_s), "s", None);
    line("agent: Running, all", all, "s", Some(floor * 1.1));
    line("agent: CPU until all run", median(&|run| run.agent.cpu_s), "s", None);
    line("agent: resident memory", median(&|run| run.agent.rss_mib), "MiB", Some(25.0));
    line("agent: at rest", median(&|run| run.agent.idle_millicores), "mCPU", Some(2.0));
    line("agent: all gone", median(&|run| run.agent.gone_all_s), "s", None);
    let path = file("podwright-containers-bench.json");
    let values = json!({ "machine": machine(), "pods": n, "runs": runs });
    fs::write(&path, serde_json::to_string_pretty(&values)?)?;
    println!("\nall values: {}", path.display());
    Ok(())
}
