//! Stopping a container.

use std::sync::Arc;
use std::time::Duration;

use podwright_actors::ports::RuntimeError;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use super::container::{Container, RunState, Shim};
use super::files::Request;
use super::record::{self, Durability, ExitRecord};
use super::shared::ProcessRuntimeState;

/// Asks a container to stop, kills it after `grace`, and returns when it has ended. The request stays in force when the
/// future is dropped; a later one with a shorter grace shortens it.
pub(super) async fn stop(
    shared: &Arc<ProcessRuntimeState>,
    container: Arc<Container>,
    grace: Duration,
) -> Result<(), RuntimeError> {
    let deadline = Instant::now() + grace.min(LONGEST);
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
        shared.spawn(async move { carry_out(&shared_too, &container).await });
    } else {
        container.changed.notify_waiters();
    }
    tokio::select! {
        () = container.ended() => Ok(()),
        () = shared.closed() => Err(shared.gone()),
    }
}

async fn carry_out(shared: &Arc<ProcessRuntimeState>, container: &Arc<Container>) {
    let Some(shim) = running(shared, container).await else { return };
    request(container, Request::Term);
    // The deadline may move while we wait.
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
    if timeout(SHIM_ANSWERS_WITHIN, container.ended()).await.is_err() {
        // Its end makes us look for what is left of the container and kill it.
        warn!(container.id = %container.id, "the shim does not end its container, killing the shim");
        shim.kill();
    }
}

/// Waits out a start, and says which shim to ask; `None` if there is nothing to stop any more. A container that was only
/// created ends here and now, so that it can never start.
async fn running(shared: &Arc<ProcessRuntimeState>, container: &Arc<Container>) -> Option<Shim> {
    let settled = |run: &RunState| match run {
        RunState::Starting => None,
        RunState::Created => Some(None),
        RunState::Running { shim, .. } => Some(Some(shim.clone())),
        RunState::Exited { .. } => Some(None),
    };
    loop {
        let shim = container.wait_for(settled).await;
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
                // A start came in between.
                RunState::Starting | RunState::Running { .. } => continue,
            }
        }
        let path = container.files.exit();
        if let Err(error) = shared.blocking(move || record::write(&path, &exit, Durability::Disk)).await {
            warn!(%error, container.id = %container.id, "cannot write down that the container was stopped");
        }
        container.changed.notify_waiters();
        shared.table.mark_changed(&container.uid);
        return None;
    }
}

fn request(container: &Container, request: Request) {
    if let Err(error) = container.files.request(request) {
        // No shim listens: it is about to be noticed as ended.
        tracing::debug!(%error, container.id = %container.id, ?request, "the shim takes no request");
    }
}

/// Far enough for every grace period, near enough for every clock.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
/// A shim ends within milliseconds of the last process it killed; a much slower one is stuck or stopped.
const SHIM_ANSWERS_WITHIN: Duration = Duration::from_secs(10);
