//! The pass that compares what is desired, what is known and what runs (rules K1 to K15).
//!
//! It decides under the lock of the desired pods, in two short steps with a look at the runtime between them; all that is
//! slow is started and not awaited, so that dispatch never waits for it (W30). What the second step does is decided by
//! what the engine knows then, not by what it knew before the look.
//!
//! K1 and K14 are part of the sweep: a cgroup that is left goes with the directory of its pod.
//!
//! What is deliberately absent: K8, because mirrors are deleted by whoever talks to the API server.

mod actor;
mod background;
mod garbage;
pub(crate) mod health;
pub(crate) mod plan;
mod told;
mod waits;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use podwright_metrics::{BySource, Metrics};

use crate::container_manager::ContainerManager;
use crate::desired::DesiredState;
use crate::dispatcher::Dispatcher;
use crate::explain::{Explainer, Patience};
use crate::ids::PodUid;
use crate::metered::guarded;
use crate::observer::Observer;
use crate::pod::PodObject;
use crate::pod_worker::{KillOptions, KnownPod, Lifecycle, Update};
use crate::ports::{Clock, ContainerRuntime, PodCgroups, PodStorage, RuntimePod};
use crate::probes::ProbeManager;
use crate::recorder::Note;
use crate::status::deadline;
use crate::time::{Grace, Time};

use background::{Busy, Stray};

pub use actor::HousekeepingActor;
pub use health::{PERIOD, PassError, PassHealth};

/// A pass that takes longer is worth a line in the log (upstream `housekeepingWarningDuration`).
const SLOW: Duration = Duration::from_secs(1);

/// What a pass works with.
pub struct Housekeeping {
    /// The engine, the desired pods, the statuses.
    pub dispatcher: Arc<Dispatcher>,
    /// Lists and removes what runs.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Knows which ends of containers were seen.
    pub observer: Arc<Observer>,
    /// Whose probes end.
    pub probes: Arc<ProbeManager>,
    /// Forgets backoffs and start errors.
    pub containers: Arc<ContainerManager>,
    /// Removes directories.
    pub storage: Arc<dyn PodStorage>,
    /// Removes cgroups, where pods have some.
    pub cgroups: Option<Arc<dyn PodCgroups>>,
    /// Tells what pods wait for.
    pub explainer: Arc<Explainer>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Counts what is found.
    pub metrics: Metrics,
    /// What it keeps itself.
    pub state: PassState,
}

/// What housekeeping keeps between passes.
#[derive(Debug)]
pub struct PassState {
    /// How the last pass ended.
    health: Arc<PassHealth>,
    /// Of which waits was told.
    patience: Mutex<Patience>,
    /// Whether the removal of directories and dead containers that an earlier pass started still goes on.
    sweeping: Arc<Mutex<HashSet<()>>>,
    /// What sweeps keep.
    sweeps: Arc<garbage::SweepState>,
    /// UIDs that are over and whose stray containers are being stopped.
    strays: Arc<Mutex<HashSet<PodUid>>>,
}

impl PassState {
    /// No pass yet. A wait is told of after `event_after`; zero tells of none.
    pub fn new(health: Arc<PassHealth>, event_after: Duration) -> Self {
        let patience = Mutex::new(Patience::new(event_after));
        PassState { health, patience, sweeping: Arc::default(), sweeps: Arc::default(), strays: Arc::default() }
    }
}

/// How much a pass saw.
#[derive(Debug, Default)]
struct Seen {
    desired: u32,
    known: u32,
    listed: u32,
}

impl Housekeeping {
    /// When the last pass ended, whatever its result.
    pub fn last_pass(&self) -> Option<Time> {
        self.state.health.look().0
    }

    /// One pass; none before every source delivered.
    ///
    /// # Errors
    /// [`PassError`] if the runtime does not answer.
    pub async fn pass(&self) -> Result<(), PassError> {
        let start = self.clock.now();
        let mut seen = Seen::default();
        let result = self.compare(&mut seen).await;
        let end = self.clock.now();
        let tells = self.state.health.passed(end, &result);
        if let Some(recorder) = self.dispatcher.engine.recorder().filter(|_| tells) {
            let Seen { desired, known, listed } = seen;
            let error =
                result.as_ref().err().map(|PassError::List(why)| format!("cannot list the runtime's pods: {why}"));
            recorder.note(end, &Note::Pass { desired, known, listed, took: end.since(start), error });
        }
        self.tell_long_waits();
        if end.since(start) > SLOW {
            tracing::warn!(seconds = end.since(start).as_secs_f64(), "housekeeping pass was slow");
        }
        result
    }

    async fn compare(&self, seen: &mut Seen) -> Result<(), PassError> {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let mut known = {
            let desired = self.dispatcher.desired.lock();
            if !desired.is_ready() {
                return Ok(());
            }
            let wanted: HashSet<PodUid, RandomState> = desired.pods.pods().map(|pod| pod.uid().clone()).collect();
            seen.desired = count(wanted.len());
            self.dispatcher.engine.sync_known_pods(&wanted) // K3
        };
        seen.known = count(known.len());
        let listed = guarded(&self.metrics, || self.runtime.list_pods()).await.map_err(PassError::List)?; // K4
        seen.listed = count(listed.len());
        self.drop_leftovers(); // K5, K6, K15
        self.settle(&listed, &mut known); // K9 to K12
        self.metrics.housekeeping.working_pods(&plan::working_pods(&known)); // K13
        self.metrics.housekeeping.oldest_phases(&plan::oldest_phases(&known, self.clock.now()));
        self.stop_strays(&listed); // W9
        self.sweep(listed); // K7
        Ok(())
    }

    /// Ends probes and forgets statuses of pods that need none.
    fn drop_leftovers(&self) {
        let engine = &self.dispatcher.engine;
        // Asked now and not taken from the records as they were before the list: dispatch may have added pods since.
        self.probes.retain(|uid| engine.could_have_running_containers(uid));
        let desired = self.dispatcher.desired.lock();
        // An orphan that still stops has a status to show until it is gone.
        let needed = |uid: &PodUid| desired.pods.pod(uid).is_some() || engine.is_pod_known(uid);
        self.dispatcher.statuses.retain(needed);
        self.dispatcher.final_statuses.retain(needed);
        self.containers.retain(needed);
    }

    /// Brings the engine in line with what is desired and what runs. `known` are the records as they were before the list
    /// was taken; what this adds to them counts as well.
    fn settle(&self, listed: &[RuntimePod], known: &mut Vec<KnownPod>) {
        let desired = self.dispatcher.desired.lock();
        let missing = self.count_pods(&desired, known);
        let before = known.iter().map(|pod| &pod.uid);
        let engine = &self.dispatcher.engine;
        let orders = plan::orders(&desired.pods, missing, listed, before, |uid| engine.is_pod_known(uid));
        orders.into_iter().for_each(|order| self.obey(&desired, order, known));
        self.wake_overdue(&desired);
    }

    /// K9. Gives the pods that should run and have no record.
    fn count_pods(&self, desired: &DesiredState, known: &[KnownPod]) -> Vec<Arc<PodObject>> {
        let engine = &self.dispatcher.engine;
        let (mut active, mut active_statics, mut missing) = (0, 0, Vec::new());
        for pod in desired.pods.pods() {
            let lifecycle = engine.lifecycle(pod.uid());
            if self.dispatcher.is_active(pod, lifecycle) {
                active += 1;
                active_statics += usize::from(pod.is_static());
                missing.extend(lifecycle.is_none().then(|| pod.clone()));
            }
        }
        let metrics = &self.metrics.housekeeping;
        let count = |statics: usize, all: usize| BySource { static_pods: statics, api_pods: all - statics };
        metrics.desired_pods(count(desired.pods.statics(), desired.pods.len()));
        metrics.active_pods(count(active_statics, active));
        metrics.mirror_pods(desired.pods.mirrors().count());
        metrics.admission_pods(active + plan::occupying_orphans(known));
        self.metrics.containers.ephemeral_containers(desired.pods.ephemeral_containers());
        missing
    }

    /// K10 to K12.
    fn obey(&self, desired: &DesiredState, order: plan::Order, known: &mut Vec<KnownPod>) {
        let engine = &self.dispatcher.engine;
        let metrics = &self.metrics.housekeeping;
        match order {
            plan::Order::Restart(pod) => {
                let mirror = desired.pods.mirror_of(&pod).cloned();
                metrics.restarted(pod.is_static());
                known.push(plan::restarted(&pod, self.clock.now()));
                engine.update_pod(Update::create(pod).with_mirror(mirror));
            }
            plan::Order::Finish(pod) | plan::Order::Stop(pod) => engine.update_pod(Update::kill(pod)),
            plan::Order::StopStranger(running) => {
                tracing::warn!(pod = %running.full_name, pod.uid = %running.uid, "stopping a pod that nobody wants");
                metrics.orphaned_runtime_pod();
                known.push(plan::stranger(&running, self.clock.now()));
                let options = KillOptions { grace: Some(Grace::MIN), ..KillOptions::default() };
                engine.update_pod(Update::kill_runtime(running).with_options(options));
            }
        }
    }

    /// Looks at pods whose active deadline has passed. A worker does so by itself, except while a container's backoff
    /// outlasts the deadline.
    fn wake_overdue(&self, desired: &DesiredState) {
        let engine = &self.dispatcher.engine;
        let now = self.clock.now();
        for pod in desired.pods.with_deadline() {
            let status = self.dispatcher.statuses.get(pod.uid());
            let overdue = deadline(pod, status.as_deref()).is_some_and(|at| at <= now);
            if overdue && engine.lifecycle(pod.uid()) == Some(Lifecycle::Sync) {
                engine.update_pod(Update::sync(pod.clone()));
            }
        }
    }

    /// Stops containers that appeared after their pod was terminated. Each pod is looked at once more, in the background:
    /// the list may be older than the end of the pod.
    fn stop_strays(&self, listed: &[RuntimePod]) {
        let engine = &self.dispatcher.engine;
        for pod in listed.iter().filter(|pod| pod.is_running() && engine.is_pod_known_terminated(&pod.uid)) {
            if let Some(busy) = Busy::enter(&self.state.strays, &pod.uid) {
                let stray = Stray {
                    engine: engine.clone(),
                    runtime: self.runtime.clone(),
                    containers: self.containers.clone(),
                    metrics: self.metrics.clone(),
                    uid: pod.uid.clone(),
                };
                actix::spawn(async move {
                    stray.stop().await;
                    drop(busy);
                });
            }
        }
    }

    /// Removes dead containers, and the directories of pods that are over and wanted by nobody. Goes on in the
    /// background; one at a time. With every pass, because it also stands for the removals that upstream makes each time a
    /// container dies, beside those of every minute.
    fn sweep(&self, listed: Vec<RuntimePod>) {
        let Some(busy) = Busy::enter(&self.state.sweeping, &()) else { return };
        let sweep = garbage::Sweep {
            engine: self.dispatcher.engine.clone(),
            desired: self.dispatcher.desired.clone(),
            observer: self.observer.clone(),
            runtime: self.runtime.clone(),
            storage: self.storage.clone(),
            cgroups: self.cgroups.clone(),
            events: self.dispatcher.events.clone(),
            metrics: self.metrics.clone(),
            state: self.state.sweeps.clone(),
        };
        actix::spawn(async move {
            sweep.run(listed).await;
            drop(busy);
        });
    }

    /// Whether the last pass ended longer than `limit` ago.
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
