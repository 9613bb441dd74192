//! Runs each workload in its own process, so that no run affects the figures of the next.

use std::env;
use std::process::{Command, Stdio};

use serde::de::DeserializeOwned;

/// Runs one workload of this bench with `n` pods and reads its figures from the last line of its output.
///
/// # Errors
/// The error text of a failed run.
pub(crate) fn apart<Figures: DeserializeOwned>(name: &str, n: usize) -> Result<Figures, String> {
    let what = |error: String| format!("{name} with {n} pods: {error}");
    let program = env::current_exe().map_err(|error| what(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(["--run", name, "--n", &n.to_string()]).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| what(error.to_string()))?;
    if !output.status.success() {
        return Err(what(output.status.to_string()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| what(format!("{line:?}: {error}")))
}
