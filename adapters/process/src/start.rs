//! Starting a container and waiting for its end.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use podwright_host::step_error::StepError;
use podwright_ports::RuntimeError;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::unix::pipe::Receiver;
use tokio::time::sleep;
use tracing::warn;

use super::CONTAINER_ENV;
use super::container::{Container, RunState, Shim};
use super::files::{ContainerFiles, is_id, remove_file};
use super::procfs;
use super::record::{self, Durability, ExitRecord, ReadError, RunRecord, StartedRecord};
use super::shared::ProcessRuntimeState;
use super::shim;

/// Starts a created container. Returns after its command was executed, or with the reason why it could not be executed.
pub(super) async fn start(shared: Arc<ProcessRuntimeState>, container: Arc<Container>) -> Result<(), RuntimeError> {
    {
        if !shared.is_ready(&container.sandbox) {
            return Err(RuntimeError::failed(format!(
                "sandbox {} is stopped: create another sandbox",
                container.sandbox
            )));
        }
        let mut run = container.run.lock();
        if !matches!(*run, RunState::Created) {
            let state = run.state();
            return Err(RuntimeError::failed(format!(
                "container {} is {state}: only a created container can be started",
                container.id
            )));
        }
        *run = RunState::Starting;
    }
    let (files, program) = (container.files.clone(), shared.shim());
    let (shim, mut outcome_known) = match shared.blocking(move || launch(&files, program)).await {
        Ok(launched) => launched,
        Err(error) => {
            container.set(RunState::Created);
            return Err(RuntimeError::failed(StepError::new("cannot start a shim", error)));
        }
    };
    // The shim's end of the pipe closes when the command was executed, when it could not be executed, and when the shim
    // dies.
    let mut report = Vec::new();
    if let Err(error) = outcome_known.read_to_end(&mut report).await {
        warn!(%error, container.id = %container.id, "cannot read from the shim, waiting for its end");
    }
    let started = loop {
        match record::read::<StartedRecord>(&container.files.started()) {
            Err(error) if record::is_exhausted(&error) => sleep(RETRY_INTERVAL).await,
            read => break read,
        }
    };
    match started {
        Ok(started) => {
            container.set(RunState::Running { started, shim: shim.clone() });
            shared.table.mark_changed(&container.uid);
            let watcher = Arc::clone(&shared);
            shared.spawn(async move { watch(&watcher, &container, shim, Vec::new()).await });
            Ok(())
        }
        Err(_) => {
            watch(&shared, &container, shim, report).await;
            let message = match &*container.run.lock() {
                RunState::Exited { exit, .. } => exit.message.clone(),
                _ => "the start failed".into(),
            };
            Err(RuntimeError::config(message))
        }
    }
}

/// Spawns the shim with the container's lock as its standard input (see "Adoption" in the [crate](crate)). Returns the shim
/// and the end of a pipe that closes when the command was executed or could not be.
fn launch(files: &ContainerFiles, (program, args): (String, Vec<String>)) -> io::Result<(Shim, Receiver)> {
    let run: RunRecord = record::read(&files.run()).map_err(io::Error::other)?;
    let lock = files.try_lock()?.ok_or_else(|| io::Error::other("the container's lock is held"))?;
    // The lock file records the attempt, so it must be on disk before the shim exists.
    record::sync_parent(&files.lock())?;
    let (outcome_known, outcome_known_end) = io::pipe()?;
    // This can fail, so it comes before the spawn: the container of a shim that was spawned may run.
    let outcome_known = Receiver::from_owned_fd(outcome_known.into())?;
    let shim_log = File::options().create(true).append(true).open(files.shim_log())?;
    let spawned = Command::new(&program)
        // The name in process listings.
        .arg0("podwright-shim")
        .args(args)
        .arg(shim::RUN)
        .arg(files.dir())
        .env_clear()
        .env(CONTAINER_ENV, &run.id)
        .stdin(Stdio::from(lock))
        .stdout(Stdio::from(outcome_known_end))
        .stderr(Stdio::from(shim_log))
        .spawn();
    match spawned {
        Ok(child) => Ok((Shim::of_child(&child), outcome_known)),
        Err(error) => {
            // Nothing ran, so no start was attempted.
            remove_file(&files.lock())?;
            Err(io::Error::new(error.kind(), format!("{program}: {error}")))
        }
    }
}

/// Waits for the end of a shim and records how its container ended. `report` is the shim's report about the start.
pub(super) async fn watch(shared: &Arc<ProcessRuntimeState>, container: &Arc<Container>, shim: Shim, report: Vec<u8>) {
    ended(&shim).await;
    shim.reap();
    settle(shared, container, report).await;
}

/// Finds out how a container ended whose shim has ended, and publishes that.
pub(super) async fn settle(shared: &Arc<ProcessRuntimeState>, container: &Arc<Container>, report: Vec<u8>) {
    let report: Arc<str> = String::from_utf8_lossy(&report).trim().into();
    let mut logged = false;
    let (started, exit) = loop {
        let (files, id, report) = (container.files.clone(), container.id.clone(), Arc::clone(&report));
        match shared.blocking(move || read_or_write_exit(&files, id.as_str(), &report)).await {
            Ok(found) => break found,
            Err(error) => {
                if !logged {
                    warn!(%error, container.id = %container.id, "cannot read how a container ended, trying again");
                }
                logged = true;
                sleep(RETRY_INTERVAL).await;
            }
        }
    };
    if exit.is_unknown() {
        warn!(container.id = %container.id, pod.uid = %container.uid, message = exit.message, "the container's exit is unknown");
    }
    container.set(RunState::Exited { started, exit: Box::new(exit) });
    shared.table.mark_changed(&container.uid);
}

/// Waits for the end of the shim's process. If the system cannot notify this process, for example because it has no descriptor
/// left, this inspects the shim at intervals: its container is healthy and must not be killed for that.
pub(super) async fn ended(shim: &Shim) {
    let mut logged = false;
    while !shim.has_ended() {
        match notified(shim).await {
            Ok(()) => return,
            Err(error) => {
                if !logged {
                    warn!(%error, "the system does not notify of a shim's end, inspecting the shim at intervals");
                }
                logged = true;
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

async fn notified(shim: &Shim) -> io::Result<()> {
    #[expect(
        deprecated,
        reason = "the replacement is `unsafe` because a descriptor could close while it is registered; here the \
                  registration owns the descriptor"
    )]
    let fd = AsyncFd::with_interest(shim.pidfd()?, Interest::READABLE)?;
    fd.readable().await.map(drop)
}

/// The interval between two attempts of an operation for which the system has no resources.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Returns how a container ended, after its shim has ended. If the shim left no exit record, this kills the container's
/// remaining processes and writes an exit record. `report` is the shim's report about the start.
///
/// # Errors
/// If the system has no resources to read the records. The records are unchanged.
fn read_or_write_exit(
    files: &ContainerFiles,
    id: &str,
    report: &str,
) -> Result<(Option<StartedRecord>, ExitRecord), ReadError> {
    let started = match record::read::<StartedRecord>(&files.started()) {
        Err(error) if record::is_exhausted(&error) => return Err(error),
        started => started.ok(),
    };
    let exit = match record::read::<ExitRecord>(&files.exit()) {
        Ok(exit) => exit,
        Err(error) if record::is_exhausted(&error) => return Err(error),
        Err(error) => {
            // Even a damaged record proves that the command was executed.
            let ran = files.started().exists();
            let exit = exit_without_record(files, ran, &error, kill_survivors(files, id), report);
            // On a full disk, this frees the space that the shim did not use.
            let _ = remove_file(&files.exit_reserved());
            if let Err(error) = record::write(&files.exit(), &exit, Durability::Disk) {
                warn!(%error, container.id = id, "cannot record the container's exit");
            }
            exit
        }
    };
    Ok((started, exit))
}

fn exit_without_record(
    files: &ContainerFiles,
    started: bool,
    error: &ReadError,
    killed: io::Result<usize>,
    report: &str,
) -> ExitRecord {
    let output = std::fs::read_to_string(files.shim_log()).unwrap_or_default();
    let output = match if report.is_empty() { output.trim() } else { report } {
        "" => String::new(),
        text => format!("; its output: {text}"),
    };
    let survivors = match killed {
        Ok(0) => String::new(),
        Ok(n) => format!("; killed {n} remaining processes"),
        Err(error) => format!("; remaining processes could not be killed: {error}"),
    };
    if error.is_missing() && !started {
        return ExitRecord::start_error(format!("the shim ended before the command was executed{output}{survivors}"));
    }
    ExitRecord::unknown(match error {
        ReadError::Missing(_) => format!("the container's shim died: the exit code is unknown{output}{survivors}"),
        error => format!("{error}: the exit code is unknown; remove the container to remove the record{survivors}"),
    })
}

/// Kills the remaining processes of a container, the shim included, and removes the container's cgroup. Returns how many
/// processes it killed by their environment.
///
/// # Errors
/// The system's error, or an id that no agent made. The processes of other containers would match a part of an id or an empty one.
pub(super) fn kill_survivors(files: &ContainerFiles, id: &str) -> io::Result<usize> {
    if !is_id(id) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{id:?} is not the id of a container")));
    }
    let run = record::read::<RunRecord>(&files.run()).ok();
    // Without the record, only the processes of the agent's user can be recognised: the shim, whose end ends the others.
    let user = run.as_ref().map_or_else(|| rustix::process::getuid().as_raw(), |run| run.user.uid);
    let cgroup = run.and_then(|run| run.cgroup);
    if let Some(cgroup) = &cgroup {
        cgroup.kill()?;
    }
    // The keepers of exec commands find processes that have no mark, so they must end by themselves.
    if let Err(error) = shim::wait_for_keepers(files, shim::EXECS_END_WITHIN) {
        warn!(%error, container.id = id, "cannot end all exec commands of a container");
    }
    let killed = procfs::kill_marked(CONTAINER_ENV, id, user)?;
    // The first process of a PID namespace ends with the shim, and after all others in the namespace.
    if let Ok(StartedRecord { init: Some(init), .. }) = record::read(&files.started()) {
        procfs::wait_for_init(init, shim::EXECS_END_WITHIN)?;
    }
    cgroup.map_or(Ok(()), |cgroup| cgroup.remove())?;
    Ok(killed)
}
