//! Stopping a container.

use std::sync::Arc;
use std::time::Duration;

use podwright_ports::RuntimeError;
use rustix::process::Pid;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use super::container::{Container, RunState, Shim};
use super::files::Request;
use super::procfs;
use super::record::{self, Durability, ExitRecord};
use super::shared::ProcessRuntimeState;

/// Sends a container its stop signal, kills it after `grace`, and returns when it has exited. A later call with a shorter
/// grace period shortens it. Dropping the future does not cancel the stop.
pub(super) async fn stop(
    shared: &Arc<ProcessRuntimeState>,
    container: Arc<Container>,
    grace: Duration,
) -> Result<(), RuntimeError> {
    let deadline = Instant::now() + grace.min(MAX_GRACE);
    let first = {
        let mut stop = container.stop.lock();
        let first = stop.is_none();
        if stop.is_none_or(|known| deadline < known) {
            *stop = Some(deadline);
        }
        first
    };
    if first {
        let (shared_too, container) = (Arc::clone(shared), Arc::clone(&container));
        shared.spawn(async move { signal_and_kill(&shared_too, &container).await });
    } else {
        container.changed.notify_waiters();
    }
    tokio::select! {
        () = container.ended() => Ok(()),
        () = shared.closed() => Err(shared.closed_error()),
    }
}

async fn signal_and_kill(shared: &Arc<ProcessRuntimeState>, container: &Arc<Container>) {
    let Some(shim) = running(shared, container).await else { return };
    request(container, Request::Term);
    // A later call may set an earlier deadline while this task waits.
    loop {
        let deadline = (*container.stop.lock()).unwrap_or_else(Instant::now);
        let mut changed = std::pin::pin!(container.changed.notified());
        changed.as_mut().enable();
        if container.stop.lock().is_some_and(|now| now != deadline) {
            continue;
        }
        if matches!(*container.run.lock(), RunState::Exited { .. }) {
            return;
        }
        if timeout_at(deadline, changed).await.is_err() {
            break;
        }
    }
    request(container, Request::Kill);
    let mut logged = false;
    while timeout(SHIM_KILLS_WITHIN, container.ended()).await.is_err() {
        let Some(pid) = hanging_command(container) else {
            // `watch` notices the shim's end and kills the container's remaining processes.
            warn!(container.id = %container.id, "the shim did not kill its container in time, killing the shim");
            shim.kill();
            return;
        };
        // The shim records the exit when the kernel ends the command. If the shim were killed, the exit code would be lost and
        // the container would be reported as ended although it is not.
        if !logged {
            warn!(container.id = %container.id, %pid, "the container's command hangs in the kernel, waiting for its end");
        }
        logged = true;
    }
}

/// The pid of the container's command, if the command hangs in the kernel.
fn hanging_command(container: &Container) -> Option<Pid> {
    let RunState::Running { started, .. } = &*container.run.lock() else { return None };
    Pid::from_raw(started.pid).filter(|pid| procfs::hangs(*pid))
}

/// The shim of a running container; waits until a start has finished. `None` if the container has exited or was never
/// started: a created container is recorded as exited here, so that it can never start.
async fn running(shared: &Arc<ProcessRuntimeState>, container: &Arc<Container>) -> Option<Shim> {
    let shim_if_running = |run: &RunState| match run {
        RunState::Adopting | RunState::Starting => None,
        RunState::Created => Some(None),
        RunState::Running { shim, .. } => Some(Some(shim.clone())),
        RunState::Exited { .. } => Some(None),
    };
    loop {
        let shim = container.wait_for(shim_if_running).await;
        if shim.is_some() {
            return shim;
        }
        let exit = ExitRecord {
            exit_code: 137,
            signal: None,
            reason: "Error".into(),
            message: "stopped before it was started".into(),
            finished_at: record::now().as_nanos(),
        };
        {
            let mut run = container.run.lock();
            match *run {
                RunState::Created => *run = RunState::Exited { started: None, exit: Box::new(exit.clone()) },
                RunState::Exited { .. } => return None,
                // A start began after the wait.
                RunState::Adopting | RunState::Starting | RunState::Running { .. } => continue,
            }
        }
        let path = container.files.exit();
        if let Err(error) = shared.blocking(move || record::write(&path, &exit, Durability::Disk)).await {
            warn!(%error, container.id = %container.id, "cannot record that the container was stopped");
        }
        container.changed.notify_waiters();
        shared.table.mark_changed(&container.uid);
        return None;
    }
}

fn request(container: &Container, request: Request) {
    if let Err(error) = container.files.request(request) {
        // The shim has ended, and `watch` will notice that.
        tracing::debug!(%error, container.id = %container.id, ?request, "the shim accepts no requests");
    }
}

/// The longest grace period: one year. A longer period could overflow the clock.
const MAX_GRACE: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long a shim may take to kill its container. It usually takes milliseconds; a shim that takes this long is stuck or
/// stopped.
const SHIM_KILLS_WITHIN: Duration = Duration::from_secs(10);
