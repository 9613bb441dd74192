//! The table and the file.

use std::{fs, io};

use serde_json::{Map, Value, json};

use crate::figures::{file, grouped, machine, number};

/// Growth of a cost per pod from the smallest size to the largest that is still linear: caches miss more often.
const LINEAR: f64 = 3.0;

/// The lines: name, unit, and whether it is a cost per pod. The growth of such a cost has a target.
const LINES: [(&str, &str, bool); 30] = [
    ("create_pods_per_s", "pods/s", false),
    ("create_p50_ms", "ms", false),
    ("create_p99_ms", "ms", false),
    ("create_cpu_us_per_pod", "µs", true),
    ("create_rss_mib", "MiB", false),
    ("create_bytes_per_pod", "bytes", true),
    ("idle_cpu_percent", "% of a core", false),
    ("idle_cpu_us_per_pod", "µs/s", true),
    ("list_us_per_pod", "µs", true),
    ("scrape_us", "µs", false),
    ("exit_to_status_p50_ms", "ms", false),
    ("exit_to_status_p99_ms", "ms", false),
    ("fail_pods_per_s", "pods/s", false),
    ("fail_p50_ms", "ms", false),
    ("fail_p99_ms", "ms", false),
    ("fail_cpu_us_per_pod", "µs", true),
    ("fail_rss_mib", "MiB", false),
    ("update_pods_per_s", "pods/s", false),
    ("update_p50_ms", "ms", false),
    ("update_p99_ms", "ms", false),
    ("update_cpu_us_per_pod", "µs", true),
    ("update_rss_mib", "MiB", false),
    ("delete_pods_per_s", "pods/s", false),
    ("delete_p50_ms", "ms", false),
    ("delete_p99_ms", "ms", false),
    ("delete_cpu_us_per_pod", "µs", true),
    ("delete_rss_mib", "MiB", false),
    ("forget_s", "s", false),
    ("forget_cpu_us_per_pod", "µs", true),
    ("peak_mib", "MiB", false),
];

/// Prints the table and writes the file.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(results: &[(usize, Map<String, Value>)]) -> io::Result<()> {
    println!("{}\n", machine());
    print!("{:<24} {:>12}", "figure", "unit");
    results.iter().for_each(|(n, _)| print!(" {:>13}", grouped(*n as f64)));
    println!(" {:>9}", "growth");
    for (name, unit, per_pod) in LINES {
        let values: Vec<f64> = results.iter().filter_map(|(_, figures)| figures.get(name)?.as_f64()).collect();
        print!("{:<24} {unit:>12}", name.replace('_', " "));
        values.iter().for_each(|value| print!(" {:>13}", number(*value)));
        match (values.first(), values.last()) {
            (Some(first), Some(last)) if per_pod && values.len() > 1 => {
                let growth = last / first;
                println!(" {growth:>9.2} {}", if growth <= LINEAR { "pass" } else { "MISS" });
            }
            _ => println!(),
        }
    }
    let path = file("podwright-node-bench.json");
    let values: Vec<Value> = results.iter().map(|(n, figures)| json!({"pods": n, "figures": figures})).collect();
    fs::write(&path, format!("{:#}\n", json!({"machine": machine(), "values": values})))?;
    println!("\n{}", path.display());
    Ok(())
}
