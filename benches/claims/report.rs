//! The table and the file.

use std::{fs, io};

use serde_json::{Value, json};

use crate::figures::{file, grouped, machine, number};
use crate::workload::{Figures, Phase};

/// The 99th percentile of a prepare divided by that of its driver.
const SLOWDOWN: f64 = 2.0;
/// The records that an operation adds to the journal: a prepare adds the reference and the devices, a release the removal.
const RECORDS: [f64; 2] = [2.0, 1.0];
/// Growth of the bytes of an operation from the smallest size to the largest.
const LINEAR: f64 = 1.1;

/// Prints the tables and writes the file.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(results: &[(&str, Vec<(usize, Figures)>)]) -> io::Result<()> {
    println!("{}", machine());
    for (name, sizes) in results {
        for (index, what) in ["prepare", "release"].into_iter().enumerate() {
            print!("\n{:<34}", format!("{name}, {what}"));
            sizes.iter().for_each(|(n, _)| print!(" {:>11}", grouped(*n as f64)));
            println!("   target");
            let phases: Vec<&Phase> =
                sizes.iter().map(|(_, figures)| if index == 0 { &figures.prepare } else { &figures.release }).collect();
            table(&phases, RECORDS[index]);
        }
    }
    let path = file("podwright-claims-bench.json");
    let value = |(n, figures): &(usize, Figures)| json!({"pods": n, "figures": figures});
    let values = |(name, sizes): &(&str, Vec<(usize, Figures)>)| json!({"workload": name, "sizes": sizes.iter().map(value).collect::<Vec<Value>>()});
    let values: Vec<Value> = results.iter().map(values).collect();
    fs::write(&path, format!("{:#}\n", json!({"machine": machine(), "values": values})))?;
    println!("\n{}", path.display());
    Ok(())
}

fn table(phases: &[&Phase], records: f64) {
    let line = |what: &str, of: fn(&Phase) -> f64, target: &str| {
        print!("{what:<34}");
        phases.iter().for_each(|phase| print!(" {:>11}", number(of(phase))));
        println!("   {target}");
    };
    let verdict = |met: bool| if met { "pass" } else { "MISS" };
    let slowdown: fn(&Phase) -> f64 = |phase| phase.p99_ms / phase.driver_p99_ms;
    let is_fast = phases.iter().all(|phase| slowdown(phase) <= SLOWDOWN);
    let is_once = phases.iter().all(|phase| phase.records_per_operation <= records);
    let bytes: fn(&Phase) -> f64 = |phase| phase.bytes_per_operation;
    let growth = match phases {
        [first, .., last] => bytes(last) / bytes(first),
        _ => 1.0,
    };
    line("p50, ms", |phase| phase.p50_ms, "");
    line("p99, ms", |phase| phase.p99_ms, "");
    line("p50 of the driver, ms", |phase| phase.driver_p50_ms, "");
    line("p99 of the driver, ms", |phase| phase.driver_p99_ms, "");
    line("p99 by p99 of the driver", slowdown, &format!("at most {SLOWDOWN}: {}", verdict(is_fast)));
    line("all, ms", |phase| phase.all_ms, "");
    line("appends to the journal", |phase| phase.appends as f64, "");
    let target = format!("at most {records}: {}", verdict(is_once));
    line("records appended per operation", |phase| phase.records_per_operation, &target);
    line(
        "bytes appended per operation",
        bytes,
        &format!("grows {growth:.2}, at most {LINEAR}: {}", verdict(growth <= LINEAR)),
    );
    line("writes of the whole file", |phase| phase.saves as f64, "");
    line("bytes of these", |phase| phase.saved_bytes as f64, "");
}
