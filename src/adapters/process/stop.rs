//! Stopping a container.

use std::sync::Arc;
use std::time::Duration;

use podwright_actors::ports::RuntimeError;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use super::entry::{Entry, Run, Shim};
use super::files::Request;
use super::inner::Inner;
use super::record::{self, Durability, ExitRecord};

/// Asks a container to stop, kills it after `grace`, and returns when it has ended. The request stays in force when the
/// future is dropped; a later one with a shorter grace shortens it.
pub(super) async fn stop(inner: &Arc<Inner>, entry: Arc<Entry>, grace: Duration) -> Result<(), RuntimeError> {
    let deadline = Instant::now() + grace.min(LONGEST);
    let first = {
        let mut stop = entry.stop.lock();
        let first = stop.is_none();
        if stop.is_none_or(|known| deadline < known) {
            *stop = Some(deadline);
        }
        first
    };
    if first {
        let (inner_too, entry) = (Arc::clone(inner), Arc::clone(&entry));
        inner.spawn(async move { carry_out(&inner_too, &entry).await });
    } else {
        entry.changed.notify_waiters();
    }
    tokio::select! {
        () = entry.ended() => Ok(()),
        () = inner.closed() => Err(inner.gone()),
    }
}

async fn carry_out(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let Some(shim) = running(inner, entry).await else { return };
    request(entry, Request::Term);
    // The deadline may move while we wait.
    loop {
        let deadline = (*entry.stop.lock()).unwrap_or_else(Instant::now);
        let mut changed = std::pin::pin!(entry.changed.notified());
        changed.as_mut().enable();
        if entry.stop.lock().is_some_and(|now| now != deadline) {
            continue;
        }
        if matches!(*entry.run.lock(), Run::Exited { .. }) {
            return;
        }
        if timeout_at(deadline, changed).await.is_err() {
            break;
        }
    }
    request(entry, Request::Kill);
    if timeout(SHIM_ANSWERS_WITHIN, entry.ended()).await.is_err() {
        // Its end makes us look for what is left of the container and kill it.
        warn!(container.id = %entry.id, "the shim does not end its container, killing the shim");
        shim.kill();
    }
}

/// Waits out a start, and says which shim to ask; `None` if there is nothing to stop any more. A container that was only
/// created ends here and now, so that it can never start.
async fn running(inner: &Arc<Inner>, entry: &Arc<Entry>) -> Option<Shim> {
    let settled = |run: &Run| match run {
        Run::Starting => None,
        Run::Created => Some(None),
        Run::Running { shim, .. } => Some(Some(shim.clone())),
        Run::Exited { .. } => Some(None),
    };
    loop {
        let shim = entry.wait_for(settled).await;
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
            let mut run = entry.run.lock();
            match *run {
                Run::Created => *run = Run::Exited { started: None, exit: Box::new(exit.clone()) },
                Run::Exited { .. } => return None,
                // A start came in between.
                Run::Starting | Run::Running { .. } => continue,
            }
        }
        let path = entry.files.exit();
        if let Err(error) = inner.blocking(move || record::write(&path, &exit, Durability::Disk)).await {
            warn!(%error, container.id = %entry.id, "cannot write down that the container was stopped");
        }
        entry.changed.notify_waiters();
        inner.table.mark(&entry.uid);
        return None;
    }
}

fn request(entry: &Entry, request: Request) {
    if let Err(error) = entry.files.request(request) {
        // No shim listens: it is about to be noticed as ended.
        tracing::debug!(%error, container.id = %entry.id, ?request, "the shim takes no request");
    }
}

/// Far enough for every grace period, near enough for every clock.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
/// A shim ends within milliseconds of the last process it killed; a much slower one is stuck or stopped.
const SHIM_ANSWERS_WITHIN: Duration = Duration::from_secs(10);
