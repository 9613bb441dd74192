//! Other processes, as `/proc` describes them.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// The id of this boot of the machine.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Every process that this process can see.
fn pids() -> impl Iterator<Item = Pid> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// The children of a process.
pub(super) fn children(parent: Pid) -> Vec<Pid> {
    pids().filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the command's name in parentheses. The name itself may contain parentheses and spaces.
    let after_name = &stat[stat.rfind(')')? + 1..];
    Pid::from_raw(after_name.split_ascii_whitespace().nth(1)?.parse().ok()?)
}

/// Whether the environment of a process has the variable `name` with a value that starts with `value`.
fn is_marked(pid: Pid, name: &str, value: &str) -> bool {
    std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| holds(&environ, name, value))
}

fn holds(environ: &[u8], name: &str, start: &str) -> bool {
    value(environ, name).is_some_and(|found| found.starts_with(start.as_bytes()))
}

/// The distinct values of an environment variable over all processes.
pub(super) fn marks(name: &str) -> BTreeSet<String> {
    let environs = pids().filter_map(|pid| std::fs::read(format!("/proc/{pid}/environ")).ok());
    environs
        .filter_map(|environ| value(&environ, name).map(|mark| String::from_utf8_lossy(mark).into_owned()))
        .collect()
}

fn value<'a>(environ: &'a [u8], name: &str) -> Option<&'a [u8]> {
    environ.split(|b| *b == 0).find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// Kills all other processes whose environment variable `name` starts with `value`, until none is left. Returns how many
/// it killed.
///
/// A process whose environment this user may not read is not killed.
///
/// # Errors
/// If some processes do not end in time, because they hang in the kernel.
pub(super) fn kill_marked(name: &str, value: &str) -> io::Result<usize> {
    let mut killed = 0;
    for _ in 0..ROUNDS {
        let marked: Vec<OwnedFd> = pids()
            .filter(|pid| *pid != getpid() && is_marked(*pid, name, value))
            // The mark is checked again after the process is open: the pid may have been reused in between.
            .filter_map(|pid| {
                let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
                is_marked(pid, name, value).then_some(fd)
            })
            .collect();
        if marked.is_empty() {
            return Ok(killed);
        }
        killed += marked.len();
        for fd in &marked {
            match pidfd_send_signal(fd, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for fd in &marked {
            wait_for_end(fd, Duration::from_millis(200))?;
        }
    }
    let text = format!("killed processes with {name}={value} do not end: they hang in the kernel");
    Err(io::Error::new(io::ErrorKind::TimedOut, text))
}

/// Waits until a process has ended, for `limit` at most.
fn wait_for_end(pidfd: &OwnedFd, limit: Duration) -> io::Result<()> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How many times the processes are listed and killed. Each round waits for the processes that it killed, so two rounds
/// suffice unless processes fork as fast as they are killed, or hang in the kernel.
const ROUNDS: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_process_has_the_whole_name_and_the_start_of_the_value() {
        let environ = b"PATH=/bin\0MARK=abc:1\0XMARK=zzz\0EMPTY=\0";
        for (name, value, found) in [
            ("MARK", "abc:1", true),
            ("MARK", "abc", true),
            ("MARK", "bc", false),
            ("MARK", "zzz", false),
            ("ARK", "abc", false),
            ("EMPTY", "", true),
            ("NONE", "", false),
        ] {
            assert_eq!(holds(environ, name, value), found, "{name}={value}");
        }
    }

    #[test]
    fn children_lists_a_child_process_until_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        assert!(children(getpid()).contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children(getpid()).contains(&pid));
    }
}
