//! The table with its targets, and the file of all values.

mod lines;

use std::{fs, io};

use serde_json::{Value, json};

use crate::args::Plan;
use crate::figures::{file, grouped, machine, number};
use crate::runs::Results;
use lines::{LINES, Line, Target};

/// The numbers of pods that upstream was measured with: a node's default limit, and three decades.
pub(crate) const SIZES: [usize; 4] = [110, 1_000, 10_000, 100_000];

/// Prints the table and writes the file beside it.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(plan: &Plan, results: &Results) -> io::Result<()> {
    println!("{}", machine());
    println!("medians of {} runs in fresh processes\n", plan.runs);
    println!(
        "{:<52} {:>7} {:>13} {:>13} {:>9}  {:<22} verdict",
        "figure", "pods", "podwright", "upstream", "ratio", "target"
    );
    let cells: Vec<Cell> =
        LINES.iter().flat_map(|line| plan.sizes.iter().filter_map(|n| Cell::new(line, *n, results))).collect();
    for cell in &cells {
        println!("{cell}");
    }
    let checks = checks(plan, results);
    if !checks.is_empty() {
        println!("\nacross sizes and workloads");
    }
    for check in &checks {
        println!("{:<52} {:<58}  {:<22} {}", check.what, check.found, check.target, verdict(check.met));
    }
    let met = cells.iter().filter_map(|cell| cell.met).chain(checks.iter().map(|check| check.met));
    let (met, missed): (Vec<bool>, Vec<bool>) = met.partition(|met| *met);
    println!("\n{} targets met, {} missed", met.len(), missed.len());

    let path = file("podwright-bench.json");
    fs::write(&path, format!("{:#}\n", document(plan, results, &cells, &checks)))?;
    println!("{}", path.display());
    Ok(())
}

/// One figure at one size.
struct Cell {
    line: &'static Line,
    n: usize,
    ours: f64,
    upstream: Option<f64>,
    met: Option<bool>,
}

impl Cell {
    fn new(line: &'static Line, n: usize, results: &Results) -> Option<Cell> {
        let ours = results.median(line.suite, line.figure, n)?;
        let upstream = SIZES.iter().position(|size| *size == n).zip(line.upstream).map(|(i, column)| column[i]);
        Some(Cell { line, n, ours, upstream, met: line.target.is_met(n, ours, upstream) })
    }

    fn ratio(&self) -> Option<f64> {
        self.upstream.map(|upstream| self.ours / upstream)
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let name = format!("{} {}", self.line.name, self.line.unit);
        write!(
            f,
            "{name:<52} {:>7} {:>13} {:>13} {:>9}  {:<22} {}",
            grouped(self.n as f64),
            number(self.ours),
            optional(self.upstream),
            self.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
            if self.met.is_some() { self.line.target.to_string() } else { String::new() },
            self.met.map_or("", verdict),
        )
    }
}

/// A target over several figures.
struct Check {
    what: String,
    found: String,
    target: &'static str,
    met: bool,
}

fn checks(plan: &Plan, results: &Results) -> Vec<Check> {
    let mut checks = Vec::new();
    for n in &plan.sizes {
        let submit = |suite| results.median(suite, "calls_per_s", *n);
        if let (Some(one), Some(two)) = (submit("update_storm-1_producer"), submit("update_storm-2_producers")) {
            checks.push(Check {
                what: format!("update storm, 2 producers beside 1, {} pods", grouped(*n as f64)),
                found: format!("{:.2} times", two / one),
                target: "faster",
                met: two > one,
            });
        }
    }
    for (what, suite, figure) in [
        ("update to sync, blocking: p50", "update_to_sync_latency-blocking", "p50_us"),
        ("update to sync, with pauses: p99", "update_to_sync_latency-blocking_with_pauses", "p99_us"),
        ("update to sync, polling: p99", "update_to_sync_latency-polling", "p99_us"),
    ] {
        let values: Vec<f64> = plan.sizes.iter().filter_map(|n| results.median(suite, figure, *n)).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        if values.len() > 1 {
            checks.push(Check {
                what: format!("{what}, over all sizes"),
                found: format!("{} to {} µs", number(least), number(most)),
                target: "within 30 %",
                met: most <= least * 1.3,
            });
        }
    }
    for (what, suite, figure) in [
        ("update storm: CPU per update", "update_storm-1_producer", "cpu_ns_per_update"),
        ("lifecycle: CPU per pod", "lifecycle", "cpu_ns_per_pod"),
        ("housekeeping: pass per pod", "housekeeping-all", "ns_per_pod"),
        ("idle memory: bytes per pod", "idle_memory", "worker_bytes"),
        ("retry storm, no backoff: CPU per retry", "retry_storm-no_backoff", "cpu_ms_per_1000"),
    ] {
        let of = |n| results.median(suite, figure, n);
        if let (Some(small), Some(large)) = (of(1_000), of(100_000)) {
            checks.push(Check {
                what: format!("{what}, growth"),
                found: format!("{:.2} times from 1,000 to 100,000 pods", large / small),
                target: "at most 3 times",
                met: large <= small * 3.0,
            });
        }
    }
    checks
}

fn document(plan: &Plan, results: &Results, cells: &[Cell], checks: &[Check]) -> Value {
    let cells: Vec<Value> = cells
        .iter()
        .map(|cell| {
            json!({
                "figure": cell.line.name,
                "unit": cell.line.unit,
                "suite": cell.line.suite,
                "pods": cell.n,
                "podwright": cell.ours,
                "upstream": cell.upstream,
                "ratio": cell.ratio(),
                "target": (cell.line.target != Target::None).then(|| cell.line.target.to_string()),
                "met": cell.met,
            })
        })
        .collect();
    let checks: Vec<Value> = checks
        .iter()
        .map(|check| json!({"what": check.what, "found": check.found, "target": check.target, "met": check.met}))
        .collect();
    let values: Vec<Value> = results
        .iter()
        .map(|(suite, figure, n, values)| json!({"suite": suite, "figure": figure, "pods": n, "values": values}))
        .collect();
    json!({"machine": machine(), "runs": plan.runs, "figures": cells, "checks": checks, "values": values})
}

fn verdict(met: bool) -> &'static str {
    if met { "pass" } else { "MISS" }
}
