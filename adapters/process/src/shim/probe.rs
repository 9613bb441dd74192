//! Tests which namespaces the kernel lets the agent create.

use std::fs::{self, File};
use std::io;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

use super::namespaces::{join_mounts, mount_proc, unshare, unshare_users};
use super::{PROBE_PROCESSES, view};

/// Tests which namespaces the kernel lets this process create, and writes their names to standard output. If one of them is missing,
/// the error says why. If the reason may be temporary, the line [`EXHAUSTED`] is written too.
pub(super) fn probe(shim: &[&str]) -> Result<(), String> {
    test(shim).map_err(report)
}

/// Mounts `/proc`, as the first process of a PID namespace.
pub(super) fn probe_processes() -> Result<(), String> {
    mount_proc().map_err(|error| report(failed("cannot mount /proc", None)(error)))
}

fn test(shim: &[&str]) -> Result<(), Failure> {
    // A new user namespace has limits of its own, which are not those of the node.
    let [users, mounts, processes] =
        ["max_user_namespaces", "max_mnt_namespaces", "max_pid_namespaces"].map(limit_of_node);
    if !rustix::process::geteuid().is_root() {
        unshare_users().map_err(failed("cannot create a user namespace", users))?;
    }
    view::unshare_mounts().map_err(failed("cannot create a mount namespace", mounts))?;
    // The commands join the mount namespace, which needs another capability.
    let own = File::open("/proc/self/ns/mnt");
    own.and_then(|own| join_mounts(&own))
        .map_err(failed("cannot join a mount namespace, which needs CAP_SYS_ADMIN and CAP_SYS_CHROOT", None))?;
    println!("{MOUNTS}");
    unshare(UnshareFlags::NEWPID).map_err(failed("cannot create a PID namespace", processes))?;
    let child = Command::new("/proc/self/exe").args(shim).arg(PROBE_PROCESSES).stdin(Stdio::null()).output();
    let child = child.map_err(failed("cannot create a process", None))?;
    if !child.status.success() {
        let text = String::from_utf8_lossy(&child.stderr).trim().to_owned();
        let exhausted = has_line(&child.stdout, EXHAUSTED) || child.status.code().is_none();
        return Err(Failure { text, exhausted });
    }
    println!("{PROCESSES}");
    Ok(())
}

struct Failure {
    text: String,
    /// Whether the reason may be temporary.
    exhausted: bool,
}

fn failed(what: &'static str, limit: Option<u64>) -> impl Fn(io::Error) -> Failure {
    move |error| Failure { text: format!("{what}: {error}"), exhausted: is_temporary(&error, limit) }
}

fn report(failure: Failure) -> String {
    if failure.exhausted {
        println!("{EXHAUSTED}");
    }
    failure.text
}

/// Whether the node only lacks resources. `limit` is the node's limit on namespaces of this kind; 0 forbids them.
fn is_temporary(error: &io::Error, limit: Option<u64>) -> bool {
    match Errno::from_io_error(error) {
        Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => true,
        Some(Errno::NOSPC) => limit != Some(0),
        _ => false,
    }
}

fn limit_of_node(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/user/{name}")).ok()?.trim().parse().ok()
}

/// Whether the output of [`probe`] has this line.
pub(in super::super) fn has_line(output: &[u8], line: &str) -> bool {
    output.split(|byte| *byte == b'\n').any(|found| found == line.as_bytes())
}

/// The line of [`probe`] if mount namespaces work.
pub(in super::super) const MOUNTS: &str = "mounts";
/// The line of [`probe`] if PID namespaces work.
pub(in super::super) const PROCESSES: &str = "processes";
/// The line of [`probe`] if the test failed and the same test may succeed later.
pub(in super::super) const EXHAUSTED: &str = "exhausted";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_resources_is_temporary_and_a_limit_of_zero_is_not() {
        for (errno, limit, expected) in [
            (Errno::AGAIN, None, true),
            (Errno::NOMEM, Some(0), true),
            (Errno::MFILE, None, true),
            (Errno::NFILE, None, true),
            (Errno::NOSPC, Some(0), false),
            (Errno::NOSPC, Some(8), true),
            (Errno::NOSPC, None, true),
            (Errno::PERM, Some(8), false),
            (Errno::INVAL, None, false),
        ] {
            assert_eq!(is_temporary(&errno.into(), limit), expected, "{errno} {limit:?}");
        }
    }
}
