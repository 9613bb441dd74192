//! A running node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::NodeCondition;
use podwright_parts::{Parts, StoppedPart};
use tokio::sync::watch;
use tokio::time::timeout;

use super::mailboxes::Actors;
use crate::container_manager::ContainerManager;
use crate::desired::DesiredPods;
use crate::dispatcher::{self, RefuseNewPods};
use crate::engine::Engine;
use crate::eviction::{EvictionState, NodePressure, Pressure};
use crate::explain::Explainer;
use crate::health::PassHealth;
use crate::housekeeping::{PassError, RunPass};
use crate::node_status::{NodePresence, Registration};
use crate::observer::Observer;
use crate::pod::PodObject;
use crate::ports::{ApiError, Clock, SourceInbox};
use crate::shutdown::{self, ShutdownConfig, ShutdownGate, ShutdownParts, ShutdownProgress, ShutdownTimes, stop_all};
use crate::status_writer::StatusWriter;
use crate::statuses::Statuses;

/// How long a shutdown waits for the cleanup of stopped pods.
const CLEANUP: Duration = Duration::from_secs(10);
/// How long a shutdown waits for the last writes of statuses.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// A running node. Queries answer at once, from any thread.
///
/// Dropping the handle stops the node's actors, its workers and their hooks at once, as a crash would. Containers continue to
/// run, and the next node over the same runtime adopts them. [`shutdown`](NodeHandle::shutdown) stops the pods first.
pub struct NodeHandle {
    pub(super) engine: Engine,
    pub(super) desired: Arc<DesiredPods>,
    pub(super) statuses: Arc<Statuses>,
    pub(super) observer: Arc<Observer>,
    pub(super) containers: Arc<ContainerManager>,
    pub(super) explainer: Arc<Explainer>,
    pub(super) evictions: Arc<EvictionState>,
    pub(super) passes: Arc<PassHealth>,
    pub(super) housekeeping_limit: Duration,
    pub(super) shutdown: Arc<ShutdownProgress>,
    pub(super) shutdown_times: ShutdownTimes,
    pub(super) gate: Arc<ShutdownGate>,
    /// Writes the statuses to the API server, if there is one.
    pub(super) status_writer: Option<Arc<StatusWriter>>,
    /// Keeps the Node object in the API server, if there is one.
    pub(super) presence: Option<Arc<NodePresence>>,
    /// Changes when a shutdown is cancelled.
    pub(super) shutdown_cancelled: watch::Sender<()>,
    pub(super) actors: Actors,
    pub(super) clock: Arc<dyn Clock>,
    /// The parts that run by themselves. Their stop token also ends the actors and the background work.
    pub(super) parts: Parts,
}

/// The result of a shutdown.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// The number of pods that stopped in time.
    pub stopped: usize,
    /// The pods that did not stop in time. Their containers may still run.
    pub late: Vec<Arc<PodObject>>,
    /// The number of pods that were left running, because graceful shutdown is disabled or was cancelled.
    pub left_running: usize,
}

impl NodeHandle {
    /// The engine: the records of all pods, and their queries.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The pods that the sources desire.
    pub fn desired(&self) -> &Arc<DesiredPods> {
        &self.desired
    }

    /// The statuses of all pods.
    pub fn statuses(&self) -> &Arc<Statuses> {
        &self.statuses
    }

    /// The last status of each pod in the runtime, and whether the runtime answers.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// The container manager: backoffs, start errors, and the start governor.
    pub fn containers(&self) -> &ContainerManager {
        &self.containers
    }

    /// The explainer of the pods' states and waits.
    pub fn explainer(&self) -> &Arc<Explainer> {
        &self.explainer
    }

    /// The resources that the node lacks, or lacked within the transition period of its [`EvictionPolicy`].
    ///
    /// [`EvictionPolicy`]: crate::eviction::EvictionPolicy
    pub fn pressures(&self) -> Vec<NodePressure> {
        self.evictions.pressures()
    }

    /// The conditions that the node has, in the order of [`Pressure::ALL`], and a signal for each change.
    pub fn pressure_changes(&self) -> watch::Receiver<Vec<Pressure>> {
        self.evictions.pressure_changes()
    }

    /// The conditions `MemoryPressure`, `DiskPressure` and `PIDPressure` for the status of the node, with the texts of the kubelet
    /// (`nodestatus/setters.go`, 1.36). A condition whose resource is not measured is `False`.
    pub fn node_conditions(&self) -> Vec<NodeCondition> {
        self.evictions.node_conditions(self.clock.now())
    }

    /// Where the sources send their updates. [`send`](SourceInbox::send) ends once the update is accepted.
    pub fn sources(&self) -> Arc<dyn SourceInbox> {
        dispatcher::inbox(&self.actors.dispatcher)
    }

    /// Whether the runtime is healthy, and a signal for each change. See [`Observer::healthy`].
    pub fn healthy(&self) -> watch::Receiver<bool> {
        self.observer.healthy()
    }

    /// The longest time since the end of the last housekeeping pass with which the node counts as healthy: 300 s, or twice the
    /// resync period if that is longer (upstream `SyncLoopHealthCheck`, kubelet 1.36).
    pub fn housekeeping_limit(&self) -> Duration {
        self.housekeeping_limit
    }

    /// Whether the time since the end of the last housekeeping pass exceeds
    /// [`housekeeping_limit`](NodeHandle::housekeeping_limit). False before the first pass has ended.
    pub fn is_housekeeping_late(&self) -> bool {
        self.passes.last_end().is_some_and(|last| self.clock.now().since(last) > self.housekeeping_limit)
    }

    /// The parts of the node that do not run, although the node has not stopped. A part that panicked starts again after 1 to 10 s.
    pub fn stopped_parts(&self) -> Vec<StoppedPart> {
        let mut stopped = self.parts.stopped();
        let actors = [
            ("dispatcher", self.actors.dispatcher.connected()),
            ("housekeeping", self.actors.housekeeping.connected()),
            ("observer", self.actors.observer.connected()),
        ];
        if !self.parts.stop().is_cancelled() {
            stopped.extend(actors.into_iter().filter(|(_, runs)| !runs).map(|(name, _)| StoppedPart::ended(name)));
        }
        stopped
    }

    /// How far the registration in the API server is, and a signal for each change. `None` without an API server.
    pub fn registration(&self) -> Option<watch::Receiver<Registration>> {
        self.presence.as_ref().map(|presence| presence.progress())
    }

    /// Deletes the Node object and its lease from the API server, if the node is registered. The node registers itself again only
    /// after a restart. Call it after [`shutdown`](NodeHandle::shutdown). Returns false if no node was registered, or if another agent or a
    /// kubelet has claimed the node.
    ///
    /// # Errors
    /// [`ApiError`]. [`ApiError::Refused`] if the agent may not delete its node. The rights of a node do not contain that.
    /// [`ApiError::Conflict`] if somebody has created another node of this name.
    pub async fn deregister(&self) -> Result<bool, ApiError> {
        match &self.presence {
            Some(presence) => presence.deregister().await,
            None => Ok(false),
        }
    }

    /// Runs a housekeeping pass now, in addition to the passes of every two seconds.
    ///
    /// # Errors
    /// [`PassError`] if the runtime does not list its pods, or if the node has stopped.
    pub async fn run_housekeeping(&self) -> Result<(), PassError> {
        self.actors.housekeeping.send(RunPass).await.unwrap_or(Err(PassError::Stopped))
    }

    /// Rejects new pods with the reason `NodeShutdown` from now on if `refuse` is true, and admits new pods again if it is
    /// false.
    pub async fn refuse_new_pods(&self, refuse: bool) {
        // A node that has stopped admits nothing.
        let _stopped = self.actors.dispatcher.send(RefuseNewPods { refuse }).await;
    }

    /// Stops all pods, and leaves the node running: rejects new pods, then stops the groups of `config` from the lowest priority
    /// to the highest, each group within its time and each pod within its grace period. Rejects and stops nothing if `config`
    /// disables graceful shutdown. [`resume`](NodeHandle::resume) cancels this.
    ///
    /// Does nothing after [`shutdown`](NodeHandle::shutdown). If this future is dropped, the stops that have begun continue.
    pub async fn stop_pods(&self, config: impl Into<ShutdownConfig>) -> ShutdownReport {
        if self.parts.stop().is_cancelled() {
            return ShutdownReport::default();
        }
        let config = config.into();
        if config.is_disabled() {
            // A pod that arrives now is not rejected: it would stay failed although the next agent can run it.
            let left_running = shutdown::pods(&self.engine, &self.desired).len();
            return ShutdownReport { left_running, ..ShutdownReport::default() };
        }
        let mut cancelled = self.shutdown_cancelled.subscribe();
        self.refuse_new_pods(true).await;
        let pods = shutdown::pods(&self.engine, &self.desired);
        let count = pods.len();
        tracing::info!(pods = count, seconds = config.total().as_secs(), "stopping pods");
        self.gate.set_stopping(true);
        let parts = ShutdownParts {
            engine: &self.engine,
            clock: &*self.clock,
            times: &self.shutdown_times,
            progress: &self.shutdown,
            gate: &self.gate,
        };
        let groups = shutdown::groups(&config, &pods);
        let outcome = stop_all(&parts, groups, async move {
            if cancelled.changed().await.is_err() {
                // The handle is gone, so nobody can cancel the shutdown.
                std::future::pending().await
            }
        })
        .await;
        for pod in &outcome.late {
            tracing::warn!(pod = %pod.full_name(), pod.uid = %pod.uid(), "pod did not stop in time");
        }
        let stopped = count - outcome.late.len() - outcome.left_running;
        ShutdownReport { stopped, late: outcome.late, left_running: outcome.left_running }
    }

    /// Ends a shutdown that was cancelled: [`stop_pods`](NodeHandle::stop_pods) stops no further group, new pods are admitted
    /// again, and the static pods that the shutdown stopped or rejected run again. Pods of an API server stay as they are,
    /// because their controllers replace them.
    ///
    /// Without a shutdown, nothing changes.
    pub async fn resume(&self) {
        self.shutdown_cancelled.send_replace(());
        self.gate.set_stopping(false);
        self.refuse_new_pods(false).await;
    }

    /// Stops all pods as [`stop_pods`](NodeHandle::stop_pods) does, waits up to 10 s more until they are cleaned up and up to 5 s
    /// until their statuses are written, and stops the node. `config` may be a [`Duration`] for all pods together. Zero leaves all
    /// pods running.
    ///
    /// Queries are answered during and after the shutdown. If this is cancelled, the stops that have begun continue until the
    /// handle is dropped.
    pub async fn shutdown(&self, config: impl Into<ShutdownConfig>) -> ShutdownReport {
        if self.parts.stop().is_cancelled() {
            return ShutdownReport::default();
        }
        let config = config.into();
        let is_disabled = config.is_disabled();
        let report = self.stop_pods(config).await;
        if !is_disabled && timeout(CLEANUP, self.engine.quiesced()).await.is_err() {
            tracing::warn!(seconds = CLEANUP.as_secs(), "cleanup is left to the next agent");
        }
        if let Some(writer) = &self.status_writer
            && timeout(LAST_WRITES, writer.flush()).await.is_err()
        {
            tracing::warn!(seconds = LAST_WRITES.as_secs(), "some statuses are left to the next agent to write");
        }
        tracing::info!(stopped = report.stopped, late = report.late.len(), "node stopped");
        self.abort();
        report
    }

    /// Stops the actors, the background work and the workers. Clones of the engine may outlive the handle, so its workers are
    /// stopped here.
    fn abort(&self) {
        self.parts.stop().cancel();
        self.engine.stop();
    }
}

impl Drop for NodeHandle {
    fn drop(&mut self) {
        self.abort();
    }
}

impl fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeHandle").field("engine", &self.engine).finish_non_exhaustive()
    }
}
