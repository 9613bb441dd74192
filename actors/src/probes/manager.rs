//! The probes of all pods: their state machines, and a task for each probe that is due or running.

mod attempt;
mod definition;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::attempt::{ProbeRequest, run_probe};
use self::definition::{Definition, definitions, passed_startup};
use super::{
    ContainerProbes, Effect, Event, Outcome, ProbeChange, ProbeKind, ProbeResult, ProbeSnapshot, ProbedRun, RunOrigin,
    State, step,
};
use crate::ids::{ContainerId, ContainerName, PodUid};
use crate::mailbox::Outbox;
use crate::pod::PodObject;
use crate::ports::{Clock, ContainerRuntime, ContainerState, EventRecorder, NetworkClient, PodRuntimeStatus};
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
}

/// Owns the probes of all pods. Every call returns at once and may come from any thread. Dropping the manager ends all
/// probes.
///
/// The next [`snapshot`](ProbeManager::snapshot) shows the changes of a call. Only results of probes are sent as
/// [`ProbeChange`]s: the caller of [`observe`](ProbeManager::observe) knows already that a run is new or has ended.
pub(crate) struct ProbeManager {
    shared: Arc<Shared>,
    pods: DashMap<PodUid, Arc<PodProbes>, foldhash::fast::RandomState>,
}

struct Shared {
    ports: ProbePorts,
    /// Leads to the dispatcher. The sender waits while the mailbox is full.
    changes: Outbox<ProbeChange>,
    /// Ends all probes when the node stops.
    stop: CancellationToken,
    tasks: Handle,
    /// Runs that started before this time existed before the agent.
    agent_start: Time,
}

struct PodProbes {
    cell: Mutex<PodProbesState>,
}

struct PodProbesState {
    pod: Arc<PodObject>,
    /// The pod's address.
    host: String,
    seen: BTreeMap<ContainerName, ObservedRun>,
    /// In spec order, the startup probe of a container before its others.
    workers: Vec<Worker>,
}

/// The newest run of a container, as last observed.
#[derive(Clone)]
struct ObservedRun {
    id: ContainerId,
    begun: Time,
    running: bool,
}

struct Worker {
    definition: Arc<Definition>,
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
        let shared = Arc::new(Shared { ports, changes, stop, tasks: Handle::current(), agent_start });
        ProbeManager { shared, pods: DashMap::default() }
    }

    /// Adds a pod's probes, or updates them from the pod's newest object. Probes with an unchanged definition continue;
    /// stopped probes stay stopped.
    pub(crate) fn add_pod(&self, pod: &Arc<PodObject>) {
        if self.pods.get(pod.uid()).is_some_and(|probes| Arc::ptr_eq(&probes.cell.lock().pod, pod)) {
            return;
        }
        let definitions = definitions(pod, self.shared.ports.clock.now());
        if definitions.is_empty() {
            self.remove_pod(pod.uid());
            return;
        }
        let entry = self.pods.entry(pod.uid().clone()).or_insert_with(|| Arc::new(PodProbes::new(pod)));
        let probes = Arc::clone(&entry);
        drop(entry);
        probes.define(&self.shared, pod, definitions);
    }

    /// Stops the liveness and startup probes of the pod's regular containers, before the containers are stopped. Their
    /// last results remain. The probes of sidecars and readiness probes continue.
    pub(crate) fn stop_liveness_and_startup(&self, uid: &PodUid) {
        let Some(probes) = self.find(uid) else { return };
        let mut cell = probes.cell.lock();
        for index in 0..cell.workers.len() {
            let definition = &cell.workers[index].definition;
            if definition.regular && definition.settings.kind != ProbeKind::Readiness {
                probes.drive(&self.shared, &mut cell, index, Event::Stop);
            }
        }
    }

    /// Stops all probes of a pod and removes their results.
    pub(crate) fn remove_pod(&self, uid: &PodUid) {
        if let Some((_, probes)) = self.pods.remove(uid) {
            // A task may still hold the pod; without its worker its result is ignored.
            probes.cell.lock().workers.clear();
        }
    }

    /// Removes the pods that `keep` rejects (POD-K5).
    pub(crate) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        let all: Vec<_> = self.pods.iter().map(|entry| entry.key().clone()).collect();
        all.iter().filter(|uid| !keep(uid)).for_each(|uid| self.remove_pod(uid));
    }

    /// Updates the newest run of each container and the pod's address.
    pub(crate) fn observe(&self, uid: &PodUid, status: &PodRuntimeStatus) {
        let Some(probes) = self.find(uid) else { return };
        probes.observe(&self.shared, status);
    }

    /// The probe results of a pod; empty for an unknown pod.
    pub(crate) fn snapshot(&self, uid: &PodUid) -> ProbeSnapshot {
        let mut snapshot = ProbeSnapshot::new();
        let Some(probes) = self.find(uid) else { return snapshot };
        for worker in &probes.cell.lock().workers {
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

    fn find(&self, uid: &PodUid) -> Option<Arc<PodProbes>> {
        self.pods.get(uid).map(|probes| Arc::clone(&probes))
    }
}

impl PodProbes {
    fn new(pod: &Arc<PodObject>) -> Self {
        let host = address(&PodRuntimeStatus::default());
        PodProbes {
            cell: Mutex::new(PodProbesState { pod: Arc::clone(pod), host, seen: BTreeMap::new(), workers: Vec::new() }),
        }
    }

    fn define(self: &Arc<Self>, shared: &Arc<Shared>, pod: &Arc<PodObject>, definitions: Vec<Definition>) {
        let mut cell = self.cell.lock();
        cell.pod = Arc::clone(pod);
        let mut old = std::mem::take(&mut cell.workers);
        for definition in definitions {
            let kept = old.iter().position(|worker| worker.definition.is_same(&definition));
            let worker = match kept {
                Some(index) => old.swap_remove(index),
                None => Worker { definition: Arc::new(definition), state: State::Absent, task: None },
            };
            cell.workers.push(worker);
        }
        drop(old);
        self.observe_again(shared, &mut cell, |worker| worker.state == State::Absent);
    }

    fn observe(self: &Arc<Self>, shared: &Arc<Shared>, status: &PodRuntimeStatus) {
        let mut cell = self.cell.lock();
        cell.host = address(status);
        let cell = &mut *cell;
        cell.seen.clear();
        for worker in &cell.workers {
            let name = &worker.definition.container;
            if let Some(newest) = status.newest(name.as_str()) {
                let seen = ObservedRun {
                    id: newest.id.clone(),
                    begun: newest.started_at.unwrap_or(newest.created_at),
                    running: newest.state == ContainerState::Running,
                };
                cell.seen.insert(name.clone(), seen);
            }
        }
        self.observe_again(shared, cell, |_| true);
    }

    fn answered(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        definition: &Arc<Definition>,
        id: ContainerId,
        outcome: Outcome,
    ) -> Option<ProbeChange> {
        let mut cell = self.cell.lock();
        let now = shared.ports.clock.now();
        // The probe may have been redefined or removed while it ran.
        let index = cell.workers.iter().position(|worker| Arc::ptr_eq(&worker.definition, definition))?;
        let change = self.drive(shared, &mut cell, index, Event::Answered { id, outcome, now });
        if definition.settings.kind == ProbeKind::Startup && change.is_some() {
            // The container's other probes waited for this result; readiness is probed at once.
            let of_container = |worker: &Worker| worker.definition.container == definition.container;
            self.observe_again(shared, &mut cell, of_container);
        }
        change
    }

    /// Passes the last observed runs to the workers that `selects` selects.
    fn observe_again(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        cell: &mut PodProbesState,
        selects: impl Fn(&Worker) -> bool,
    ) {
        let now = shared.ports.clock.now();
        for index in 0..cell.workers.len() {
            if selects(&cell.workers[index]) {
                let run = cell.run_for(shared, &cell.workers[index].definition, now);
                self.drive(shared, cell, index, Event::Observed { run, now });
            }
        }
    }

    /// Steps one worker and performs its effects. Returns the new result, which is sent after the lock is released. Only
    /// [`Event::Answered`] leads to a new result.
    fn drive(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        cell: &mut PodProbesState,
        index: usize,
        event: Event,
    ) -> Option<ProbeChange> {
        let mut change = None;
        let worker = &mut cell.workers[index];
        let definition = &worker.definition;
        let (state, effects) = step(&definition.settings, std::mem::take(&mut worker.state), event);
        worker.state = state;
        for effect in effects {
            match effect {
                Effect::ProbeAt { id, at } => {
                    // Weak, because the pod owns the task: removing the pod ends it.
                    let task = probe(Arc::clone(shared), Arc::downgrade(self), Arc::clone(definition), id, at);
                    worker.task = Some(AbortOnDropHandle::new(shared.spawn(task)));
                }
                Effect::Halt => worker.task = None,
                Effect::Report { id, result } => {
                    change = Some(ProbeChange {
                        uid: cell.pod.uid().clone(),
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

impl PodProbesState {
    fn run_for(&self, shared: &Shared, definition: &Definition, now: Time) -> Option<ProbedRun> {
        let seen = self.seen.get(&definition.container)?;
        let startup = self.workers.iter().find(|worker| {
            worker.definition.container == definition.container && worker.definition.settings.kind == ProbeKind::Startup
        });
        let passed = |worker: &Worker| worker.state.result() == Some((&seen.id, ProbeResult::Success));
        let found = if seen.begun < shared.agent_start {
            let spread = now.since(shared.agent_start) < definition.settings.period;
            RunOrigin::Adopted {
                jitter: if spread { definition.jitter(self.pod.uid()) } else { std::time::Duration::ZERO },
                passed_startup: passed_startup(&self.pod, &seen.id),
            }
        } else {
            RunOrigin::Fresh
        };
        Some(ProbedRun {
            id: seen.id.clone(),
            running_since: seen.running.then_some(seen.begun),
            started: startup.is_none_or(passed),
            found,
        })
    }
}

impl Shared {
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
async fn probe(shared: Arc<Shared>, pod: Weak<PodProbes>, definition: Arc<Definition>, id: ContainerId, at: Time) {
    tokio::time::sleep(at.since(shared.ports.clock.now())).await;
    let Some((object, host)) = pod.upgrade().map(|pod| {
        let cell = pod.cell.lock();
        (Arc::clone(&cell.pod), cell.host.clone())
    }) else {
        return;
    };
    let request = ProbeRequest {
        kind: definition.settings.kind,
        probe: &definition.probe,
        ports: &definition.ports,
        id: &id,
        host: &host,
        timeout: definition.settings.timeout,
    };
    let outcome = run_probe(&shared.ports, &object, request).await;
    if let Some(pod) = pod.upgrade() {
        let change = pod.answered(&shared, &definition, id, outcome);
        // The answer may have scheduled the next probe, whose task replaces and aborts this one, so another task sends.
        if let Some(change) = change {
            let publisher = shared.clone();
            drop(shared.spawn(async move { publisher.publish(change).await }));
        }
    }
}

/// The address for a pod's probes: its own. A pod on the node's network, or in a runtime without networks, may have
/// none; its servers are then on this machine.
fn address(status: &PodRuntimeStatus) -> String {
    let first = status.sandboxes.iter().find_map(|sandbox| sandbox.ips.first());
    first.map_or_else(|| "127.0.0.1".to_owned(), IpAddr::to_string)
}
