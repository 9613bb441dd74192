//! The pass that compares what is desired, what is known and what runs (rules K1 to K15).
//!
//! It decides under the lock of the desired pods, in two short steps with a look at the runtime between them; all that is
//! slow is started and not awaited, so that dispatch never waits for it. What the second step does is decided by what the
//! engine knows then, not by what it knew before the look.

mod actor;
mod garbage;
mod plan;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use podwright_metrics::{BySource, Metrics};
use tokio_util::sync::CancellationToken;

use crate::containers::perform::ContainerManager;
use crate::dispatcher::Dispatcher;
use crate::ids::PodUid;
use crate::pod_worker::{KillOptions, KnownPod, Lifecycle, Update};
use crate::ports::{Clock, ContainerRuntime, HookContext, PodStorage, PodSyncer, RunningPod, RuntimeError, RuntimePod};
use crate::probes::ProbeManager;
use crate::sync::NodeSyncer;
use crate::time::{Grace, Time};

pub use actor::HousekeepingActor;

/// How often a pass runs (upstream `housekeepingPeriod`).
pub const PERIOD: Duration = Duration::from_secs(2);
/// A pass that takes longer is worth a line in the log (upstream `housekeepingWarningDuration`).
const SLOW: Duration = Duration::from_secs(1);

/// What a pass works with.
pub struct Housekeeping {
    /// The engine, the desired pods, the statuses.
    pub dispatcher: Arc<Dispatcher>,
    /// Lists and removes what runs.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Whose probes end.
    pub probes: Arc<ProbeManager>,
    /// Forgets backoffs and start errors.
    pub containers: Arc<ContainerManager>,
    /// Removes directories.
    pub storage: Arc<dyn PodStorage>,
    /// Stops what runs under a UID that is over.
    pub syncer: Arc<NodeSyncer>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Counts what is found.
    pub metrics: Metrics,
    /// What it keeps itself.
    pub state: PassState,
}

/// What housekeeping keeps between passes.
#[derive(Debug, Default)]
pub struct PassState {
    /// When the last pass ended, in nanoseconds; 0 before the first.
    last: AtomicU64,
    /// Whether the removal of directories and dead containers that an earlier pass started still goes on.
    sweeping: Arc<AtomicBool>,
    /// UIDs that are over and whose stray containers are being stopped.
    strays: Arc<parking_lot::Mutex<HashSet<PodUid>>>,
}

/// A pass ended early; nothing that needs the runtime's word was touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PassError {
    /// The runtime did not list its pods.
    #[error("cannot list the runtime's pods")]
    List(#[source] RuntimeError),
}

impl Housekeeping {
    /// When the last pass ended, whatever its result.
    pub fn last_pass(&self) -> Option<Time> {
        match self.state.last.load(Ordering::Acquire) {
            0 => None,
            nanos => Some(Time::from_nanos(nanos)),
        }
    }

    /// One pass; none before every source delivered.
    ///
    /// # Errors
    /// [`PassError`] if the runtime does not answer.
    pub async fn pass(&self) -> Result<(), PassError> {
        let start = self.clock.now();
        let result = self.compare().await;
        let end = self.clock.now();
        self.state.last.store(end.as_nanos(), Ordering::Release);
        if end.since(start) > SLOW {
            tracing::warn!(seconds = end.since(start).as_secs_f64(), "housekeeping pass was slow");
        }
        result
    }

    async fn compare(&self) -> Result<(), PassError> {
        let engine = &self.dispatcher.engine;
        let mut known = {
            let desired = self.dispatcher.desired.lock();
            if !desired.is_ready() {
                return Ok(());
            }
            let wanted: HashSet<PodUid> = desired.pods.pods().map(|pod| pod.uid().clone()).collect();
            engine.sync_known_pods(&wanted) // K3
        };
        let running = self.runtime.list_pods().await.map_err(PassError::List)?; // K4

        self.drop_leftovers(&known); // K5, K6, K15
        let strangers = self.restart_and_count(&running, &mut known); // K9 to K11
        for stranger in strangers {
            self.stop_stranger(stranger, &mut known).await; // K12
        }
        self.metrics.housekeeping.working_pods(&plan::working_pods(&known)); // K13
        self.metrics.housekeeping.oldest_phases(&plan::oldest_phases(&known, self.clock.now()));
        self.stop_strays(&running).await; // W9
        self.sweep(running); // K7
        Ok(())
    }

    /// Ends probes and forgets statuses of pods that need none.
    fn drop_leftovers(&self, known: &[KnownPod]) {
        let possibly_running = plan::possibly_running(known);
        self.probes.retain(|uid| possibly_running.contains(uid));
        let desired = self.dispatcher.desired.lock();
        let wanted = |uid: &PodUid| desired.pods.pod(uid).is_some();
        let known: HashSet<&PodUid> = known.iter().map(|pod| &pod.uid).collect();
        // An orphan that still stops has a status to show until it is gone.
        self.dispatcher.statuses.retain(|uid| wanted(uid) || known.contains(uid));
        self.containers.retain(|uid| wanted(uid) || known.contains(uid));
    }

    /// Starts again what should run and is not known, and asks stuck deletions to finish. Answers with the pods that run
    /// and that nobody knows.
    fn restart_and_count(&self, running: &[RuntimePod], known: &mut Vec<KnownPod>) -> Vec<RunningPod> {
        let engine = &self.dispatcher.engine;
        let desired = self.dispatcher.desired.lock();
        let active = self.dispatcher.active_pods(&desired);
        let count = |statics: usize, all: usize| BySource { static_pods: statics, api_pods: all - statics };
        let statics = desired.pods.pods().filter(|pod| pod.is_static()).count();
        self.metrics.housekeeping.desired_pods(count(statics, desired.pods.len()));
        let statics = active.iter().filter(|pod| pod.is_static()).count();
        self.metrics.housekeeping.active_pods(count(statics, active.len()));
        self.metrics.housekeeping.mirror_pods(desired.pods.mirrors().count());
        self.metrics.housekeeping.admission_pods(self.dispatcher.admitted(&desired).pods().len());
        self.metrics
            .containers
            .ephemeral_containers(desired.pods.pods().map(|pod| pod.ephemeral_containers().len()).sum());

        for pod in active.into_iter().filter(|pod| !engine.is_pod_known(pod.uid())) {
            let mirror = desired.pods.mirror_of(&pod).cloned();
            self.metrics.housekeeping.restarted(pod.is_static());
            known.push(plan::restarted(&pod, self.clock.now()));
            engine.update_pod(Update::create(pod).with_mirror(mirror));
        }
        let runs: HashSet<&PodUid> = running.iter().filter(|pod| pod.is_running()).map(|pod| &pod.uid).collect();
        for pod in desired.pods.pods() {
            let stuck = pod.is_deleting() && pod.phase().is_terminal() && !runs.contains(pod.uid());
            if stuck && !engine.is_pod_known(pod.uid()) {
                engine.update_pod(Update::kill(pod.clone()));
            }
        }
        // A rejected pod that runs from an earlier life of the agent has a spec, so it is stopped by that (W13).
        let mut strangers = Vec::new();
        for pod in running.iter().filter(|pod| pod.is_running() && !engine.is_pod_known(&pod.uid)) {
            match desired.pods.pod(&pod.uid) {
                Some(rejected) => engine.update_pod(Update::kill(rejected.clone())),
                None => strangers.push(RunningPod { uid: pod.uid.clone(), full_name: pod.full_name.clone() }),
            }
        }
        strangers
    }

    /// Stops a pod that only the runtime knows, if a second look finds that it still runs: the list may be older than the
    /// end of a pod that was known until just now.
    async fn stop_stranger(&self, running: RunningPod, known: &mut Vec<KnownPod>) {
        let engine = &self.dispatcher.engine;
        let runs = self.runtime.pod_status(&running.uid).await.is_ok_and(|status| status.is_running());
        if !runs || engine.is_pod_known(&running.uid) {
            return;
        }
        tracing::warn!(pod = %running.full_name, pod.uid = %running.uid, "stopping a pod that nobody wants");
        self.metrics.housekeeping.orphaned_runtime_pod();
        known.push(plan::stranger(&running, self.clock.now()));
        let options = KillOptions { grace: Some(Grace::MIN), ..KillOptions::default() };
        engine.update_pod(Update::kill_runtime(running).with_options(options));
    }

    /// Stops containers that appeared after their pod was terminated.
    async fn stop_strays(&self, running: &[RuntimePod]) {
        let engine = &self.dispatcher.engine;
        for pod in running.iter().filter(|pod| pod.is_running() && engine.is_pod_known_terminated(&pod.uid)) {
            let Ok(status) = self.runtime.pod_status(&pod.uid).await else { continue };
            let count = status.containers.iter().filter(|c| c.state == crate::ports::ContainerState::Running).count();
            if count == 0
                || !engine.is_pod_known_terminated(&pod.uid)
                || !self.state.strays.lock().insert(pod.uid.clone())
            {
                continue;
            }
            tracing::warn!(pod = %pod.full_name, pod.uid = %pod.uid, count, "containers run in a pod that is over");
            self.metrics.housekeeping.zombie_containers(count);
            let running = RunningPod { uid: pod.uid.clone(), full_name: pod.full_name.clone() };
            let (syncer, strays) = (self.syncer.clone(), self.state.strays.clone());
            actix::spawn(async move {
                let cx = HookContext { uid: running.uid.clone(), cancel: CancellationToken::new() };
                if let Err(error) = syncer.sync_terminating_runtime_pod(&cx, &running).await {
                    tracing::warn!(pod.uid = %running.uid, %error, "stray containers did not stop");
                }
                strays.lock().remove(&running.uid);
            });
        }
    }

    /// Removes dead containers, and the directories of pods that are over and wanted by nobody. Goes on in the
    /// background; one at a time.
    fn sweep(&self, running: Vec<RuntimePod>) {
        if self.state.sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let sweep = garbage::Sweep {
            engine: self.dispatcher.engine.clone(),
            desired: self.dispatcher.desired.clone(),
            runtime: self.runtime.clone(),
            storage: self.storage.clone(),
            metrics: self.metrics.clone(),
        };
        let sweeping = self.state.sweeping.clone();
        actix::spawn(async move {
            sweep.run(running).await;
            sweeping.store(false, Ordering::Release);
        });
    }

    /// The oldest time that a record stands in its phase, for `/readyz` and people.
    pub fn is_late(&self, limit: Duration) -> bool {
        self.last_pass().is_some_and(|last| self.clock.now().since(last) > limit)
    }
}

/// Lifecycle as the engine has it and as the metric has it.
impl From<Lifecycle> for podwright_metrics::Lifecycle {
    fn from(lifecycle: Lifecycle) -> Self {
        match lifecycle {
            Lifecycle::Waiting | Lifecycle::Sync => podwright_metrics::Lifecycle::Sync,
            Lifecycle::Terminating => podwright_metrics::Lifecycle::Terminating,
            Lifecycle::Terminated | Lifecycle::Finished => podwright_metrics::Lifecycle::Terminated,
        }
    }
}
