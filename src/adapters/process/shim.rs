//! The shim: one small process per container, which outlives the agent.
//!
//! Two threads. The first spawns the command and reaps: a process that is to die with its parent dies with the *thread*
//! that made it, so this must be the thread that lives as long as the shim. The second copies output and takes requests.
//! No async runtime, no allocation worth the name: a node may run hundreds of these.

mod init;
pub mod log;
mod message;
mod pump;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, setsid,
    wait, waitid,
};

use super::CONTAINER_ENV;
use super::files::ContainerFiles;
use super::procfs;
use super::record::{self, Durability, ExitRecord, RunRecord, ShimRecord, StartedRecord};

/// Runs a shim, or the stage that becomes the container's command: `args` are those after
/// [`SHIM_ARGUMENT`](super::SHIM_ARGUMENT). A binary that embeds the process runtime calls this before all else, while
/// it has one thread.
pub fn shim_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let result = match args.iter().map(|arg| arg.to_str()).collect::<Option<Vec<_>>>().as_deref() {
        Some([RUN, dir]) => run(&ContainerFiles::new(dir.into())).map_err(|error| error.to_string()),
        Some([INIT, dir, parent]) => match init::become_command(Path::new(dir), parent) {
            Err(error) => Err(error),
            Ok(never) => match never {},
        },
        Some([EXEC, dir, command @ ..]) => match init::become_exec(Path::new(dir), command) {
            Err(error) => Err(error),
            Ok(never) => match never {},
        },
        _ => Err("this command is run by the agent, not by people".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The argument for the shim proper.
pub(super) const RUN: &str = "run";
/// The argument for the stage between the agent and a command beside the container's own.
pub(super) const EXEC: &str = "exec";
/// The argument for the stage between the shim and the command.
const INIT: &str = "init";

fn run(files: &ContainerFiles) -> io::Result<()> {
    setsid()?;
    let _ = rustix::thread::set_name(c"podwright-shim");
    set_child_subreaper(Some(getpid()))?;
    rustix::process::chdir("/")?;
    // First of all, so that an agent that finds the lock held soon knows by whom.
    let shim = ShimRecord { pid: getpid().as_raw_nonzero().get(), boot_id: procfs::boot_id()? };
    record::write(&files.shim(), &shim, Durability::Boot)?;

    let run: RunRecord = record::read(&files.run()).map_err(io::Error::other)?;
    let exit = match start(files, &run) {
        Ok(container) => {
            tell_agent()?;
            watch_over(files, &run, container)?
        }
        Err(error) => ExitRecord::start_error(error.to_string()),
    };
    record::write(&files.exit(), &exit, Durability::Disk)?;
    // The agent looks at the record once this process has ended.
    Ok(())
}

/// The command, running.
struct Container {
    pid: Pid,
    /// Dropped to tell the pump that all writers are gone.
    alive: OwnedFd,
    /// Cleared under the lock when the pid is reaped, so that no signal reaches its next owner.
    target: Arc<Mutex<Option<Pid>>>,
    pump: std::thread::JoinHandle<()>,
}

/// Starts the command; an error is one that stands in the container's status.
fn start(files: &ContainerFiles, run: &RunRecord) -> io::Result<Container> {
    if let Some(cgroup) = &run.cgroup {
        cgroup.make().map_err(|error| named("cannot make the cgroup", &error))?;
    }
    let control = pump::open_control(&files.control())?;
    let log = log::Log::open(&run.log).map_err(|error| named("cannot open the log", &error))?;
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
    // The other end closes when the command is executed, or carries what went wrong.
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
    Ok(Container { pid, alive: alive.into(), target, pump: pump.spawn()? })
}

/// Closes the pipe on which the agent waits: the start is decided.
fn tell_agent() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(null)?)
}

/// Waits for the command, ends all that it left, and says how it ended.
fn watch_over(files: &ContainerFiles, run: &RunRecord, container: Container) -> io::Result<ExitRecord> {
    let status = reap_until_end(container.pid, &container.target)?;
    let finished_at = record::now().as_nanos();
    let out_of_memory = run.cgroup.as_ref().is_some_and(super::record::Cgroup::ran_out_of_memory);
    if let Some(cgroup) = &run.cgroup {
        let _ = cgroup.kill();
    }
    kill_descendants()?;
    if files.exec_used().exists() {
        // Commands that the agent ran beside this one are not our descendants.
        procfs::kill_marked(CONTAINER_ENV, &run.id)?;
    }
    drop(container.alive);
    let _ = container.pump.join();
    remove_cgroup(run);

    let signal = status.terminating_signal();
    let exit_code = status.exit_status().unwrap_or_else(|| 128 + signal.unwrap_or(0));
    let reason = match (exit_code, signal) {
        (0, _) => "Completed",
        (_, Some(KILL)) if out_of_memory => "OOMKilled",
        _ => "Error",
    };
    let message = message::termination_message(run, exit_code);
    Ok(ExitRecord { exit_code, signal, reason: reason.into(), message, finished_at })
}

const KILL: i32 = Signal::KILL.as_raw();

/// Reaps orphans until the command itself has ended.
fn reap_until_end(container: Pid, target: &Mutex<Option<Pid>>) -> io::Result<WaitStatus> {
    loop {
        match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        // Somebody can be reaped now. Under the lock, so that a signal is sent before or after, never to a freed pid.
        let mut target = target.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((pid, status)) = wait(WaitOptions::NOHANG)?
            && pid == container
        {
            *target = None;
            return Ok(status);
        }
    }
}

/// Kills and reaps until this process has no child. What a killed child leaves behind becomes our child in turn, because
/// we are the subreaper, so nothing gets away.
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

/// Best effort: the agent tries again when the container is removed.
fn remove_cgroup(run: &RunRecord) {
    if let Some(Err(error)) = run.cgroup.as_ref().map(super::record::Cgroup::remove) {
        eprintln!("cannot remove the cgroup: {error}");
    }
}

fn named(what: &str, error: &io::Error) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
}

/// An error that stands in the container's status as it is.
type InitResult = Result<Infallible, String>;
