//! The probes of all pods: their machines, and a task for each probe that is planned or under way.

mod definition;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use self::definition::{Definition, definitions, passed_startup};
use super::attempt::{Question, ask};
use super::{ContainerProbes, Effect, Event, Found, Outcome, ProbeChange, ProbeKind, ProbeResult, ProbeSnapshot, Run};
use super::{State, step};
use crate::ids::{ContainerId, ContainerName, PodUid};
use crate::pod::PodObject;
use crate::ports::{Clock, ContainerRuntime, ContainerState, EventRecorder, NetworkClient, PodRuntimeStatus};
use crate::time::Time;

/// What probes need from outside.
#[derive(Clone)]
pub struct ProbePorts {
    /// Runs the commands of exec probes.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Makes the calls of the other probes.
    pub network: Arc<dyn NetworkClient>,
    /// Tells the time; must agree with tokio's, which the tasks sleep by.
    pub clock: Arc<dyn Clock>,
    /// Takes `Unhealthy` and `ProbeWarning`.
    pub events: Arc<dyn EventRecorder>,
}

/// Takes what probes decide. Called from the tasks of the probes, under no lock; must not wait.
pub type ProbeSink = Arc<dyn Fn(ProbeChange) + Send + Sync>;

/// Owns the probes of all pods. Every call is quick, waits for nothing, and may come from any thread; dropping the
/// manager ends all probes.
///
/// What a call changes, the next [`snapshot`](ProbeManager::snapshot) shows. Only answers of probes go to the sink: who
/// calls [`observe`](ProbeManager::observe) knows already that a run is new or has ended.
pub struct ProbeManager {
    shared: Arc<Shared>,
    pods: DashMap<PodUid, Arc<PodProbes>, foldhash::fast::RandomState>,
}

struct Shared {
    ports: ProbePorts,
    sink: ProbeSink,
    tasks: Handle,
    /// Runs that are older were there before the agent.
    agent_start: Time,
}

struct PodProbes {
    cell: Mutex<Cell>,
}

struct Cell {
    pod: Arc<PodObject>,
    /// Where the pod is called.
    host: String,
    seen: BTreeMap<ContainerName, Seen>,
    /// In spec order, the startup probe of a container before its others.
    workers: Vec<Worker>,
}

/// The newest run of a container, as it was last observed.
#[derive(Clone)]
struct Seen {
    id: ContainerId,
    begun: Time,
    running: bool,
}

struct Worker {
    definition: Arc<Definition>,
    state: State,
    /// The probe that is planned or under way.
    task: Option<AbortOnDropHandle<()>>,
}

impl fmt::Debug for ProbeManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeManager").field("pods", &self.pods.len()).finish_non_exhaustive()
    }
}

impl ProbeManager {
    /// A manager without pods, whose probes run on the current tokio runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(ports: ProbePorts, sink: ProbeSink) -> Self {
        let agent_start = ports.clock.now();
        let shared = Arc::new(Shared { ports, sink, tasks: Handle::current(), agent_start });
        ProbeManager { shared, pods: DashMap::default() }
    }

    /// Begins probing a pod, or takes note of its newest object. Probes whose definition did not change go on
    /// undisturbed, those that were stopped stay so.
    pub fn add_pod(&self, pod: &Arc<PodObject>) {
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
        let changes = probes.define(&self.shared, pod, definitions);
        self.shared.publish(changes);
    }

    /// Ends the liveness and startup probes of the pod's regular containers: they are about to be stopped. Their last
    /// results stand. Sidecars are still watched, readiness is still told.
    pub fn stop_liveness_and_startup(&self, uid: &PodUid) {
        let Some(probes) = self.find(uid) else { return };
        let mut changes = Vec::new();
        let mut cell = probes.cell.lock();
        for index in 0..cell.workers.len() {
            let definition = &cell.workers[index].definition;
            if definition.regular && definition.settings.kind != ProbeKind::Readiness {
                probes.drive(&self.shared, &mut cell, index, Event::Stop, &mut changes);
            }
        }
        drop(cell);
        self.shared.publish(changes);
    }

    /// Ends all probes of a pod and forgets their results.
    pub fn remove_pod(&self, uid: &PodUid) {
        if let Some((_, probes)) = self.pods.remove(uid) {
            // A task may hold the pod at this moment; without its worker its answer counts for nothing.
            probes.cell.lock().workers.clear();
        }
    }

    /// Removes every pod that `keep` does not want (POD-K5).
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        let all: Vec<_> = self.pods.iter().map(|entry| entry.key().clone()).collect();
        all.iter().filter(|uid| !keep(uid)).for_each(|uid| self.remove_pod(uid));
    }

    /// Takes note of the newest run of each container and of the pod's address.
    pub fn observe(&self, uid: &PodUid, status: &PodRuntimeStatus) {
        let Some(probes) = self.find(uid) else { return };
        let changes = probes.observe(&self.shared, status);
        self.shared.publish(changes);
    }

    /// What the probes of a pod say; empty for a pod that is not known.
    pub fn snapshot(&self, uid: &PodUid) -> ProbeSnapshot {
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
        PodProbes { cell: Mutex::new(Cell { pod: Arc::clone(pod), host, seen: BTreeMap::new(), workers: Vec::new() }) }
    }

    fn define(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        pod: &Arc<PodObject>,
        definitions: Vec<Definition>,
    ) -> Vec<ProbeChange> {
        let mut changes = Vec::new();
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
        self.look_again(shared, &mut cell, |worker| worker.state == State::Absent, &mut changes);
        changes
    }

    fn observe(self: &Arc<Self>, shared: &Arc<Shared>, status: &PodRuntimeStatus) -> Vec<ProbeChange> {
        let mut changes = Vec::new();
        let mut cell = self.cell.lock();
        cell.host = address(status);
        let cell = &mut *cell;
        cell.seen.clear();
        for worker in &cell.workers {
            let name = &worker.definition.container;
            if let Some(newest) = status.newest(name.as_str()) {
                let seen = Seen {
                    id: newest.id.clone(),
                    begun: newest.started_at.unwrap_or(newest.created_at),
                    running: newest.state == ContainerState::Running,
                };
                cell.seen.insert(name.clone(), seen);
            }
        }
        self.look_again(shared, cell, |_| true, &mut changes);
        changes
    }

    fn answered(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        definition: &Arc<Definition>,
        id: ContainerId,
        outcome: Outcome,
    ) -> Vec<ProbeChange> {
        let mut changes = Vec::new();
        let mut cell = self.cell.lock();
        let now = shared.ports.clock.now();
        // The probe may have been redefined or removed while it was under way.
        let asked = cell.workers.iter().position(|worker| Arc::ptr_eq(&worker.definition, definition));
        if let Some(index) = asked {
            self.drive(shared, &mut cell, index, Event::Answered { id, outcome, now }, &mut changes);
            if definition.settings.kind == ProbeKind::Startup && !changes.is_empty() {
                // The other probes of the container waited for this: readiness is asked at once.
                let of_container = |worker: &Worker| worker.definition.container == definition.container;
                self.look_again(shared, &mut cell, of_container, &mut changes);
            }
        }
        changes
    }

    /// Feeds the runs that were last observed to those workers that `wanted` picks.
    fn look_again(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        cell: &mut Cell,
        wanted: impl Fn(&Worker) -> bool,
        changes: &mut Vec<ProbeChange>,
    ) {
        let now = shared.ports.clock.now();
        for index in 0..cell.workers.len() {
            if wanted(&cell.workers[index]) {
                let run = cell.run_for(shared, &cell.workers[index].definition, now);
                self.drive(shared, cell, index, Event::Observed { run, now }, changes);
            }
        }
    }

    /// Steps one worker and performs the effects, all but the reports, which are for after the lock.
    fn drive(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        cell: &mut Cell,
        index: usize,
        event: Event,
        changes: &mut Vec<ProbeChange>,
    ) {
        let worker = &mut cell.workers[index];
        let definition = &worker.definition;
        let (state, effects) = step(&definition.settings, std::mem::take(&mut worker.state), event);
        worker.state = state;
        for effect in effects {
            match effect {
                Effect::ProbeAt { id, at } => {
                    // Weak, because the pod holds the task: a pod that is removed ends it.
                    let task = probe(Arc::clone(shared), Arc::downgrade(self), Arc::clone(definition), id, at);
                    worker.task = Some(AbortOnDropHandle::new(shared.tasks.spawn(task)));
                }
                Effect::Halt => worker.task = None,
                Effect::Report { id, result } => changes.push(ProbeChange {
                    uid: cell.pod.uid().clone(),
                    id,
                    name: definition.container.clone(),
                    kind: definition.settings.kind,
                    result,
                }),
            }
        }
    }
}

impl Cell {
    fn run_for(&self, shared: &Shared, definition: &Definition, now: Time) -> Option<Run> {
        let seen = self.seen.get(&definition.container)?;
        let startup = self.workers.iter().find(|worker| {
            worker.definition.container == definition.container && worker.definition.settings.kind == ProbeKind::Startup
        });
        let passed = |worker: &Worker| worker.state.result() == Some((&seen.id, ProbeResult::Success));
        let found = if seen.begun < shared.agent_start {
            let spread = now.since(shared.agent_start) < definition.settings.period;
            Found::Adopted {
                jitter: if spread { definition.jitter(self.pod.uid()) } else { std::time::Duration::ZERO },
                passed_startup: passed_startup(&self.pod, &seen.id),
            }
        } else {
            Found::Fresh
        };
        Some(Run {
            id: seen.id.clone(),
            running_since: seen.running.then_some(seen.begun),
            started: startup.is_none_or(passed),
            found,
        })
    }
}

impl Shared {
    fn publish(&self, changes: Vec<ProbeChange>) {
        for change in changes {
            tracing::debug!(
                pod.uid = %change.uid,
                container.name = %change.name,
                container.id = %change.id,
                probe = %change.kind,
                result = ?change.result,
                "probe decided"
            );
            (self.sink)(change);
        }
    }
}

/// Makes one probe when it is due and brings the answer home, which plans the next.
async fn probe(shared: Arc<Shared>, pod: Weak<PodProbes>, definition: Arc<Definition>, id: ContainerId, at: Time) {
    tokio::time::sleep(at.since(shared.ports.clock.now())).await;
    let Some((object, host)) = pod.upgrade().map(|pod| {
        let cell = pod.cell.lock();
        (Arc::clone(&cell.pod), cell.host.clone())
    }) else {
        return;
    };
    let question = Question {
        kind: definition.settings.kind,
        probe: &definition.probe,
        ports: &definition.ports,
        id: &id,
        host: &host,
        timeout: definition.settings.timeout,
    };
    let outcome = ask(&shared.ports, &object, question).await;
    if let Some(pod) = pod.upgrade() {
        let changes = pod.answered(&shared, &definition, id, outcome);
        shared.publish(changes);
    }
}

/// Where a pod is called: its own address. A pod on the node's network, or of a runtime without networks, may have
/// none; its servers are on this machine then.
fn address(status: &PodRuntimeStatus) -> String {
    let first = status.sandboxes.iter().find_map(|sandbox| sandbox.ips.first());
    first.map_or_else(|| "127.0.0.1".to_owned(), IpAddr::to_string)
}
