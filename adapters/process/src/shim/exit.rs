//! The end of a container: its exit record, and the end of the processes that its command left behind.
//!
//! The shim records the exit as soon as the command has ended. A later failure, such as a process that
//! cannot be killed or a write to the log that hangs, does not change the record. The agent reads the record when the shim has ended.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use podwright_host::log::end_of_log;
use podwright_host::regular;
use podwright_model::texts::containers::termination;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, wait, waitid};

use super::super::CONTAINER_ENV;
use super::super::files::{ContainerFiles, Layout};
use super::super::procfs;
use super::super::record::{self, Cgroup, Durability, ExitRecord, RunRecord};
use super::super::reserved::ReservedSpace;
use super::{RunningCommand, exec_keeper, note};

/// Waits for the command to end, records its exit in `space`, and kills all remaining processes of the container.
pub(super) fn record_exit(
    files: &ContainerFiles,
    run: &RunRecord,
    command: RunningCommand,
    space: ReservedSpace,
) -> io::Result<()> {
    let status = reap_until_end(command.pid, &command.target)?;
    let finished_at = record::now().as_nanos();
    let out_of_memory = run.cgroup.as_ref().is_some_and(Cgroup::ran_out_of_memory);
    // The remaining processes are killed before the disk is used, which may take long.
    if let Some(cgroup) = &run.cgroup {
        let _ = cgroup.kill();
    }
    procfs::kill_children();
    let signal = status.terminating_signal();
    let exit_code = status.exit_status().unwrap_or_else(|| 128 + signal.unwrap_or(0));
    let reason = match (exit_code, signal) {
        (0, _) => "Completed",
        (_, Some(KILL)) if out_of_memory => "OOMKilled",
        _ => "Error",
    };
    let message = termination_message(run);
    let mut exit = ExitRecord { exit_code, signal, reason: reason.into(), message, finished_at };
    let recorded = space.write(&files.exit(), &exit, Durability::Disk);
    log_failure("cannot record the exit", &recorded);

    log_failure("processes remain", &kill_descendants());
    // The kernel ends all processes of a PID namespace with the first one.
    if command.namespaces.init.is_none() {
        // Exec commands are not children of this process. Their keepers notice the end of the command.
        let keepers = exec_keeper::wait_for_keepers(files, EXECS_END_WITHIN);
        log_failure("exec commands remain", &keepers);
        if keepers.is_err() {
            let killed = procfs::kill_marked(CONTAINER_ENV, &run.id, run.user.uid);
            log_failure("processes with the container's mark remain", &killed);
        }
    }
    drop(command.alive);
    if let Err(RecvTimeoutError::Timeout) = command.pump.recv_timeout(HANGS_AFTER) {
        note("the container's log is incomplete: a write to it hangs");
    }
    remove_cgroup(run);
    // The log is complete now.
    let from_log = if exit.message.is_empty() && run.message_from_log && exit_code != 0 {
        let (dir, file) = Layout::split_log(&run.log);
        match end_of_log(&dir, &file) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => termination::no_log(&error.to_string()),
        }
    } else {
        String::new()
    };
    if recorded.is_err() || !from_log.is_empty() {
        exit.message += &from_log;
        log_failure("cannot record the exit with its message", &record::write(&files.exit(), &exit, Durability::Disk));
    }
    Ok(())
}

const KILL: i32 = Signal::KILL.as_raw();
/// How long the end of a container waits for its exec commands. They usually end within milliseconds.
pub(in super::super) const EXECS_END_WITHIN: Duration = Duration::from_secs(5);
/// How long a killed process or a write to the log may take before it counts as hanging in the kernel.
const HANGS_AFTER: Duration = Duration::from_secs(5);
/// The longest interval between two inspections of the killed processes. Their ends are noticed at once, new children are not.
const INSPECT_INTERVAL: Duration = Duration::from_millis(100);

/// Reaps the container's orphaned processes until the command itself has ended.
fn reap_until_end(command: Pid, target: &Mutex<Option<Pid>>) -> io::Result<WaitStatus> {
    loop {
        match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        // A process can be reaped now. The lock prevents the pump from sending a signal to a reused pid.
        let mut target = target.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((pid, status)) = wait(WaitOptions::NOHANG)?
            && pid == command
        {
            *target = None;
            return Ok(status);
        }
    }
}

/// Kills and reaps children until this process has none. No process of the container escapes: the first process of a PID namespace
/// ends only after all others in it, and without a namespace, the children of a killed process become children of this one,
/// because it is their subreaper.
///
/// # Errors
/// If only processes that hang in the kernel remain. They end when they stop hanging.
pub(super) fn kill_descendants() -> io::Result<()> {
    let end = Instant::now() + HANGS_AFTER;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
            Ok(None) => {
                let killed = procfs::kill_children();
                let hang = !killed.is_empty() && killed.iter().all(|child| procfs::hangs(child.pid));
                if hang && Instant::now() >= end {
                    let pids: Vec<String> = killed.iter().map(|child| child.pid.to_string()).collect();
                    let text = format!("{} hang in the kernel", pids.join(", "));
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                procfs::wait_for_any_end(&killed, INSPECT_INTERVAL)?;
            }
        }
    }
}

/// Removes the container's cgroup. On failure the agent tries again when it removes the container.
pub(super) fn remove_cgroup(run: &RunRecord) {
    if let Some(removed) = run.cgroup.as_ref().map(Cgroup::remove) {
        log_failure("cannot remove the cgroup", &removed);
    }
}

/// Writes an error to the shim's log.
pub(super) fn log_failure<T, E: std::fmt::Display>(what: &str, result: &Result<T, E>) {
    if let Err(error) = result {
        note(&format!("{what}: {error}"));
    }
}

/// The termination message that the container wrote: the first 4096 bytes of its termination log. If that is empty, the
/// container failed and its policy is `FallbackToLogsOnError`, the message is the end of the container's log, at most 2048
/// bytes and 80 lines (limits of `kubelet/container/runtime.go`, kubelet 1.36).
fn termination_message(run: &RunRecord) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = open_inside(run) {
        let _ = file.take(4096).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Opens the termination log. The container may have replaced the file. A link must not give access to a file that the
/// container may not read, and opening a FIFO must not block.
fn open_inside(run: &RunRecord) -> io::Result<File> {
    regular::open(regular::open_dir(&run.rootfs, Path::new("."))?, &run.termination_log)
}
