//! Housekeeping: the pass that compares the desired pods, the engine's records and the runtime's pods, every two seconds, and at once when
//! the claims of a pod without a worker may be released.
//!
//! ```text
//!   desired pods --+                    restart a pod without a record
//!   records -------+--> plan::actions --> stop a runtime-only pod      --> Engine::update_pod
//!   runtime pods --+                    finish a deleted pod
//!                  +--> zombies: stop containers of terminated pods    } in the background
//!                  +--> sweep: dead containers, directories, cgroups   }
//! ```
//!
//! A pass decides under the lock of the desired pods, in two short steps, and lists the runtime between them. Slow work is
//! started and not awaited, so the dispatcher never waits for it (POD-W30). The second step uses the records of its own
//! time, not those from before the list.
//!
//! Until the API server has delivered its pods once, a pass covers only static pods: other pods without a record may belong to the API
//! server, so nothing of theirs is stopped or removed (KF6).
//!
//! The sweep removes the cgroup of a pod together with its directory (POD-K1, POD-K14). While the node lacks disk space, the evictor
//! requests the removal of further dead containers. A pass only names the mirror pods that do not fit the static pods (POD-K8): the writer
//! of mirror pods deletes and creates them.

mod actor;
mod background;
mod differences;
mod failure_log;
mod garbage;
mod gauges;
mod long_waits;
mod messages;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use podwright_metrics::Metrics;
use tokio_util::sync::CancellationToken;

use crate::active_pods::ActivePods;
use crate::container_manager::ContainerManager;
use crate::desired::{DesiredPods, DesiredState};
use crate::engine::Engine;
use crate::explain::{Explainer, LongWaitReports};
use crate::final_statuses::FinalStatusStore;
use crate::health::PassHealth;
use crate::ids::PodUid;
use crate::metered::guarded;
use crate::mirrors::checks::MirrorChecks;
use crate::observer::Observer;
use crate::pod_worker::Lifecycle;
use crate::ports::{
    ApiObjects, Clock, ContainerRuntime, EventRecorder, PodCgroups, PodStorage, ResourcePhase, RuntimeError, RuntimePod,
};
use crate::probe_manager::ProbeManager;
use crate::recorder::Note;
use crate::resizes::Resizes;
use crate::run_facts::RunFacts;
use crate::shutdown::ShutdownGate;
use crate::statuses::Statuses;
use crate::text::error_chain;

pub(crate) use actor::HousekeepingActor;
pub(crate) use messages::RunPass;

/// A pass that takes longer is logged (upstream `housekeepingWarningDuration`, kubelet 1.36).
const SLOW_PASS: Duration = Duration::from_secs(1);

/// A housekeeping pass failed. It did not change the runtime's pods.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// The runtime did not list its pods.
    #[error("cannot list the runtime's pods")]
    List(#[source] RuntimeError),
    /// A port of the embedder panicked. The panic is in the log.
    #[error("a port panicked during the pass")]
    Panicked,
    /// The node has stopped.
    #[error("the agent has stopped: start it again")]
    Stopped,
}

/// The parts of a node that a pass uses.
pub(crate) struct Housekeeping {
    pub(crate) engine: Engine,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) statuses: Arc<Statuses>,
    pub(crate) final_statuses: Arc<FinalStatusStore>,
    pub(crate) active: ActivePods,
    pub(crate) mirrors: Arc<MirrorChecks>,
    pub(crate) resizes: Arc<Resizes>,
    pub(crate) run_facts: Arc<RunFacts>,
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
    /// Knows which container exits were read.
    pub(crate) observer: Arc<Observer>,
    pub(crate) probes: Arc<ProbeManager>,
    pub(crate) containers: Arc<ContainerManager>,
    pub(crate) storage: Arc<dyn PodStorage>,
    /// The API objects that pods refer to; `None` without an API server.
    pub(crate) objects: Option<Arc<dyn ApiObjects>>,
    /// Holds the resources of pods; `None` if pods may need none.
    pub(crate) resources: Option<Arc<dyn ResourcePhase>>,
    /// Absent if pods have no cgroups of their own.
    pub(crate) cgroups: Option<Arc<dyn PodCgroups>>,
    pub(crate) events: Arc<dyn EventRecorder>,
    pub(crate) explainer: Arc<Explainer>,
    /// Closed while the node shuts down.
    pub(crate) gate: Arc<ShutdownGate>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    pub(crate) state: PassState,
}

/// The state that housekeeping keeps between passes.
#[derive(Debug)]
pub(crate) struct PassState {
    health: Arc<PassHealth>,
    /// The long waits for which an event was recorded.
    long_waits: Mutex<LongWaitReports>,
    /// Held by a sweep, so that sweeps do not overlap.
    sweeping: Arc<tokio::sync::Mutex<()>>,
    sweeps: Arc<garbage::SweepState>,
    /// Terminated pods whose zombie containers are being stopped.
    stopping_zombies: Arc<Mutex<HashSet<PodUid>>>,
    /// Ends the background work when the node stops.
    stop: CancellationToken,
}

impl PassState {
    /// The state before the first pass. A wait that lasts longer than `event_after` becomes an event; zero disables this.
    pub(crate) fn new(health: Arc<PassHealth>, event_after: Duration, stop: CancellationToken) -> Self {
        PassState {
            health,
            long_waits: Mutex::new(LongWaitReports::new(event_after)),
            sweeping: Arc::default(),
            sweeps: Arc::default(),
            stopping_zombies: Arc::default(),
            stop,
        }
    }

    /// Starts work that a pass does not wait for.
    fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        actix::spawn(self.stop.clone().run_until_cancelled_owned(work));
    }
}

/// The pods that a pass covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coverage {
    All,
    /// Only static pods, because the API server has not delivered its pods yet.
    Static,
}

impl Coverage {
    /// The pods that a pass covers now. `None` until every source of static pods has delivered.
    fn of(desired: &DesiredState) -> Option<Self> {
        let coverage = if desired.is_ready() { Coverage::All } else { Coverage::Static };
        desired.is_ready_for_static_pods().then_some(coverage)
    }
}

/// How many pods a pass found.
#[derive(Debug, Default)]
struct PassCounts {
    desired: u32,
    known: u32,
    listed: u32,
}

impl Housekeeping {
    /// Runs one pass. Does nothing until every source of static pods has delivered. Passes must not overlap.
    ///
    /// # Errors
    /// [`PassError::List`] if the runtime does not list its pods.
    pub(crate) async fn pass(&self) -> Result<(), PassError> {
        let start = self.clock.now();
        let mut counts = PassCounts::default();
        let result = self.compare(&mut counts).await;
        let end = self.clock.now();
        let error =
            result.as_ref().err().map(|error| format!("cannot list the runtime's pods: {}", error_chain(error)));
        let is_notable = self.state.health.pass_ended(end, error.clone());
        if let Some(recorder) = self.engine.recorder().filter(|_| is_notable) {
            let PassCounts { desired, known, listed } = counts;
            recorder.note(end, &Note::Pass { desired, known, listed, took: end.since(start), error });
        }
        self.report_long_waits();
        if end.since(start) > SLOW_PASS {
            tracing::warn!(seconds = end.since(start).as_secs_f64(), "housekeeping pass was slow");
        }
        result.map_err(PassError::List)
    }

    /// Compares the desired pods, the records and the runtime's pods, and acts on the differences.
    async fn compare(&self, counts: &mut PassCounts) -> Result<(), RuntimeError> {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (coverage, mut known) = {
            let desired = self.desired.lock();
            let Some(coverage) = Coverage::of(&desired) else { return Ok(()) };
            let uids: HashSet<PodUid, RandomState> = desired.pods.pods().map(|pod| pod.uid().clone()).collect();
            counts.desired = count(uids.len());
            let known = match coverage {
                Coverage::Static => self.engine.compare_known_pods(&uids),
                Coverage::All => {
                    let is_first = !self.engine.is_synced();
                    let known = self.engine.sync_known_pods(&uids);
                    if is_first {
                        // From now on a pod without a record has no containers, so the terminal phase of a rejected pod may be written.
                        uids.iter().for_each(|uid| self.statuses.compare_with_api(uid));
                    }
                    known
                }
            };
            (coverage, known)
        };
        counts.known = count(known.len());
        let listed = guarded(&self.metrics, || self.runtime.list_pods()).await?;
        counts.listed = count(listed.len());
        if coverage == Coverage::All {
            self.drop_leftovers(&listed);
        }
        self.apply_plan(coverage, &listed, &mut known);
        self.metrics.housekeeping.working_pods(&gauges::working_pods(&known));
        self.metrics.housekeeping.oldest_phases(&gauges::oldest_phases(&known, self.clock.now()));
        self.stop_zombies(&listed);
        if coverage == Coverage::All {
            self.release_resources(&listed);
        }
        self.sweep(coverage, listed);
        Ok(())
    }

    /// Releases the resources of pods that have ended without their worker: deleted while no agent ran, or only known to the
    /// runtime.
    fn release_resources(&self, listed: &[RuntimePod]) {
        let Some(resources) = &self.resources else { return };
        let running = listed.iter().filter(|pod| pod.is_running());
        let running: HashSet<&PodUid, RandomState> = running.map(|pod| &pod.uid).collect();
        let desired = self.desired.lock();
        let released = resources.reconcile(&|uid| {
            let lifecycle = self.engine.lifecycle(uid);
            let has_worker = lifecycle.is_some_and(|lifecycle| lifecycle < Lifecycle::Finished);
            let is_desired = || desired.pods.pod(uid).is_some_and(|pod| self.active.is_active(pod, lifecycle));
            has_worker || running.contains(uid) || is_desired()
        });
        // The terminal phase of these pods may be written now.
        released.iter().for_each(|uid| self.statuses.compare_with_api(uid));
    }

    /// Removes probes, statuses, final statuses, backoffs and start errors of pods that no longer need them (POD-K5, POD-K6,
    /// POD-K15).
    fn drop_leftovers(&self, listed: &[RuntimePod]) {
        let engine = &self.engine;
        // Uses the current records: the dispatcher may have added pods since `sync_known_pods`.
        self.probes.retain(|uid| engine.could_have_running_containers(uid));
        let desired = self.desired.lock();
        // An orphan that is still stopping has a status until it has finished.
        let is_needed = |uid: &PodUid| desired.pods.pod(uid).is_some() || engine.is_pod_known(uid);
        self.statuses.retain(is_needed);
        self.final_statuses.retain(is_needed);
        self.containers.retain(is_needed);
        self.resizes.retain(is_needed);
        // A pod that only the runtime knows has no record before this pass stops it.
        let listed: HashSet<&PodUid, RandomState> = listed.iter().map(|pod| &pod.uid).collect();
        self.run_facts.retain(|uid| is_needed(uid) || listed.contains(uid));
        if let Some(objects) = &self.objects {
            objects.retain(&is_needed);
        }
    }
}
