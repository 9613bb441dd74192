//! The table and the file.

use std::fs;

use serde::Serialize;
use serde_json::json;

use super::cluster;
use super::figures::{file, machine, number};
use super::floor::Took;
use super::{Error, manifests};

/// One turn of each.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) floor: Took,
    pub(crate) manifests: manifests::Figures,
    pub(crate) cluster: cluster::Figures,
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
    line("manifests: Running, p50", median(&|run| run.manifests.running_p50_s), "s", None);
    line("manifests: Running, p99", median(&|run| run.manifests.running_p99_s), "s", None);
    line("manifests: Running, all", median(&|run| run.manifests.running_all_s), "s", Some(floor * 1.1));
    line("manifests: CPU until all run", median(&|run| run.manifests.cpu_s), "s", None);
    line("manifests: resident memory", median(&|run| run.manifests.rss_mib), "MiB", Some(25.0));
    line("manifests: at rest", median(&|run| run.manifests.idle_millicores), "mCPU", Some(2.0));
    line("manifests: all gone", median(&|run| run.manifests.gone_all_s), "s", None);
    line("API server: Ready, p50", median(&|run| run.cluster.ready_p50_s), "s", None);
    line("API server: Ready, p99", median(&|run| run.cluster.ready_p99_s), "s", None);
    line("API server: Ready, all", median(&|run| run.cluster.ready_all_s), "s", Some(floor * 1.1));
    line("API server: CPU until all are ready", median(&|run| run.cluster.cpu_s), "s", None);
    line("API server: resident memory", median(&|run| run.cluster.rss_mib), "MiB", Some(35.0));
    line("API server: at rest", median(&|run| run.cluster.idle_millicores), "mCPU", Some(2.0));
    // 20 ms with 100 pods.
    line("API server: CPU of a scrape of cadvisor", median(&|run| run.cluster.scrape_ms), "ms", Some(n as f64 / 5.0));
    line("API server: all gone", median(&|run| run.cluster.gone_all_s), "s", None);
    line("API server: requests for each pod", median(&|run| run.cluster.requests_per_pod.values().sum()), "", None);
    let path = file("podwright-containers-bench.json");
    // The binary of the bench profile differs from the one that users install, which `make release` builds.
    let release = path.with_file_name("release").join("podwright");
    let release_mib = fs::metadata(&release).ok().map(|binary| binary.len() as f64 / f64::from(1 << 20));
    match release_mib {
        Some(size) => line("binary of make release", size, "MiB", None),
        None => println!("{:<44} {:>9}", "binary of make release", "not built"),
    }
    let values = json!({ "machine": machine(), "pods": n, "release_mib": release_mib, "runs": runs });
    fs::write(&path, serde_json::to_string_pretty(&values)?)?;
    println!("\nall values: {}", path.display());
    Ok(())
}
