//! The committed counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// How far a count may be from the committed one: hash seeds and addresses move it by less.
const TOLERANCE: f64 = 0.02;

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.json")
}

/// Writes the counts as the new baseline.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(counts: &BTreeMap<String, f64>) -> Result<(), String> {
    let rounded: BTreeMap<&str, u64> =
        counts.iter().map(|(name, count)| (name.as_str(), count.round() as u64)).collect();
    let text = serde_json::to_string_pretty(&rounded).expect("a map of names and numbers is JSON");
    let path = file();
    fs::write(&path, format!("{text}\n")).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

/// Prints the counts beside the baseline.
///
/// # Errors
/// The baseline cannot be read, or a count is too far from it.
pub(crate) fn compare(counts: &BTreeMap<String, f64>) -> Result<(), String> {
    let path = file();
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let baseline: BTreeMap<String, f64> =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{:<24} {:>12} {:>12} {:>8}", "instructions per call", "now", "committed", "change");
    let mut moved = Vec::new();
    for (name, count) in counts {
        let Some(committed) = baseline.get(name) else {
            println!("{name:<24} {count:>12.0} {:>12}", "-");
            moved.push(name.as_str());
            continue;
        };
        let change = count / committed - 1.0;
        println!("{name:<24} {count:>12.0} {committed:>12.0} {:>+7.1}%", change * 100.0);
        if change.abs() > TOLERANCE {
            moved.push(name);
        }
    }
    if moved.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} moved by more than {} %: mend it, or commit the new counts (--bless)",
        moved.join(", "),
        TOLERANCE * 100.0
    ))
}
