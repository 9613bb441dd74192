//! The shim: one small process per container, which outlives the agent.
//!
//! A shim has two threads. The first spawns the command and reaps processes. It must live as long as the shim: the kernel
//! kills a process with a parent-death signal when the *thread* that spawned the process ends. The second thread copies the
//! output and takes requests. A node may run hundreds of shims, so a shim has no async runtime and allocates little.

mod confine;
mod exec_keeper;
mod init;
pub mod log;
mod pump;
mod view;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, setsid,
    wait, waitid,
};

use super::CONTAINER_ENV;
use super::files::{ContainerFiles, Layout};
use super::procfs;
use super::record::{self, Durability, ExitRecord, RunRecord, ShimRecord, StartedRecord};
use crate::adapters::log::end_of_log;
use crate::adapters::regular;
pub(super) use exec_keeper::wait_for_keepers;

/// Runs a shim, or the stage that becomes the container's command. `args` are the arguments after
/// [`SHIM_ARGUMENT`](super::SHIM_ARGUMENT). A binary that embeds the process runtime must call this at the start of `main`,
/// while it has only one thread.
pub fn shim_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let result = match args.iter().map(|arg| arg.to_str()).collect::<Option<Vec<_>>>().as_deref() {
        Some([RUN, dir]) => run(&ContainerFiles::new(dir.into())).map_err(|error| error.to_string()),
        Some([INIT, dir, parent]) => match init::become_command(Path::new(dir), parent) {
            Err(error) => Err(error),
            Ok(never) => match never {},
        },
        Some([EXEC, dir, command @ ..]) => {
            exec_keeper::keep(Path::new(dir), command).map_err(|error| error.to_string())
        }
        Some([EXEC_INIT, dir, parent, command @ ..]) => match init::become_exec(Path::new(dir), parent, command) {
            Err(error) => Err(error),
            Ok(never) => match never {},
        },
        _ => Err("only the agent may run this command: run `podwright run`".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The argument of a process that is a shim.
pub(super) const RUN: &str = "run";
/// The argument of a process that keeps an exec command.
pub(super) const EXEC: &str = "exec";
/// The argument of a process that becomes an exec command.
const EXEC_INIT: &str = "exec-init";
/// The argument of a process that becomes the container's command.
const INIT: &str = "init";

fn run(files: &ContainerFiles) -> io::Result<()> {
    setsid()?;
    let _ = rustix::thread::set_name(c"podwright-shim");
    set_child_subreaper(Some(getpid()))?;
    rustix::process::chdir("/")?;
    // This record is written first, so that an agent that finds the lock held can read the shim's pid soon.
    let shim = ShimRecord { pid: getpid().as_raw_nonzero().get(), boot_id: procfs::boot_id()? };
    record::write(&files.shim(), &shim, Durability::Boot)?;

    let run: RunRecord = record::read(&files.run()).map_err(io::Error::other)?;
    let exit = match start(files, &run) {
        Ok(command) => {
            report_start()?;
            wait_for_exit(files, &run, command)?
        }
        Err(error) => ExitRecord::start_error(error.to_string()),
    };
    record::write(&files.exit(), &exit, Durability::Disk)?;
    // The agent reads the record when this process has ended.
    Ok(())
}

/// The container's running command.
struct RunningCommand {
    pid: Pid,
    /// Dropped when all processes of the container have ended, so that the pump ends.
    alive: OwnedFd,
    /// The process group that gets signals. Cleared under the lock when the command is reaped, so that no signal reaches a
    /// process that reuses the pid.
    target: Arc<Mutex<Option<Pid>>>,
    pump: std::thread::JoinHandle<()>,
}

/// Starts the command. The text of an error becomes the message in the container's status.
fn start(files: &ContainerFiles, run: &RunRecord) -> io::Result<RunningCommand> {
    if let Some(cgroup) = &run.cgroup {
        cgroup.make().map_err(|error| with_context("cannot create the cgroup", &error))?;
    }
    let control = pump::open_control(&files.control())?;
    let log = log::Log::open(&run.log).map_err(|error| with_context("cannot open the log", &error))?;
    let (out, out_end) = io::pipe()?;
    let (err, err_end) = io::pipe()?;
    let (mut failure, failure_end) = io::pipe()?;
    let (dead, alive) = io::pipe()?;

    let child = Command::new("/proc/self/exe")
        .args(run.shim.iter().skip(1))
        .args([INIT.as_ref(), files.dir().as_os_str()])
        .arg(getpid().to_string())
        .stdin(Stdio::from(failure_end))
        .stdout(Stdio::from(out_end))
        .stderr(Stdio::from(err_end))
        .spawn()?;
    let pid = Pid::from_child(&child);
    // The other end closes without text when the command is executed; otherwise it sends the error.
    let mut text = String::new();
    failure.read_to_string(&mut text)?;
    if !text.is_empty() {
        let _ = wait(WaitOptions::empty());
        remove_cgroup(run);
        return Err(io::Error::other(text));
    }

    let started = StartedRecord { pid: pid.as_raw_nonzero().get(), started_at: record::now().as_nanos() };
    record::write(&files.started(), &started, Durability::Boot)?;
    let target = Arc::new(Mutex::new(Some(pid)));
    let pump = pump::Pump {
        out: out.into(),
        err: err.into(),
        control,
        dead: dead.into(),
        log,
        target: Arc::clone(&target),
        stop_signal: Signal::from_named_raw(run.stop_signal).unwrap_or(Signal::TERM),
        cgroup: run.cgroup.clone(),
    };
    Ok(RunningCommand { pid, alive: alive.into(), target, pump: pump.spawn()? })
}

/// Closes the pipe on which the agent waits for the start of the command.
fn report_start() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(null)?)
}

/// Waits for the command to end, kills all remaining processes of the container, and returns the exit record.
fn wait_for_exit(files: &ContainerFiles, run: &RunRecord, command: RunningCommand) -> io::Result<ExitRecord> {
    let status = reap_until_end(command.pid, &command.target)?;
    let finished_at = record::now().as_nanos();
    let out_of_memory = run.cgroup.as_ref().is_some_and(super::record::Cgroup::ran_out_of_memory);
    if let Some(cgroup) = &run.cgroup {
        let _ = cgroup.kill();
    }
    kill_descendants()?;
    // Exec commands are not children of this process. Their keepers notice the end of the command.
    let _no_more_execs = match exec_keeper::wait_for_keepers(files, EXECS_END_WITHIN) {
        Ok(lock) => lock,
        Err(error) => {
            eprintln!("{error}");
            procfs::kill_marked(CONTAINER_ENV, &run.id, run.user.uid).map(|_| None)?
        }
    };
    drop(command.alive);
    let _ = command.pump.join();
    remove_cgroup(run);

    let signal = status.terminating_signal();
    let exit_code = status.exit_status().unwrap_or_else(|| 128 + signal.unwrap_or(0));
    let reason = match (exit_code, signal) {
        (0, _) => "Completed",
        (_, Some(KILL)) if out_of_memory => "OOMKilled",
        _ => "Error",
    };
    let message = termination_message(run, exit_code);
    Ok(ExitRecord { exit_code, signal, reason: reason.into(), message, finished_at })
}

const KILL: i32 = Signal::KILL.as_raw();
/// How long the end of a container waits for its exec commands. They usually end within milliseconds.
pub(super) const EXECS_END_WITHIN: Duration = Duration::from_secs(5);

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

/// Kills and reaps children until this process has none. The children of a killed process become children of this one,
/// because it is their subreaper, so no process escapes.
fn kill_descendants() -> io::Result<()> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
            Ok(None) => {
                for child in procfs::children(getpid()) {
                    let _ = kill_process(child, Signal::KILL);
                }
                match wait(WaitOptions::empty()) {
                    Ok(_) | Err(Errno::INTR | Errno::CHILD) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

/// Removes the container's cgroup. On failure the agent tries again when it removes the container.
fn remove_cgroup(run: &RunRecord) {
    if let Some(Err(error)) = run.cgroup.as_ref().map(super::record::Cgroup::remove) {
        eprintln!("cannot remove the cgroup: {error}");
    }
}

fn with_context(what: &str, error: &io::Error) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
}

/// The termination message of a container that has ended: the first 4096 bytes of its termination log. If that is empty, the
/// container failed and its policy is `FallbackToLogsOnError`, the message is the end of the container's log, at most 2048
/// bytes and 80 lines (limits of `kubelet/container/runtime.go`, kubelet 1.36).
fn termination_message(run: &RunRecord, exit_code: i32) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = open_inside(run) {
        let _ = file.take(4096).read_to_end(&mut bytes);
    }
    if bytes.is_empty() && run.message_from_log && exit_code != 0 {
        let (dir, file) = Layout::split_log(&run.log);
        bytes = end_of_log(&dir, &file);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Opens the termination log. The container may have replaced the file. A link must not give access to a file that the
/// container may not read, and opening a FIFO must not block.
fn open_inside(run: &RunRecord) -> io::Result<File> {
    regular::open(regular::open_dir(&run.rootfs, Path::new("."))?, &run.termination_log)
}

/// The text of the error becomes the message in the container's status.
type InitResult = Result<Infallible, String>;
