//! Finds out which namespaces the kernel lets the agent create. Another process creates them.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use super::security::Namespaces;
use super::shim;

/// Tests the namespaces with the program that runs shims. Logs a warning if one of them is missing.
///
/// # Errors
/// The test had no result, for example because the node has no memory left. The next test may have one.
pub(super) fn probe_namespaces((program, args): (String, Vec<String>)) -> io::Result<Namespaces> {
    let output =
        Command::new(program).args(&args).arg(shim::PROBE).args(&args).env_clear().stdin(Stdio::null()).output();
    let (found, reason) = result(&output?).map_err(io::Error::other)?;
    if !found.processes {
        tracing::warn!(
            %reason, mounts = found.mounts,
            "containers are not isolated from each other: this node does not let the agent create the namespaces"
        );
    }
    Ok(found)
}

/// The namespaces that work, and the reason if some do not. The error is the reason why the test has no result.
fn result(output: &Output) -> Result<(Namespaces, String), String> {
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let has = |line: &str| shim::has_line(&output.stdout, line);
    if has(shim::EXHAUSTED) {
        return Err(reason);
    }
    if output.status.signal() == Some(Signal::KILL.as_raw()) {
        return Err("the test was killed".into());
    }
    Ok((Namespaces { mounts: has(shim::MOUNTS), processes: has(shim::PROCESSES) }, reason))
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    fn output(wait_status: i32, stdout: &str, stderr: &str) -> Output {
        Output { status: ExitStatus::from_raw(wait_status), stdout: stdout.into(), stderr: stderr.into() }
    }

    #[test]
    fn test_that_lacked_resources_has_no_result() {
        let namespaces = |mounts, processes| Namespaces { mounts, processes };
        for (output, expected) in [
            (output(0, "mounts\nprocesses\n", ""), Ok((namespaces(true, true), ""))),
            (output(1 << 8, "mounts\n", "no /proc\n"), Ok((namespaces(true, false), "no /proc"))),
            (output(1 << 8, "", "not permitted\n"), Ok((namespaces(false, false), "not permitted"))),
            (output(1 << 8, "mounts\nexhausted\n", "no memory\n"), Err("no memory")),
            (output(Signal::KILL.as_raw(), "", ""), Err("the test was killed")),
            (output(Signal::SYS.as_raw(), "", ""), Ok((namespaces(false, false), ""))),
        ] {
            let expected = expected.map(|(found, reason)| (found, reason.to_owned())).map_err(str::to_owned);
            assert_eq!(result(&output), expected, "{output:?}");
        }
    }
}
