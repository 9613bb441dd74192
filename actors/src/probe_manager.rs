//! The probes of all pods: their state machines, and a task for each probe that is due or running.

mod attempt;
mod definition;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use podwright_metrics::ProbeMetrics;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::attempt::{ProbeRequest, run_probe};
use self::definition::{ProbeDefinition, definitions, passed_startup};
use crate::ids::{ContainerId, ContainerName, PodUid};
use crate::mailbox::Outbox;
use crate::pod::PodObject;
use crate::ports::HostIps;
use crate::ports::{Clock, ContainerRuntime, ContainerState, EventRecorder, NetworkClient, PodRuntimeStatus};
use crate::probes::{
    ContainerProbes, Effect, Event, Outcome, ProbeKind, ProbeResult, ProbeSnapshot, ProbedRun, RunOrigin, State, step,
};
use crate::run_facts::RunFacts;
use crate::time::Time;

/// The ports that probes use.
#[derive(Clone)]
pub(crate) struct ProbePorts {
    /// Runs the commands of exec probes.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Makes the network calls of the other probes.
    pub network: Arc<dyn NetworkClient>,
    /// Tells the time. It must agree with tokio's time, in which the tasks sleep.
    pub clock: Arc<dyn Clock>,
    /// Records the events `Unhealthy` and `ProbeWarning`.
    pub events: Arc<dyn EventRecorder>,
    /// Counts the probes.
    pub metrics: ProbeMetrics,
    /// The node's address, if known: that of a pod on the node's network.
    pub host_ips: HostIps,
    /// Keeps the results for the next agent.
    pub run_facts: Arc<RunFacts>,
}

/// A new result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeChange {
    /// The pod.
    pub uid: PodUid,
    /// The container run.
    pub id: ContainerId,
    /// The container's name.
    pub name: ContainerName,
    /// The kind of the probe.
    pub kind: ProbeKind,
    /// The new result.
    pub result: ProbeResult,
}

/// Owns the probes of all pods. Every call returns at once and may come from any thread. Dropping the manager ends all
/// probes.
///
/// The next [`snapshot`](ProbeManager::snapshot) shows the changes of a call. Only results of probes are sent as
/// [`ProbeChange`]s: the caller of [`observe`](ProbeManager::observe) knows already that a run is new or has ended.
pub(crate) struct ProbeManager {
    context: Arc<ProbeContext>,
    pods: DashMap<PodUid, Arc<SharedPodProbes>, foldhash::fast::RandomState>,
}

/// The ports and channels that the probes of all pods use.
struct ProbeContext {
    ports: ProbePorts,
    /// Leads to the dispatcher. The sender waits while the mailbox is full.
    changes: Outbox<ProbeChange>,
    /// Ends all probes when the node stops.
    stop: CancellationToken,
    tasks: Handle,
    /// Runs that started before this time existed before the agent, and so did those with results of an earlier agent.
    agent_start: Time,
}

/// The probes of one pod, which the manager and the tasks share.
struct SharedPodProbes {
    probes: Mutex<PodProbes>,
}

struct PodProbes {
    pod: Arc<PodObject>,
    /// The pod's address.
    host: String,
    newest_runs: BTreeMap<ContainerName, ObservedRun>,
    /// In spec order, the startup probe of a container before its others.
    workers: Vec<ProbeWorker>,
}

/// The newest run of a container, as last observed.
#[derive(Clone)]
struct ObservedRun {
    id: ContainerId,
    started_at: Time,
    running: bool,
}

/// One probe of one container: its state machine and its task.
struct ProbeWorker {
    definition: Arc<ProbeDefinition>,
    state: State,
    /// The task of the probe that is due or running.
    task: Option<AbortOnDropHandle<Option<()>>>,
}

impl fmt::Debug for ProbeManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeManager").field("pods", &self.pods.len()).finish_non_exhaustive()
    }
}

impl ProbeManager {
    /// A manager without pods. Its probes run on the current tokio runtime.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub(crate) fn new(ports: ProbePorts, changes: Outbox<ProbeChange>, stop: CancellationToken) -> Self {
        let agent_start = ports.clock.now();
        let context = Arc::new(ProbeContext { ports, changes, stop, tasks: Handle::current(), agent_start });
        ProbeManager { context, pods: DashMap::default() }
    }

    /// Adds a pod's probes, or updates them from the pod's newest object. Probes with an unchanged definition continue;
    /// stopped probes stay stopped.
    pub(crate) fn add_pod(&self, pod: &Arc<PodObject>) {
        if self.pods.get(pod.uid()).is_some_and(|known| Arc::ptr_eq(&known.probes.lock().pod, pod)) {
            return;
        }
        let definitions = definitions(pod, self.context.ports.clock.now());
        if definitions.is_empty() {
            self.remove_pod(pod.uid());
            return;
        }
        let entry = self.pods.entry(pod.uid().clone()).or_insert_with(|| Arc::new(SharedPodProbes::new(pod)));
        let shared = Arc::clone(&entry);
        drop(entry);
        shared.define(&self.context, pod, definitions);
    }

    /// Stops the liveness and startup probes of the pod's regular containers, before the containers are stopped. Their
    /// last results remain. The probes of sidecars and readiness probes continue.
    pub(crate) fn stop_liveness_and_startup(&self, uid: &PodUid) {
        let Some(shared) = self.find(uid) else { return };
        let mut probes = shared.probes.lock();
        for index in 0..probes.workers.len() {
            let definition = &probes.workers[index].definition;
            if definition.regular && definition.settings.kind != ProbeKind::Readiness {
                shared.drive(&self.context, &mut probes, index, Event::Stop);
            }
        }
    }

    /// Stops all probes of a pod and removes their results.
    pub(crate) fn remove_pod(&self, uid: &PodUid) {
        if let Some((_, shared)) = self.pods.remove(uid) {
            // A task may still hold the pod; without its worker its result is ignored.
            let mut probes = shared.probes.lock();
            let workers = std::mem::take(&mut probes.workers);
            self.context.ended(&probes.pod, &workers);
        }
    }

    /// Removes the pods that `keep` rejects (POD-K5).
    pub(crate) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        let all: Vec<_> = self.pods.iter().map(|entry| entry.key().clone()).collect();
        all.iter().filter(|uid| !keep(uid)).for_each(|uid| self.remove_pod(uid));
    }

    /// Updates the newest run of each container and the pod's address.
    pub(crate) fn observe(&self, uid: &PodUid, status: &PodRuntimeStatus) {
        let Some(shared) = self.find(uid) else { return };
        shared.observe(&self.context, status);
    }

    /// The probe results of a pod; empty for an unknown pod.
    pub(crate) fn snapshot(&self, uid: &PodUid) -> ProbeSnapshot {
        let mut snapshot = ProbeSnapshot::new();
        let Some(shared) = self.find(uid) else { return snapshot };
        for worker in &shared.probes.lock().workers {
            if let Some((id, result)) = worker.state.result() {
                let container: &mut ContainerProbes = snapshot.entry(id.clone()).or_default();
                *match worker.definition.settings.kind {
                    ProbeKind::Startup => &mut container.startup,
                    ProbeKind::Liveness => &mut container.liveness,
                    ProbeKind::Readiness => &mut container.readiness,
                } = Some(result);
            }
        }
        snapshot
    }

    fn find(&self, uid: &PodUid) -> Option<Arc<SharedPodProbes>> {
        self.pods.get(uid).map(|shared| Arc::clone(&shared))
    }
}

impl SharedPodProbes {
    fn new(pod: &Arc<PodObject>) -> Self {
        let host = address(pod, &PodRuntimeStatus::default(), None);
        SharedPodProbes {
            probes: Mutex::new(PodProbes {
                pod: Arc::clone(pod),
                host,
                newest_runs: BTreeMap::new(),
                workers: Vec::new(),
            }),
        }
    }

    fn define(self: &Arc<Self>, context: &Arc<ProbeContext>, pod: &Arc<PodObject>, definitions: Vec<ProbeDefinition>) {
        let mut probes = self.probes.lock();
        probes.pod = Arc::clone(pod);
        let mut old = std::mem::take(&mut probes.workers);
        for definition in definitions {
            let kept = old.iter().position(|worker| worker.definition.is_same(&definition));
            let worker = match kept {
                Some(index) => old.swap_remove(index),
                None => ProbeWorker { definition: Arc::new(definition), state: State::Absent, task: None },
            };
            probes.workers.push(worker);
        }
        context.ended(pod, &old);
        drop(old);
        self.observe_again(context, &mut probes, |worker| worker.state == State::Absent);
    }

    fn observe(self: &Arc<Self>, context: &Arc<ProbeContext>, status: &PodRuntimeStatus) {
        let mut probes = self.probes.lock();
        probes.host = address(&probes.pod, status, context.ports.host_ips.first());
        let probes = &mut *probes;
        probes.newest_runs.clear();
        for worker in &probes.workers {
            let name = &worker.definition.container;
            if let Some(newest) = status.newest(name.as_str()) {
                let run = ObservedRun {
                    id: newest.id.clone(),
                    started_at: newest.started_at.unwrap_or(newest.created_at),
                    running: newest.state == ContainerState::Running,
                };
                probes.newest_runs.insert(name.clone(), run);
            }
        }
        self.observe_again(context, probes, |_| true);
    }

    fn answered(
        self: &Arc<Self>,
        context: &Arc<ProbeContext>,
        definition: &Arc<ProbeDefinition>,
        id: ContainerId,
        outcome: Outcome,
        took: Duration,
    ) -> Option<ProbeChange> {
        let mut probes = self.probes.lock();
        let now = context.ports.clock.now();
        // The probe may have been redefined or removed while it ran.
        let index = probes.workers.iter().position(|worker| Arc::ptr_eq(&worker.definition, definition))?;
        let counted = definition.labels(&probes.pod);
        match outcome {
            Outcome::Success => context.ports.metrics.passed(&counted, took),
            Outcome::Failure => context.ports.metrics.failed(&counted),
            Outcome::Unknown => {}
        }
        let change = self.drive(context, &mut probes, index, Event::Answered { id, outcome, now });
        if definition.settings.kind == ProbeKind::Startup && change.is_some() {
            // The container's other probes waited for this result; readiness is probed at once.
            let of_container = |worker: &ProbeWorker| worker.definition.container == definition.container;
            self.observe_again(context, &mut probes, of_container);
        }
        change
    }

    /// Passes the last observed runs to the workers that `selects` selects.
    fn observe_again(
        self: &Arc<Self>,
        context: &Arc<ProbeContext>,
        probes: &mut PodProbes,
        selects: impl Fn(&ProbeWorker) -> bool,
    ) {
        let now = context.ports.clock.now();
        for index in 0..probes.workers.len() {
            if selects(&probes.workers[index]) {
                let run = probes.run_for(context, &probes.workers[index].definition, now);
                self.drive(context, probes, index, Event::Observed { run, now });
            }
        }
    }

    /// Steps one worker and performs its effects. Returns the new result, which is sent after the lock is released. Only
    /// [`Event::Answered`] leads to a new result.
    fn drive(
        self: &Arc<Self>,
        context: &Arc<ProbeContext>,
        probes: &mut PodProbes,
        index: usize,
        event: Event,
    ) -> Option<ProbeChange> {
        let mut change = None;
        let worker = &mut probes.workers[index];
        let definition = &worker.definition;
        let (state, effects) = step(&definition.settings, std::mem::take(&mut worker.state), event);
        worker.state = state;
        for effect in effects {
            match effect {
                Effect::ProbeAt { id, at } => {
                    // Weak, because the pod owns the task: removing the pod ends it.
                    let task = probe(Arc::clone(context), Arc::downgrade(self), Arc::clone(definition), id, at);
                    worker.task = Some(AbortOnDropHandle::new(context.spawn(task)));
                }
                Effect::Halt => worker.task = None,
                Effect::Report { id, result } => {
                    let (pod, kind) = (probes.pod.uid(), definition.settings.kind);
                    context.ports.run_facts.probed(pod, &id, kind, result == ProbeResult::Success);
                    change = Some(ProbeChange {
                        uid: probes.pod.uid().clone(),
                        id,
                        name: definition.container.clone(),
                        kind: definition.settings.kind,
                        result,
                    });
                }
            }
        }
        change
    }
}

impl PodProbes {
    fn run_for(&self, context: &ProbeContext, definition: &ProbeDefinition, now: Time) -> Option<ProbedRun> {
        let run = self.newest_runs.get(&definition.container)?;
        let startup = self.workers.iter().find(|worker| {
            worker.definition.container == definition.container && worker.definition.settings.kind == ProbeKind::Startup
        });
        let passed = |worker: &ProbeWorker| worker.state.result() == Some((&run.id, ProbeResult::Success));
        let facts = &context.ports.run_facts;
        // The clock may have been set back after the start of the run, which then looks younger than this agent.
        let found = if run.started_at < context.agent_start || facts.has_inherited_results(self.pod.uid(), &run.id) {
            let spread = now.since(context.agent_start) < definition.settings.period;
            RunOrigin::Adopted {
                jitter: if spread { definition.jitter(self.pod.uid()) } else { std::time::Duration::ZERO },
                passed_startup: facts.has_started(self.pod.uid(), &run.id) || passed_startup(&self.pod, &run.id),
            }
        } else {
            RunOrigin::Fresh
        };
        Some(ProbedRun {
            id: run.id.clone(),
            running_since: run.running.then_some(run.started_at),
            started: startup.is_none_or(passed),
            found,
        })
    }
}

impl ProbeContext {
    /// Removes the series of probes that ended.
    fn ended(&self, pod: &PodObject, workers: &[ProbeWorker]) {
        workers.iter().for_each(|worker| self.ports.metrics.ended(&worker.definition.labels(pod)));
    }

    /// Spawns a task that ends with the node.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<Option<()>> {
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(task))
    }

    async fn publish(&self, change: ProbeChange) {
        tracing::debug!(
            pod.uid = %change.uid,
            container.name = %change.name,
            container.id = %change.id,
            probe = %change.kind,
            result = ?change.result,
            "probe result changed"
        );
        self.changes.post(change).await;
    }
}

/// Runs one probe when it is due and passes its outcome on, which schedules the next one.
async fn probe(
    context: Arc<ProbeContext>,
    pod: Weak<SharedPodProbes>,
    definition: Arc<ProbeDefinition>,
    id: ContainerId,
    at: Time,
) {
    tokio::time::sleep(at.since(context.ports.clock.now())).await;
    let Some((object, host)) = pod.upgrade().map(|pod| {
        let probes = pod.probes.lock();
        (Arc::clone(&probes.pod), probes.host.clone())
    }) else {
        return;
    };
    let request = ProbeRequest { definition: &definition, id: &id, host: &host, timeout: definition.settings.timeout };
    let start = Instant::now();
    let outcome = run_probe(&context.ports, &object, request).await;
    if let Some(pod) = pod.upgrade() {
        let change = pod.answered(&context, &definition, id, outcome, start.elapsed());
        // The answer may have scheduled the next probe, whose task replaces and aborts this one, so another task sends.
        if let Some(change) = change {
            let publisher = context.clone();
            drop(context.spawn(async move { publisher.publish(change).await }));
        }
    }
}

/// The address for a pod's probes; see [`PodObject::address`]. A pod in a runtime without networks may have none; its servers are
/// then on this machine.
fn address(pod: &PodObject, status: &PodRuntimeStatus, node: Option<IpAddr>) -> String {
    let own = status.sandboxes.iter().find_map(|sandbox| sandbox.ips.first()).copied();
    pod.address(own, node).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)).to_string()
}
