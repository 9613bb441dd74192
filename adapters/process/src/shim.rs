//! The shim: one small process per container, which outlives the agent.
//!
//! A shim has two threads. The first spawns the command and reaps processes. It must live as long as the shim: the kernel
//! kills a process with a parent-death signal when the *thread* that spawned the process ends. The second thread copies the
//! output and takes requests. A node may run hundreds of shims, so a shim has no async runtime and allocates little.

mod confine;
mod exec_input;
mod exec_keeper;
mod exec_reaper;
mod exit;
mod init;
mod input_relay;
mod joined;
pub(super) mod log;
mod namespaces;
mod probe;
mod pump;
mod seccomp;
mod stdio;
mod view;

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use podwright_host::signals;
use rustix::process::{Pid, Signal, getpid, set_child_subreaper, setsid};

use super::files::ContainerFiles;
use super::procfs;
use super::record::{self, Durability, ExitRecord, RunRecord, ShimRecord, StartedRecord};
use super::reserved::ReservedSpace;
pub(super) use exec_input::{ExecInput, send_input};
pub(super) use exec_keeper::wait_for_keepers;
pub(super) use exit::EXECS_END_WITHIN;
use namespaces::Namespaces;
pub(super) use probe::{EXHAUSTED, MOUNTS, PROCESSES, has_line};
pub(super) use seccomp::HAS_DEFAULT_PROFILE;

/// Runs a shim, or the stage that becomes the container's command. `args` are the arguments after
/// [`SHIM_ARGUMENT`](super::SHIM_ARGUMENT). A binary that embeds the process runtime must call this at the start of `main`,
/// while it has only one thread.
pub fn shim_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // An agent may have been started with other open files, which no container may read.
    close_fds::set_fds_cloexec(3, &[]);
    signals::unblock_all();
    signals::reset_ignored(|_| true);
    let args: Vec<OsString> = args.into_iter().collect();
    let result = match args.iter().map(|arg| arg.to_str()).collect::<Option<Vec<_>>>().as_deref() {
        Some([RUN, dir]) => run(&ContainerFiles::new(dir.into())).map_err(|error| error.to_string()),
        Some([INIT, dir, mounts, input]) => match init::become_command(Path::new(dir), mounts, input) {
            Err(error) => Err(error),
            Ok(never) => match never {},
        },
        Some([EXEC, input, dir, command @ ..]) => ExecInput::parse(input)
            .and_then(|input| exec_keeper::keep(Path::new(dir), input, command))
            .map_err(|error| error.to_string()),
        Some([INIT_OF_NAMESPACE, dir]) => namespaces::be_init(Path::new(dir)),
        Some([PROBE, shim @ ..]) => probe::probe(shim),
        Some([PROBE_PROCESSES]) => probe::probe_processes(),
        Some([EXEC_INIT, input, command @ ..]) => match init::become_exec(input, command) {
            Err(error) => Err(error),
            Ok(never) => match never {},
        },
        _ => Err("only the agent may run this command: run `podwright run`".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&error);
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
/// The argument of a process that becomes the first process of a PID namespace and sets up the container's mounts.
const INIT_OF_NAMESPACE: &str = "namespace-init";
/// The argument of a process that tests which namespaces the agent may create.
pub(super) const PROBE: &str = "probe";
/// The argument of the process that this test starts in a PID namespace.
const PROBE_PROCESSES: &str = "probe-processes";

fn run(files: &ContainerFiles) -> io::Result<()> {
    let (run, space) = prepare(files).inspect_err(|error| {
        // On a full disk the error cannot be written to the shim's log.
        let _ = write!(io::stdout(), "{error}");
    })?;
    match start(files, &run, space.started) {
        Ok(command) => {
            if let Err(error) = report_start() {
                note(&format!("cannot report the start: {error}"));
            }
            exit::record_exit(files, &run, command, space.exit)
        }
        // The agent reads the record when this process has ended.
        Err(error) => space.exit.write(&files.exit(), &ExitRecord::start_error(error.to_string()), Durability::Disk),
    }
}

/// Prepares this process and the records of the container. No command has run if this fails.
fn prepare(files: &ContainerFiles) -> io::Result<(RunRecord, RecordSpace)> {
    setsid()?;
    let _ = rustix::thread::set_name(c"podwright-shim");
    set_child_subreaper(Some(getpid()))?;
    rustix::process::chdir("/")?;
    protect_from_oom_killer();
    // This record is written first, so that an agent that finds the lock held can read the shim's pid soon.
    let shim = ShimRecord { pid: getpid().as_raw_nonzero().get(), boot_id: procfs::boot_id()? };
    record::write(&files.shim(), &shim, Durability::Boot)
        .map_err(|error| with_context("cannot record the shim", &error))?;
    let run: RunRecord = record::read(&files.run()).map_err(io::Error::other)?;
    let space = RecordSpace::reserve(files)
        .map_err(|error| with_context("cannot reserve disk space for the container's records", &error))?;
    Ok((run, space))
}

/// Sets the `oom_score_adj` of this process: the keeper of a container or of an exec command. The process needs little memory, and
/// its end ends the container. Without the right to lower the value, it keeps the value of the agent, which has logged that.
fn protect_from_oom_killer() {
    let _ = procfs::set_oom_score_adj(SHIM_OOM_SCORE);
}

/// The `oom_score_adj` of shims (`AdjustOOMScore` of containerd 1.7: one more than containerd's own value under systemd, which is
/// -999).
pub(super) const SHIM_OOM_SCORE: i64 = -998;

/// The space for the records that are written once the command runs. A full disk must not hide that the command ran, or how
/// it ended.
struct RecordSpace {
    started: ReservedSpace,
    exit: ReservedSpace,
}

impl RecordSpace {
    fn reserve(files: &ContainerFiles) -> io::Result<Self> {
        Ok(RecordSpace {
            started: ReservedSpace::new(files.started_reserved(), STARTED_BYTES)?,
            exit: ReservedSpace::new(files.exit_reserved(), EXIT_BYTES)?,
        })
    }
}

/// The space for the record of a start.
const STARTED_BYTES: u32 = 4 << 10;
/// The space for the record of an exit: a termination message has at most 4096 bytes, and each of them takes at most 6 bytes
/// in JSON.
const EXIT_BYTES: u32 = 32 << 10;

/// The container's running command.
struct RunningCommand {
    pid: Pid,
    /// Closes when no process of the container is left. The other end is the pump's.
    alive: OwnedFd,
    target: Arc<Mutex<Option<Pid>>>,
    namespaces: Namespaces,
    /// Closes when the thread that copies the output has ended.
    pump: Receiver<Infallible>,
}

/// Starts the command. The text of an error becomes the message in the container's status.
fn start(files: &ContainerFiles, run: &RunRecord, space: ReservedSpace) -> io::Result<RunningCommand> {
    if let Some(cgroup) = &run.cgroup {
        cgroup.make().map_err(|error| with_context("cannot create the cgroup", &error))?;
    }
    let log = log::Log::open(&run.log).map_err(|error| with_context("cannot open the log", &error))?;
    let control = pump::open_control(&files.control())?;
    let (streams, command_ends) =
        stdio::open(files, run).map_err(|error| with_context("cannot open the standard streams", &error))?;
    let (mut failure, failure_end) = io::pipe()?;
    let (dead, alive) = io::pipe()?;
    let target = Arc::new(Mutex::new(None));
    let pump = pump::Pump {
        streams,
        control,
        dead: dead.into(),
        log,
        target: Arc::clone(&target),
        stop_signal: Signal::from_named_raw(run.stop_signal).unwrap_or(Signal::TERM),
        cgroup: run.cgroup.clone(),
    };
    let own_users =
        namespaces::enter_users(run).map_err(|error| with_context("cannot create a user namespace", &error))?;
    // The thread is created before the command, so that its creation cannot fail after the command was executed. It ends when
    // `alive` is dropped.
    let pump = pump.spawn()?;

    // Nothing that can fail because of the node comes after the command was executed: the pod would start the command again.
    let namespaces = namespaces::create(run, files, own_users)?;
    let child = namespaces.pass_mounts(|mounts| {
        command_ends.pass(|input, out, err| {
            Command::new("/proc/self/exe")
                .args(run.shim.iter().skip(1))
                .args([INIT.as_ref(), files.dir().as_os_str(), mounts.as_ref(), input.as_ref()])
                .stdin(Stdio::from(failure_end))
                .stdout(out)
                .stderr(err)
                .spawn()
        })
    })?;
    let pid = Pid::from_child(&child);
    // The other end closes without text when the command is executed; otherwise it sends the error.
    let mut text = Vec::new();
    let executed = match failure.read_to_end(&mut text) {
        Ok(0) => Ok(()),
        Ok(_) => Err(io::Error::other(String::from_utf8_lossy(&text).into_owned())),
        Err(error) => Err(with_context("cannot read whether the command was executed", &error)),
    };
    // No request reaches this process before the record is written, because the agent waits for the record.
    *target.lock().unwrap_or_else(PoisonError::into_inner) = Some(pid);
    let started = StartedRecord {
        pid: pid.as_raw_nonzero().get(),
        started_at: record::now().as_nanos(),
        init: namespaces.init.map(|init| init.as_raw_nonzero().get()),
        namespaces: Some(namespaces.ids),
    };
    let recorded = executed.and_then(|()| {
        // Without the record, a later agent would start the command a second time.
        space
            .write(&files.started(), &started, Durability::Boot)
            .map_err(|error| with_context("cannot record the start", &error))
    });
    if let Err(error) = recorded {
        *target.lock().unwrap_or_else(PoisonError::into_inner) = None;
        exit::log_failure("processes remain", &exit::kill_descendants());
        exit::remove_cgroup(run);
        return Err(error);
    }
    Ok(RunningCommand { pid, alive: alive.into(), target, namespaces, pump })
}

/// Writes a line to standard error: the shim's log, or what the caller of this process reads. The disk may be full, and `eprintln` would
/// end the thread then.
fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Closes the pipe on which the agent waits for the start of the command. Later output goes to the shim's log.
fn report_start() -> io::Result<()> {
    Ok(rustix::stdio::dup2_stdout(rustix::stdio::stderr())?)
}

fn with_context(what: &str, error: &io::Error) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
}

/// The text of the error becomes the message in the container's status.
type InitResult = Result<Infallible, String>;
