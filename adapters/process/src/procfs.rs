//! Reads the processes of the node from `/proc`, and kills processes.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use podwright_host::stats::kernel_file;
use podwright_ports::ContainerProcesses;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// The id of this boot of the machine.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The machine's memory in bytes, from the text of `/proc/meminfo`. The largest number if the text does not have it.
pub(super) fn total_memory(meminfo: &str) -> i64 {
    let total = kernel_file::bytes(meminfo, "MemTotal:");
    total.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(i64::MAX)
}

/// The `oom_score_adj` of this process.
pub(super) fn oom_score_adj() -> io::Result<i64> {
    std::fs::read_to_string(OOM_SCORE_ADJ)?.trim().parse().map_err(io::Error::other)
}

/// Sets the `oom_score_adj` of this process. Processes that it starts inherit the value.
///
/// # Errors
/// The system's error. Only a process with `CAP_SYS_RESOURCE` may lower the value below the lowest one that such a process set.
pub(super) fn set_oom_score_adj(value: i64) -> io::Result<()> {
    std::fs::write(OOM_SCORE_ADJ, value.to_string())
}

const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";

/// Opens the file with the `oom_score_adj` of this process, or of the process with this pid.
pub(super) fn open_oom_score_adj(of: Option<(&OwnedFd, Pid)>) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let opened = match of {
        None => openat(CWD, OOM_SCORE_ADJ, flags, Mode::empty()),
        Some((proc, pid)) => openat(proc, format!("{pid}/oom_score_adj"), flags, Mode::empty()),
    };
    Ok(opened?.into())
}

/// Sets an `oom_score_adj`. A value that is too high is kept if the kernel does not let the agent lower it. A value that is too low
/// would protect the container at the expense of the node.
pub(super) fn apply_oom_score_adj(file: &mut File, value: i64) -> io::Result<()> {
    file.write_all(value.to_string().as_bytes()).or_else(|error| {
        let mut own = String::new();
        file.read_to_string(&mut own)?;
        match own.trim().parse::<i64>() {
            Ok(own) if own >= value => Ok(()),
            _ => Err(io::Error::other(format!("cannot set oom_score_adj to {value}: {error}"))),
        }
    })
}

/// Opens `/proc`, so that the processes of this PID namespace can be found after the process has entered other mounts.
pub(super) fn open() -> io::Result<OwnedFd> {
    Ok(openat(CWD, "/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
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

/// The parent of a process; `None` if the process has ended.
pub(super) fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Pid::from_raw(after_name(&stat)?.nth(1)?.parse().ok()?)
}

/// The fields of a `stat` file after the command's name. The name is in parentheses, and may contain parentheses and spaces
/// itself.
fn after_name(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat[stat.rfind(')')? + 1..].split_ascii_whitespace())
}

/// Whether a thread of the process hangs in the kernel. Such a thread waits in the kernel and cannot be killed before the wait ends
/// (state `D`), or it has begun to end and still waits: the first process of a PID namespace waits for the end of all others in it.
pub(super) fn hangs(pid: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok())
        .any(|stat| thread_hangs(&stat))
}

fn thread_hangs(stat: &str) -> bool {
    let fields: Vec<&str> = after_name(stat).into_iter().flatten().take(FLAGS + 1).collect();
    let is_ending =
        || fields.get(FLAGS).and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|it| it & EXITING != 0);
    match fields.first() {
        Some(&"D") => true,
        // A zombie has ended.
        None | Some(&("Z" | "X")) => false,
        Some(_) => is_ending(),
    }
}

/// The number of fields between the command's name and the kernel's flags of a thread (proc_pid_stat(5)).
const FLAGS: usize = 6;
/// The kernel's flag of a thread that has begun to end (`PF_EXITING` of Linux).
const EXITING: u64 = 4;

/// A child of this process that was killed.
#[derive(Debug)]
pub(super) struct KilledChild {
    pub(super) pid: Pid,
    pidfd: OwnedFd,
}

/// Kills the children of this process. Another thread may reap them meanwhile: a process whose pid was reused is not killed.
/// Returns the first [`RETURNED_CHILDREN`] of them.
pub(super) fn kill_children() -> Vec<KilledChild> {
    let children = children(getpid());
    kill_each(children.into_iter().map(|pid| (pid, getpid())))
}

/// Kills the children of this process, their children, and so on, but not the process `except`. Does not find a process whose parent
/// has ended, if another process is its parent now.
pub(super) fn kill_descendants(except: Option<Pid>) -> Vec<KilledChild> {
    let parents: Vec<(Pid, Pid)> = pids().filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
    let mut found: Vec<(Pid, Pid)> = parents.iter().filter(|(_, parent)| *parent == getpid()).copied().collect();
    let mut next = 0;
    while let Some((of, _)) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, parent)| *parent == of));
        next += 1;
    }
    kill_each(found.into_iter().filter(|(pid, _)| Some(*pid) != except))
}

/// Whether `/proc` has the processes of this process's PID namespace.
pub(super) fn is_of_own_namespace() -> bool {
    std::fs::read_link("/proc/self").is_ok_and(|own| own.as_os_str() == getpid().to_string().as_str())
}

/// Kills the processes of pairs of a process and its parent. Opens many processes before it kills the first one, because the end of a
/// process changes the parent of its children.
fn kill_each(processes: impl Iterator<Item = (Pid, Pid)>) -> Vec<KilledChild> {
    let mut killed: Vec<KilledChild> = Vec::new();
    let open = |(pid, parent): (Pid, Pid)| {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        (parent_of(pid) == Some(parent)).then_some(KilledChild { pid, pidfd })
    };
    let mut processes = processes.filter_map(open).peekable();
    while processes.peek().is_some() {
        // A process may have fewer open files than children.
        let some: Vec<KilledChild> = processes.by_ref().take(RETURNED_CHILDREN).collect();
        for child in &some {
            let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
        }
        if killed.is_empty() {
            killed = some;
        }
    }
    killed
}

/// How many killed children are returned: fewer than a process may have open files.
const RETURNED_CHILDREN: usize = 64;

/// Waits until one of the processes has ended, for `limit` at most. Without processes, waits for `limit`.
pub(super) fn wait_for_any_end(killed: &[KilledChild], limit: Duration) -> io::Result<()> {
    let mut fds: Vec<PollFd<'_>> = killed.iter().map(|child| PollFd::new(&child.pidfd, PollFlags::IN)).collect();
    poll_for(&mut fds, limit)
}

/// Waits until the first process of a container's PID namespace has ended, after it was killed.
///
/// # Errors
/// If it does not end within `limit`, because a process in the namespace hangs in the kernel.
pub(super) fn wait_for_init(pid: i32, limit: Duration) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(pid) else { return Ok(()) };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    if !is_init(pid) {
        return Ok(());
    }
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    poll_for(&mut fds, limit)?;
    if fds[0].revents().is_empty() {
        let text = format!("processes in the PID namespace of process {pid} do not end: they hang in the kernel");
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    }
    Ok(())
}

/// The file `comm` of the first process of a container's PID namespace.
const INIT_COMM: &[u8] = b"podwright-init\n";

/// Whether the environment of a process has the variable `name` with a value that starts with `value`, and the process is one
/// of the user `owner` or of this process's user. Any user can give its own processes any environment.
fn is_marked(pid: Pid, name: &str, value: &str, owner: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| holds(&environ, name, value))
        && std::fs::read_to_string(format!("/proc/{pid}/status"))
            .ok()
            .and_then(|status| real_user(&status))
            .is_some_and(|user| user == owner || user == rustix::process::getuid().as_raw())
}

/// The real user in the text of `/proc/PID/status`. Executing a set-user-ID file does not change it.
fn real_user(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().next()?.parse().ok()
}

fn holds(environ: &[u8], name: &str, start: &str) -> bool {
    value(environ, name).is_some_and(|found| found.starts_with(start.as_bytes()))
}

fn value<'a>(environ: &'a [u8], name: &str) -> Option<&'a [u8]> {
    environ.split(|b| *b == 0).find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// The processes of a container without a cgroup: those in the PID namespace of the process `init`, or else those with the environment
/// variable `name` of this value, as [`kill_marked`] finds them, and the children of `shim`; and the descendants of all of them. The
/// container may have removed the variable from the environment of its processes. The processes `init` and `shim` belong to the
/// agent.
pub(super) fn of_container(name: &str, value: &str, owner: u32, shim: Option<i32>, init: Option<i32>) -> Vec<Pid> {
    let shim = shim.and_then(Pid::from_raw);
    let init = init.and_then(Pid::from_raw).filter(|init| is_init(*init));
    let namespace_of = |pid: Pid| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let parents: Vec<(Pid, Pid)> = pids().filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
    let all = parents.iter().map(|(pid, _)| *pid);
    let own: Vec<Pid> = match init.and_then(namespace_of) {
        Some(namespace) => all.filter(|pid| namespace_of(*pid).as_ref() == Some(&namespace)).collect(),
        None => all.filter(|pid| Some(*pid) == shim || is_marked(*pid, name, value, owner)).collect(),
    };
    let mut found = with_descendants(own, &parents);
    found.retain(|pid| Some(*pid) != shim && Some(*pid) != init);
    found
}

/// Adds the children of the processes, their children, and so on. `parents` has the parent of each process.
fn with_descendants(mut found: Vec<Pid>, parents: &[(Pid, Pid)]) -> Vec<Pid> {
    let mut known: HashSet<Pid> = found.iter().copied().collect();
    let mut next = 0;
    while let Some(of) = found.get(next).copied() {
        let children = parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid);
        found.extend(children.filter(|pid| known.insert(*pid)));
        next += 1;
    }
    found
}

/// Whether the process is the first one of a container's PID namespace. Another process may have reused its pid.
fn is_init(pid: Pid) -> bool {
    std::fs::read(format!("/proc/{pid}/comm")).ok().as_deref() == Some(INIT_COMM)
}

/// The memory and the number of the processes. The memory does not include file contents, which the kernel can read again. Memory that
/// several processes share counts for each of them.
pub(super) fn usage_of(processes: &[Pid]) -> ContainerProcesses {
    let status = |pid: &Pid| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let memory = processes.iter().map(|pid| own_memory(&status(pid))).fold(0, u64::saturating_add);
    ContainerProcesses { memory, processes: processes.len() as u64 }
}

/// The memory without files in the text of `/proc/PID/status`, in bytes.
fn own_memory(status: &str) -> u64 {
    let [anonymous, shared] = ["RssAnon:", "RssShmem:"].map(|key| kernel_file::bytes(status, key).unwrap_or(0));
    anonymous.saturating_add(shared)
}

/// Kills all other processes of the user `owner` and of this process's user whose environment variable `name` starts with
/// `value`, until none is left. Returns how many it killed.
///
/// A process whose environment this user may not read, or that this user may not kill, is left alone.
///
/// # Errors
/// If some processes do not end in time, because they hang in the kernel.
pub(super) fn kill_marked(name: &str, value: &str, owner: u32) -> io::Result<usize> {
    let mut killed = 0;
    for _ in 0..ROUNDS {
        let marked: Vec<OwnedFd> = pids()
            .filter(|pid| *pid != getpid() && is_marked(*pid, name, value, owner))
            // The mark is checked again after the process is open: the pid may have been reused in between.
            .filter_map(|pid| {
                let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
                is_marked(pid, name, value, owner).then_some(fd)
            })
            .collect();
        if marked.is_empty() {
            return Ok(killed);
        }
        // This process may not kill every process that has the mark: any process can give itself a mark.
        let permitted = marked.iter().filter(|fd| pidfd_send_signal(fd, Signal::KILL) != Err(Errno::PERM));
        let permitted: Vec<&OwnedFd> = permitted.collect();
        if permitted.is_empty() {
            return Ok(killed);
        }
        killed += permitted.len();
        let end = Instant::now() + Duration::from_millis(200);
        for fd in permitted {
            poll_for(&mut [PollFd::new(fd, PollFlags::IN)], end.saturating_duration_since(Instant::now()))?;
        }
    }
    let text = format!("killed processes with {name}={value} do not end: they hang in the kernel");
    Err(io::Error::new(io::ErrorKind::TimedOut, text))
}

fn poll_for(fds: &mut [PollFd<'_>], limit: Duration) -> io::Result<()> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    match poll(fds, Some(&limit)) {
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
    fn total_memory_is_in_bytes() {
        assert_eq!(total_memory("MemFree: 1 kB\nMemTotal:        2048 kB\n"), 2 << 20);
        assert_eq!(total_memory(""), i64::MAX);
    }

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
    fn descendants_are_found_once() {
        let pid = |raw| Pid::from_raw(raw).unwrap();
        let parents = [(1, 9), (2, 1), (3, 2), (4, 3), (5, 9), (9, 9)].map(|(own, parent)| (pid(own), pid(parent)));
        assert_eq!(with_descendants([1, 3].map(pid).into(), &parents), [1, 3, 2, 4].map(pid));
    }

    #[test]
    fn marks_of_other_users_do_not_count() {
        let mut child = std::process::Command::new("sleep").arg("60").env("MARK_OF_A_TEST", "x").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        // Before the exec, the child has the environment of the test.
        while !is_marked(pid, "MARK_OF_A_TEST", "x", 0) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(real_user("Name:\tsleep\nUid:\t1000\t0\t0\t0\nGid:\t1\t1\t1\t1\n"), Some(1000));
        assert_eq!(real_user("Name:\tsleep\n"), None);
    }

    #[test]
    fn thread_hangs_in_a_wait_that_cannot_be_killed_and_at_its_end() {
        for (state, flags, hangs) in
            [("D", 0, true), ("S", 4, true), ("R", 0x40_0104, true), ("S", 0x40_0100, false), ("Z", 4, false)]
        {
            assert_eq!(thread_hangs(&format!("7 (a) b) {state} 1 7 7 0 -1 {flags} 0 0")), hangs, "{state} {flags}");
        }
        assert!(!thread_hangs(""));
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
