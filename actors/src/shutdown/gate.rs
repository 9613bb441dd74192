//! What a shutdown changes for other parts of the node: it rejects new pods, and it stops pods that may have to run again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::admission::{AdmissionHandler, Admitted, Rejection};
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::status::reasons::NODE_SHUTDOWN;
use crate::texts::pods::NODE_SHUTS_DOWN;

/// Rejects new pods while the node shuts down, and knows which static pods run again after a shutdown that was cancelled.
#[derive(Debug, Default)]
pub(crate) struct ShutdownGate {
    is_closed: AtomicBool,
    /// The static pods that a shutdown stopped. An API server's pods are replaced by their controllers.
    stopped: Mutex<BTreeSet<PodUid>>,
    /// Whether a shutdown stops pods, or has stopped them.
    is_stopping: watch::Sender<bool>,
}

impl ShutdownGate {
    /// Closes the gate when a shutdown begins, or opens it after a shutdown that was cancelled.
    pub(crate) fn set_closed(&self, closed: bool) {
        self.is_closed.store(closed, Ordering::Release);
    }

    /// Whether a shutdown has begun that was not cancelled.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Publishes that a shutdown stops pods, or that it was cancelled.
    pub(crate) fn set_stopping(&self, stopping: bool) {
        self.is_stopping.send_if_modified(|before| std::mem::replace(before, stopping) != stopping);
    }

    /// Whether a shutdown stops pods or has stopped them, and a signal for each change.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.is_stopping.subscribe()
    }

    /// Records that a shutdown stops these pods.
    pub(super) fn stop(&self, pods: &[Arc<PodObject>]) {
        let statics = pods.iter().filter(|pod| pod.is_static());
        self.stopped.lock().extend(statics.map(|pod| pod.uid().clone()));
    }

    /// After a shutdown that was cancelled: the static pods that it stopped and that `decide` starts again. `decide` returns
    /// whether it is done with a pod. It is called again for the others.
    pub(crate) fn run_again(&self, mut decide: impl FnMut(&PodUid) -> bool) {
        if !self.is_closed() {
            self.stopped.lock().retain(|uid| !decide(uid));
        }
    }
}

impl AdmissionHandler for ShutdownGate {
    fn admit(&self, _pod: &PodObject, _others: &Admitted) -> Result<(), Rejection> {
        if self.is_closed() {
            return Err(Rejection::new(NODE_SHUTDOWN, NODE_SHUTS_DOWN));
        }
        Ok(())
    }
}
