//! Performs what the steps of claims ask for: calls drivers and writes files.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, join3};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::fault::{DriverAnswer, check_answer};
use super::manager::ClaimManager;
use super::step::{Event, Method};
use super::table::OperationId;
use crate::ids::{DriverName, PodUid};
use crate::ports::{Checkpoint, CheckpointWriter, ClaimRef, DriverError, PreparedDevice, ResourcePhase};
use crate::text::error_chain;

/// The time until a task that panicked starts again.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Work for the task that calls drivers.
pub(super) enum Work {
    Call { operation: OperationId, driver: DriverName, method: Method, claims: Vec<ClaimRef> },
    Reconcile(Vec<PodUid>),
}

/// The tasks of a [`ClaimManager`]. Nothing is called or written until they [run](ClaimTasks::run).
#[must_use]
pub struct ClaimTasks {
    pub(super) manager: Arc<ClaimManager>,
    pub(super) work: mpsc::UnboundedReceiver<Work>,
    pub(super) health_writer: Option<Box<dyn CheckpointWriter>>,
}

impl ClaimTasks {
    /// Keeps the health of devices in a file with one record. If the file cannot be used, the agent logs
    /// why, and the health of a device is unknown until its driver reports it.
    /// Blocks.
    pub fn health_file(mut self, file: &dyn Checkpoint) -> Self {
        self.health_writer = self.manager.health.open(file, self.manager.clock.now());
        self
    }

    /// Calls drivers and writes the file until `stop` fires. Then writes the whole file once more, without its appended records, and ends.
    /// The file may lack changes that no operation has reported as done.
    pub async fn run(self, stop: CancellationToken) {
        let ClaimTasks { manager, mut work, health_writer } = self;
        let _stopped = manager.stopped.clone().drop_guard();
        let calls = async {
            let mut running: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
            loop {
                tokio::select! {
                    // New calls first, so that they do not wait for the results of others. The order is the same in each run.
                    biased;
                    next = work.recv() => match next {
                        None => return,
                        Some(Work::Call { operation, driver, method, claims }) => {
                            running.push(manager.call(operation, driver, method, claims).boxed());
                        }
                        Some(Work::Reconcile(pods)) => running.push(manager.release_all(pods).boxed()),
                    },
                    Some(()) = running.next(), if !running.is_empty() => {}
                }
            }
        };
        // However the work ends, present and later callers get an error in place of waiting for ever.
        let _end = EndCallers(&manager);
        let operations = async {
            stop.run_until_cancelled(calls).await;
            *manager.callers.lock() = None;
        };
        let health_writer = health_writer.as_deref();
        let health = after_panics("that keeps the health of devices", &stop, || {
            manager.health.run(&manager.table, &*manager.clock, health_writer, &stop)
        });
        let write = after_panics("that writes the file of claims", &stop, || {
            // A write that panicked has written nothing.
            manager.save.notify_one();
            manager.write(&stop)
        });
        join3(operations, health, write).await;
    }
}

/// Runs a task that ends after `stop`. Starts it again after a panic, so that a panic of one task does not end the others.
async fn after_panics<F: Future<Output = ()>>(which: &str, stop: &CancellationToken, task: impl Fn() -> F) {
    while AssertUnwindSafe(task()).catch_unwind().await.is_err() {
        if stop.is_cancelled() {
            tracing::error!("the task {which} panicked while the agent stops");
            return;
        }
        tracing::error!("the task {which} panicked: it starts again");
        stop.run_until_cancelled(sleep(AFTER_PANIC)).await;
    }
}

/// Answers all waiting callers of a manager with an error when it is dropped.
struct EndCallers<'a>(&'a ClaimManager);

impl Drop for EndCallers<'_> {
    fn drop(&mut self) {
        *self.0.callers.lock() = None;
    }
}

impl ClaimManager {
    async fn call(&self, operation: OperationId, driver: DriverName, method: Method, claims: Vec<ClaimRef>) {
        // The client may also panic before it returns a future, and the check of its answer may panic.
        let answer = AssertUnwindSafe(async { self.answer(&driver, method, &claims).await }).catch_unwind().await;
        let answer = answer.unwrap_or_else(|_| {
            tracing::error!(%driver, "the client of a DRA driver panicked");
            check_answer(
                &driver,
                &claims,
                Err(DriverError::failed(format!("the client of DRA driver {driver} panicked"))),
            )
        });
        self.drive(Event::Answered { operation, driver, claims, answer });
    }

    async fn answer(
        &self,
        driver: &DriverName,
        method: Method,
        claims: &[ClaimRef],
    ) -> DriverAnswer<Vec<PreparedDevice>> {
        match method {
            Method::Prepare => check_answer(driver, claims, self.drivers.prepare(driver, claims).await),
            Method::Unprepare => {
                let no_devices = |result: Result<(), String>| result.map(|()| Vec::new());
                let answer = self.drivers.unprepare(driver, claims).await;
                let answer = answer.map(|claims| claims.into_iter().map(|(uid, r)| (uid, no_devices(r))).collect());
                check_answer(driver, claims, answer)
            }
        }
    }

    async fn release_all(&self, pods: Vec<PodUid>) {
        let release = |uid: PodUid| async move {
            let result = self.release(&uid).await;
            if let Err(error) = &result {
                tracing::warn!(pod.uid = %uid, error = %error_chain(error), "cannot release the claims of a pod that has ended");
            }
            let needs_pass = self.ended_pods.lock().tried(uid.clone(), result.is_ok(), self.clock.now());
            if needs_pass {
                self.health.refresh([uid]);
            }
        };
        join_all(pods.into_iter().map(release)).await;
    }
}
