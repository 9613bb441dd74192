//! Starting a container and noticing its end.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use podwright_actors::ports::RuntimeError;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::unix::pipe::Receiver;
use tracing::{error, warn};

use super::CONTAINER_ENV;
use super::container::{Container, RunState, Shim};
use super::files::ContainerFiles;
use super::procfs;
use super::record::{self, Durability, ExitRecord, ReadError, RunRecord, StartedRecord};
use super::shared::ProcessRuntimeState;
use super::shim;

/// Starts a created container; returns once its command was executed, or could not be.
pub(super) async fn start(shared: Arc<ProcessRuntimeState>, container: Arc<Container>) -> Result<(), RuntimeError> {
    {
        if !shared.is_ready(&container.sandbox) {
            return Err(RuntimeError::Failed(format!(
                "sandbox {} is stopped: nothing starts in it",
                container.sandbox
            )));
        }
        let mut run = container.run.lock();
        if !matches!(*run, RunState::Created) {
            let state = run.state();
            return Err(RuntimeError::Failed(format!(
                "container {} is {state}: only a created one starts",
                container.id
            )));
        }
        *run = RunState::Starting;
    }
    let files = container.files.clone();
    let (shim, decided) = match shared.blocking(move || launch(&files)).await {
        Ok(launched) => launched,
        Err(error) => {
            container.set(RunState::Created);
            return Err(RuntimeError::Failed(format!("cannot start a shim: {error}")));
        }
    };
    // The shim closes its end when the start is decided, or by dying.
    let mut rest = Vec::new();
    let read = async { Receiver::from_owned_fd(decided)?.read_to_end(&mut rest).await };
    if let Err(error) = read.await {
        warn!(%error, container.id = %container.id, "cannot hear from the shim, waiting for its end");
    }
    match record::read::<StartedRecord>(&container.files.started()) {
        Ok(started) => {
            container.set(RunState::Running { started, shim: shim.clone() });
            shared.table.mark_changed(&container.uid);
            let watcher = Arc::clone(&shared);
            shared.spawn(async move { watch(&watcher, &container, shim).await });
            Ok(())
        }
        Err(_) => {
            watch(&shared, &container, shim).await;
            let message = match &*container.run.lock() {
                RunState::Exited { exit, .. } => exit.message.clone(),
                _ => "the start failed".into(),
            };
            Err(RuntimeError::Config(message))
        }
    }
}

/// Spawns the shim, with the container's lock as its standard input (see the module's page on adoption), and returns
/// the end of a pipe that closes when the start is decided.
fn launch(files: &ContainerFiles) -> io::Result<(Shim, OwnedFd)> {
    let run: RunRecord = record::read(&files.run()).map_err(io::Error::other)?;
    let (program, args) = run.shim.split_first().ok_or_else(|| io::Error::other("its command is empty"))?;
    let lock = files.try_lock()?.ok_or_else(|| io::Error::other("the container's lock is held"))?;
    // The intent, on disk before the effect.
    record::sync_parent(&files.lock())?;
    let (decided, decided_end) = io::pipe()?;
    let shim_log = File::options().create(true).append(true).open(files.shim_log())?;
    let spawned = Command::new(program)
        // What listings of processes show.
        .arg0("podwright-shim")
        .args(args)
        .arg(shim::RUN)
        .arg(files.dir())
        .env_clear()
        .env(CONTAINER_ENV, &run.id)
        .stdin(Stdio::from(lock))
        .stdout(Stdio::from(decided_end))
        .stderr(Stdio::from(shim_log))
        .spawn();
    match spawned {
        // The child is not waited for by its handle, but by a descriptor; its pid is its own until then.
        Ok(child) => Ok((Shim::open(child.id().cast_signed())?, decided.into())),
        Err(error) => {
            // Nothing ran, so the intent is taken back.
            super::files::remove_file(&files.lock())?;
            Err(io::Error::new(error.kind(), format!("{program}: {error}")))
        }
    }
}

/// Waits for the end of a shim and takes note of how its container ended.
pub(super) async fn watch(shared: &Arc<ProcessRuntimeState>, container: &Arc<Container>, shim: Shim) {
    if let Err(error) = ended(&shim).await {
        // It cannot be said to have ended, and a container that may run must not be reported as ended.
        error!(%error, container.id = %container.id, "cannot watch the shim, killing it");
        shim.kill();
    }
    shim.reap();
    let files = container.files.clone();
    let id = container.id.clone();
    let (started, exit) = shared.blocking(move || conclude(&files, id.as_str())).await;
    if exit.reason == "ContainerStatusUnknown" {
        warn!(container.id = %container.id, pod.uid = %container.uid, message = exit.message, "container was lost");
    }
    container.set(RunState::Exited { started, exit: Box::new(exit) });
    shared.table.mark_changed(&container.uid);
}

/// Waits for the end of the process.
async fn ended(shim: &Shim) -> io::Result<()> {
    #[expect(
        deprecated,
        reason = "the successor is `unsafe`, for descriptors that could close while registered; this one is owned by \
                  the registration"
    )]
    let fd = AsyncFd::with_interest(shim.clone(), Interest::READABLE)?;
    fd.readable().await.map(drop)
}

/// How a container ended whose shim is gone. Where the shim could not say, what survived is killed first.
pub(super) fn conclude(files: &ContainerFiles, id: &str) -> (Option<StartedRecord>, ExitRecord) {
    let started = record::read::<StartedRecord>(&files.started()).ok();
    let exit = match record::read::<ExitRecord>(&files.exit()) {
        Ok(exit) => exit,
        Err(error) => {
            // A record that cannot be read says as much as one that can: it ran.
            let ran = files.started().exists();
            let exit = lost(files, ran, &error, kill_survivors(files, id));
            if let Err(error) = record::write(&files.exit(), &exit, Durability::Disk) {
                warn!(%error, container.id = id, "cannot write down how the container ended");
            }
            exit
        }
    };
    (started, exit)
}

fn lost(files: &ContainerFiles, started: bool, error: &ReadError, killed: io::Result<usize>) -> ExitRecord {
    let said = std::fs::read_to_string(files.shim_log()).unwrap_or_default();
    let said = match said.trim() {
        "" => String::new(),
        said => format!("; it said: {said}"),
    };
    let survivors = match killed {
        Ok(0) => String::new(),
        Ok(n) => format!("; killed {n} processes that survived"),
        Err(error) => format!("; processes that survived could not be killed: {error}"),
    };
    if error.is_missing() && !started {
        return ExitRecord::start_error(format!("the shim ended before the command was executed{said}{survivors}"));
    }
    ExitRecord::unknown(match error {
        ReadError::Missing(_) => format!("the container's shim died, so its exit code is not known{said}{survivors}"),
        error => format!("{error}: its exit code is not known; remove the container to be rid of it{survivors}"),
    })
}

/// Kills what is left of a container whose shim is gone, and the shim if it is not.
pub(super) fn kill_survivors(files: &ContainerFiles, id: &str) -> io::Result<usize> {
    let cgroup = record::read::<RunRecord>(&files.run()).ok().and_then(|run| run.cgroup);
    if let Some(cgroup) = &cgroup {
        cgroup.kill()?;
    }
    let killed = procfs::kill_marked(CONTAINER_ENV, id)?;
    cgroup.map_or(Ok(()), |cgroup| cgroup.remove())?;
    Ok(killed)
}
