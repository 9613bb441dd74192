//! The committed counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde::{Deserialize, Serialize};

/// The largest allowed difference from the committed count, as a share. Hash seeds and addresses change a count by less.
const TOLERANCE: f64 = 0.02;

/// The content of `benches/instructions.json`.
#[derive(Serialize, Deserialize)]
struct Baseline {
    /// The tools that affect the counts.
    tools: Tools,
    /// Instructions per call.
    counts: BTreeMap<String, u64>,
}

/// The versions of the tools. Another compiler generates other code, and another C library copies memory in another way.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Tools {
    rustc: String,
    libc: String,
    valgrind: String,
}

impl Tools {
    fn present() -> Self {
        let first_line = |program: &str, argument: &str| {
            let output = Command::new(program).arg(argument).output();
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            text.lines().next().unwrap_or("unknown").trim().to_owned()
        };
        let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        Tools {
            rustc: first_line(&rustc, "--version"),
            libc: first_line("getconf", "GNU_LIBC_VERSION"),
            valgrind: first_line("valgrind", "--version"),
        }
    }
}

impl std::fmt::Display for Tools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}, {}", self.rustc, self.libc, self.valgrind)
    }
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/instructions.json")
}

/// Writes the counts as the new baseline.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(counts: &BTreeMap<String, f64>) -> Result<(), String> {
    let counts = counts.iter().map(|(name, count)| (name.clone(), count.round() as u64)).collect();
    let baseline = Baseline { tools: Tools::present(), counts };
    let text = serde_json::to_string_pretty(&baseline).expect("a map of names and numbers is JSON");
    let path = file();
    fs::write(&path, format!("{text}\n")).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

/// Prints the counts beside the baseline. If the tools differ, the counts are not compared. The names are always compared.
///
/// # Errors
/// The baseline cannot be read, has other names, or a count is too far from it.
pub(crate) fn compare(counts: &BTreeMap<String, f64>) -> Result<(), String> {
    let path = file();
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let baseline: Baseline = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{:<24} {:>12} {:>12} {:>8}", "instructions per call", "now", "committed", "change");
    let gone = baseline.counts.keys().filter(|name| !counts.contains_key(*name));
    let mut unknown: Vec<&str> = gone.map(String::as_str).collect();
    let mut moved = Vec::new();
    for name in &unknown {
        println!("{name:<24} {:>12} {:>12}", "-", baseline.counts[*name]);
    }
    for (name, count) in counts {
        let Some(committed) = baseline.counts.get(name).map(|count| *count as f64) else {
            println!("{name:<24} {count:>12.0} {:>12}", "-");
            unknown.push(name);
            continue;
        };
        let change = count / committed - 1.0;
        println!("{name:<24} {count:>12.0} {committed:>12.0} {:>+7.1}%", change * 100.0);
        if change.abs() > TOLERANCE {
            moved.push(name.as_str());
        }
    }
    if !unknown.is_empty() {
        return Err(format!(
            "{} are only in the baseline or only in this run: commit the present counts (--bless)",
            unknown.join(", ")
        ));
    }
    let tools = Tools::present();
    if tools != baseline.tools {
        println!("NOT COMPARED: the committed counts were made by {}, these by {tools}", baseline.tools);
        return Ok(());
    }
    if moved.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} changed by more than {} %: fix the cause, or commit the new counts (--bless)",
        moved.join(", "),
        TOLERANCE * 100.0
    ))
}
