//! Counts the instructions of one function of a child process.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::subjects::Subject;

/// The argument before the name of the subject that a child runs.
pub(crate) const RUN: &str = "--run";

/// Whether valgrind can be started.
pub(crate) fn is_there() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Returns the instructions per counted operation of the subject.
///
/// # Errors
/// A text that explains why the subject could not be counted.
pub(crate) fn count(subject: &Subject) -> Result<f64, String> {
    let what = |error: String| format!("{}: {error}", subject.name);
    let program = std::env::current_exe().map_err(|error| what(error.to_string()))?;
    let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("callgrind.{}", subject.name));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg("--toggle-collect=*counted_region*")
        .arg(program)
        .args([RUN, subject.name])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| what(error.to_string()))?;
    if !output.status.success() {
        return Err(what(output.status.to_string()));
    }
    let calls: f64 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .map_err(|_| what("the child did not say how often it ran".to_owned()))?;
    let text = fs::read_to_string(&profile).map_err(|error| what(format!("{}: {error}", profile.display())))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse::<f64>().ok());
    match total {
        Some(total) if total > 0.0 => Ok(total / calls),
        Some(_) | None => Err(what("nothing was counted".to_owned())),
    }
}
