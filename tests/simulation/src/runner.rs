//! Runs one simulation, from the start of the first agent to the empty node at the end.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use podwright_actors::engine::{EngineConfig, KillNow, Threads};
use podwright_actors::ids::PodUid;
use podwright_actors::node::{Node, NodeHandle, NodePorts};
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{Clock, ContainerRuntime, EventRecorder, PodEvent, SandboxState, SourceKind};
use podwright_actors::recorder::Recorder;
use podwright_actors::replay::{Pick, replay};
use podwright_actors::shutdown::ShutdownConfig;
use podwright_actors::time::Time;
use podwright_actors::{NodeRegistration, Registration};
use podwright_metrics::Metrics;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::admission::CheckedCapacity;
use super::api_server::SimApiServer;
use super::checks::{self, CheckResult, Samples};
use super::devices::driver_name;
use super::disk::Disk;
use super::drivers::open_claims;
use super::faulty_ports::{FaultyNetwork, FaultyRuntime};
use super::generator::EVENTFUL;
use super::laws::Laws;
use super::machine::{Agent, BEGIN, Machine};
use super::scenario::{Scenario, Source, StepAction};
use super::sources::SimSources;
use super::trace::KEPT;
use super::usage::Usage;

/// The time between two samples of all pods.
const SAMPLE: Duration = Duration::from_secs(1);
/// The earliest and the latest time for every pod to be in its final state. There are two, because a container that
/// exits again and again may have exited just before a check.
const SETTLED: Duration = Duration::from_secs(EVENTFUL.as_secs() + 180);
const SETTLED_LATEST: Duration = Duration::from_secs(SETTLED.as_secs() + 20);
/// A recorder that drops old events, and one that keeps all events of one agent.
const RECORDERS: [usize; 2] = [Recorder::SMALLEST, 2 << 20];
/// Less than the time without a list after which a runtime is unhealthy.
const LISTED_WITHIN: Duration = Duration::from_secs(150);
/// How long the removal of all pods may take: the longest grace period and one retry.
const DRAINED_WITHIN: Duration = Duration::from_secs(120);

/// The result of a simulation.
#[derive(Debug)]
pub(super) struct Report {
    /// The first violation.
    pub(super) violation: Option<String>,
    pub(super) trace: String,
    pub(super) hash: u64,
}

/// Runs a scenario to its end or to the first violation. The trace keeps this many lines.
pub(super) fn run(scenario: &Arc<Scenario>, kept: usize) -> Report {
    let machine = Arc::new(Machine::new(scenario.clone(), kept));
    let disk = Arc::new(Disk::new(machine.clone()));
    let sources = Arc::new(Mutex::new(SimSources::new(scenario.clone())));
    let mut simulation = Simulation {
        disk: disk.clone(),
        api: Arc::new(SimApiServer::new(machine.clone(), sources.clone(), Laws::new(&machine, &disk))),
        sources,
        machine: machine.clone(),
        next: 0,
        returns: Vec::new(),
        early: BTreeSet::new(),
        stage: Stage::Eventful,
    };
    loop {
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let system = actix::System::with_tokio_rt(runtime);
        let end = system.block_on(simulation.run_agent());
        machine.agent_ended();
        drop(system);
        match end {
            LifeEnd::SimulationDone => break,
            LifeEnd::Down(time) => machine.clock.skip(time),
        }
    }
    let hash = machine.trace_hash();
    let violation = machine.violation();
    let trace = if violation.is_some() || kept > KEPT { machine.trace() } else { String::new() };
    Report { violation, trace, hash }
}

struct Simulation {
    machine: Arc<Machine>,
    disk: Arc<Disk>,
    sources: Arc<Mutex<SimSources>>,
    api: Arc<SimApiServer>,
    /// The index of the next step.
    next: usize,
    /// Pods that are added again, and when.
    returns: Vec<(Time, usize)>,
    /// See [`AgentLife::early`].
    early: BTreeSet<PodUid>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Eventful,
    /// Faults have ended.
    Settling,
    /// All pods have left their sources, since this time.
    Draining(Time),
}

/// How a life of the agent ends.
enum LifeEnd {
    SimulationDone,
    /// The next agent starts after this time.
    Down(Duration),
}

struct SimEvents {
    machine: Arc<Machine>,
    capacity: Arc<CheckedCapacity>,
}

impl EventRecorder for SimEvents {
    fn record(&self, pod: &Arc<PodObject>, event: PodEvent) {
        self.machine.event_recorded(pod.uid(), &event);
        self.capacity.event_recorded(pod.uid(), &event.reason);
    }
}

/// One life of the agent.
pub(super) struct AgentLife {
    pub(super) node: NodeHandle,
    pub(super) agent: Agent,
    usage: Arc<Usage>,
    pub(super) metrics: Metrics,
    samples: Samples,
    started: Time,
    /// The pods that had a running container or a ready sandbox when this agent started.
    adopted: BTreeSet<PodUid>,
    /// The sources that have delivered to this agent, in the order of their first sets.
    delivered: Vec<Source>,
    /// The pods that this agent had admitted when the second source delivered first, and those of earlier agents that run since then. Also
    /// the pods that an earlier agent started and did not record before it was killed: this agent admits what they request now.
    early: BTreeSet<PodUid>,
    /// Whether the agent has found the runtime healthy.
    was_healthy: bool,
}

impl AgentLife {
    /// The pods that the agent admitted before it knew what other running pods use.
    fn unaware(&self) -> UnawareAdmission<'_> {
        UnawareAdmission { adopted: &self.adopted, early: &self.early, source: self.delivered.get(1).copied() }
    }

    /// A runtime that the agent lists stays healthy.
    fn health_follows_lists(&mut self, machine: &Machine) -> CheckResult {
        let is_healthy = *self.node.healthy().borrow();
        let has_changed = std::mem::replace(&mut self.was_healthy, is_healthy) && !is_healthy;
        if has_changed && machine.was_listed_within(LISTED_WITHIN) {
            return Err("the runtime is unhealthy, although the agent lists its pods".into());
        }
        Ok(())
    }
}

/// No source waits for another one. So an agent admits pods of the source that delivers first without knowing the pods that an earlier
/// agent left running and that the second source delivers.
pub(super) struct UnawareAdmission<'a> {
    adopted: &'a BTreeSet<PodUid>,
    early: &'a BTreeSet<PodUid>,
    source: Option<Source>,
}

impl UnawareAdmission<'_> {
    /// Whether a pod ran already and was delivered by the second source.
    pub(super) fn is_late(&self, pod: &PodObject) -> bool {
        self.source == Some(Source::of(pod)) && self.adopted.contains(pod.uid())
    }

    /// Whether a pod was admitted before the second source delivered, or without a record of what it had.
    pub(super) fn is_early(&self, pod: &PodObject) -> bool {
        self.early.contains(pod.uid())
    }
}

impl Simulation {
    async fn run_agent(&mut self) -> LifeEnd {
        self.machine.clock.start();
        let mut life = self.start();
        self.machine.agent_started(life.agent.clone());
        self.machine.note("the agent starts".into());
        self.sources.lock().agent_started();
        let end = self.run_steps(&mut life).await;
        self.early = std::mem::take(&mut life.early);
        self.check_recording(&life);
        self.machine.clock.stop();
        end
    }

    fn start(&self) -> AgentLife {
        let machine = &self.machine;
        let mut adopted: BTreeSet<PodUid> = self.sources.lock().all_uids().into_iter().collect();
        adopted.retain(|uid| machine.runtime_status(uid).is_running());
        let mut early: BTreeSet<PodUid> = self.early.intersection(&adopted).cloned().collect();
        let recorded = self.disk.allocations().records();
        let is_recorded = |uid: &PodUid| recorded.iter().any(|record| record.contains(&format!("\"{uid}\"")));
        let unrecorded = self.sources.lock().desired_pods().into_iter().filter(|desired| !desired.pod.is_static());
        early.extend(unrecorded.map(|desired| desired.uid).filter(|uid| adopted.contains(uid) && !is_recorded(uid)));
        let metrics = Metrics::new();
        let capacity = Arc::new(CheckedCapacity::new(machine.clone()));
        let seed = machine.scenario.seed ^ u64::from(machine.life());
        let engine = EngineConfig::default().threads(Threads::Current).seed(seed);
        let recording_size = RECORDERS[usize::from(machine.scenario.seed % 2 == 1)];
        let usage = Arc::new(Usage::default());
        let ports = NodePorts::new(
            Arc::new(FaultyRuntime::new(machine.clone())),
            Arc::new(FaultyNetwork::new(machine.clone())),
            self.disk.clone(),
        )
        .final_statuses(self.disk.clone())
        .allocations(self.disk.allocations().clone())
        .disks(usage.clone())
        .events(Arc::new(SimEvents { machine: machine.clone(), capacity: capacity.clone() }))
        .clock(machine.clock.clone())
        .admission(capacity)
        .metrics(metrics.clone())
        .recorder(Arc::new(Recorder::new(recording_size)))
        .pod_api(self.api.clone())
        .node_api(self.api.clone());
        let (claims, claim_tasks) = open_claims(machine, &self.disk, &metrics);
        // The tasks end when the agent is killed.
        actix::spawn(claim_tasks.run(CancellationToken::new()));
        let node = Node::builder(ports.resources(claims.clone()))
            .name("node1")
            .host_ips(vec!["192.0.2.1".parse().unwrap()])
            .runtime_name("simulated")
            .sources([SourceKind::File, SourceKind::Api])
            .registration(NodeRegistration::new("the-agent"))
            .engine(engine)
            .start()
            .unwrap();
        let agent = Agent::of(&node, claims);
        AgentLife {
            node,
            agent,
            usage,
            metrics,
            samples: Samples::default(),
            started: machine.clock.now(),
            adopted,
            delivered: Vec::new(),
            early,
            was_healthy: false,
        }
    }

    async fn run_steps(&mut self, life: &mut AgentLife) -> LifeEnd {
        loop {
            let now = self.machine.clock.steady();
            for source in Source::ALL {
                self.deliver(life, source, now);
            }
            let next = self.next_instant(now);
            tokio::select! {
                biased;
                down = self.machine.crash() => return LifeEnd::Down(down),
                () = sleep(next.since(now)) => {}
            }
            while let Some(step) = self.due_step() {
                if let Some(end) = self.perform(life, step).await {
                    return end;
                }
            }
            for config in self.machine.take_late_sandboxes() {
                let machine = self.machine.clone();
                machine.note(format!("{} gets a late sandbox", config.pod.uid()));
                // The runtime may refuse a late sandbox.
                actix::spawn(async move { machine.runtime.run_sandbox(config).await.is_ok() });
            }
            let now = self.machine.clock.steady();
            let due = self.returns.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>();
            due.into_iter().for_each(|(_, which)| self.sources.lock().add(which));
            if now.since(BEGIN).subsec_nanos() == 0 {
                let checked = life.samples.check(&life.agent, &self.sources.lock().may_be_stopped);
                let checked = checked.and_then(|()| life.health_follows_lists(&self.machine));
                let checked =
                    checked.and_then(|()| checks::exits_are_noticed(&self.machine, &life.agent, life.started));
                let checked = checked.and_then(|()| {
                    checks::final_statuses_are_stored(&life.agent, &self.sources.lock().desired_pods(), &self.disk)
                });
                let checked =
                    checked.and_then(|()| checks::fits_the_machine(&self.machine, &life.agent, &life.unaware()));
                let checked = checked.and_then(|()| checks::claims(&self.machine, &life.agent, &life.node, &self.disk));
                if let Err(what) = checked {
                    self.machine.violated(what);
                }
                if self.advance_stage(life, now) {
                    return LifeEnd::SimulationDone;
                }
            }
            if self.machine.violation().is_some() {
                return LifeEnd::SimulationDone;
            }
        }
    }

    /// The agent's recording replays to the recorded states, and the agent can explain each of its pods.
    fn check_recording(&self, life: &AgentLife) {
        let recording = life.node.engine().recording().expect("a simulated agent has a recorder");
        match replay(&recording, &Pick::None) {
            Ok(run) => {
                if let Some(difference) = run.difference {
                    self.machine.violated(format!("the replay of its recording differs: {difference:?}"));
                }
            }
            Err(error) => self.machine.violated(format!("its recording cannot be replayed: {error}")),
        }
        if catch_unwind(AssertUnwindSafe(|| life.node.explainer().lines())).is_err() {
            self.machine.violated("explaining the pods panics".into());
        }
    }

    fn deliver(&mut self, life: &mut AgentLife, source: Source, now: Time) {
        // No pod of the API server runs before the node is registered.
        let is_registered = || match life.node.registration() {
            Some(registration) => matches!(&*registration.borrow(), Registration::Registered(_)),
            None => false,
        };
        if source == Source::Api && !is_registered() {
            return;
        }
        if let Some(set) = self.sources.lock().next_set(source, now) {
            let uids: Vec<String> = set.pods.iter().map(|pod| pod.uid().to_string()).collect();
            self.machine.note(format!("{source:?} delivers {uids:?}"));
            if !life.delivered.contains(&source) {
                if !life.delivered.is_empty() {
                    let admitted = life.agent.desired.pods().into_iter().map(|pod| pod.uid().clone());
                    life.early.extend(admitted.filter(|uid| !life.adopted.contains(uid)));
                }
                life.delivered.push(source);
            }
            life.node.sources().try_send(set.into()).unwrap();
        }
    }

    /// The time of the next step, delivery or sample.
    fn next_instant(&self, now: Time) -> Time {
        let sample = BEGIN + Duration::from_secs(now.since(BEGIN).as_secs() + SAMPLE.as_secs());
        let step = self.machine.scenario.steps.get(self.next).map(|step| BEGIN + step.at);
        let others = [step, self.sources.lock().next_change(now)].into_iter().flatten();
        others.chain(self.returns.iter().map(|(at, _)| *at)).fold(sample, Time::min)
    }

    fn due_step(&mut self) -> Option<StepAction> {
        let step = self.machine.scenario.steps.get(self.next)?;
        if step.at > self.machine.elapsed() {
            return None;
        }
        self.next += 1;
        Some(step.what.clone())
    }

    async fn perform(&mut self, life: &mut AgentLife, what: StepAction) -> Option<LifeEnd> {
        let now = self.machine.clock.steady();
        self.machine.note(format!("{what:?}"));
        match what {
            StepAction::Add(which) => self.sources.lock().add(which),
            StepAction::Remove(which) => self.sources.lock().remove(which),
            StepAction::Return(which, after) => {
                let uid = self.sources.lock().uid(which);
                if self.sources.lock().desired_pods().into_iter().any(|desired| Some(desired.uid) == uid) {
                    self.sources.lock().remove(which);
                    self.deliver(life, self.machine.scenario.pods[which].source, now);
                    self.returns.push((now + after, which));
                }
            }
            StepAction::Delete(which, grace) => self.sources.lock().delete(which, grace),
            StepAction::Image(which) => self.sources.lock().image(which),
            StepAction::Label(which) => self.sources.lock().label(which),
            StepAction::Replace(which) | StepAction::Recreate(which) => {
                self.sources.lock().replace(which);
                if let Some(uid) = self.sources.lock().uid(which) {
                    self.machine.with_devices(|devices| devices.set_pod(which, uid));
                }
            }
            StepAction::Away(time) => self.sources.lock().api_is_away(now + time),
            StepAction::Kill { pod, evict, grace } => {
                let pod = self.sources.lock().kill(pod)?;
                if evict && matches!(grace, Some(0 | 1)) && !pod.is_critical() {
                    // The agent measures the pod and evicts it.
                    life.usage.exceed(pod.uid());
                    return None;
                }
                let engine = life.agent.engine.clone();
                actix::spawn(async move {
                    let how = KillNow { evict, grace_seconds: grace, status_fn: None };
                    // A late kill is no violation: the checks inspect the running containers.
                    let _late = engine.kill_pod_now(&pod, how).await;
                });
            }
            StepAction::SandboxEnds(which) => self.end_sandbox(which),
            StepAction::Empty(source, time) => self.sources.lock().empty(source, now + time),
            StepAction::Mute(source, time) => self.sources.lock().mute(source, now + time),
            StepAction::Repeat(source) => self.sources.lock().repeat(source),
            StepAction::Relist(source) => self.sources.lock().relist(source),
            StepAction::LoseChanges(which, time) => self.sources.lock().lose_changes(which, now + time),
            StepAction::ClockJump(time) => self.machine.clock_jumps(time),
            StepAction::Resize(which, resources) => self.sources.lock().resize(which, resources),
            StepAction::DeleteMirror(which) => self.sources.lock().delete_mirror(which),
            StepAction::Problem(source) => self.sources.lock().problem(source),
            StepAction::Fault(window) => self.machine.add_fault_window(window),
            StepAction::CrashIn { op, moment, down } => self.machine.crash_in(op, moment, down),
            StepAction::DriverLeaves { driver, lasts, absence } => {
                self.machine.with_devices(|devices| devices.leave(driver_name(driver), now + lasts, absence));
            }
            StepAction::Crash(down) => return Some(LifeEnd::Down(down)),
            StepAction::Shutdown { critical, total, down } => {
                self.shut_down(life, critical, total, None).await;
                return Some(LifeEnd::Down(down));
            }
            StepAction::CancelledShutdown { critical, total, after } => {
                self.shut_down(life, critical, total, Some(after)).await;
            }
        }
        None
    }

    fn end_sandbox(&self, which: usize) {
        let Some(uid) = self.sources.lock().uid(which) else { return };
        let status = self.machine.runtime_status(&uid);
        if let Some(sandbox) = status.sandboxes.iter().find(|sandbox| sandbox.state == SandboxState::Ready) {
            self.machine.runtime.stop_sandbox(&sandbox.id).now_or_never().unwrap().unwrap();
        }
    }

    async fn shut_down(&mut self, life: &AgentLife, critical: u64, total: u64, cancelled_after: Option<Duration>) {
        let config = ShutdownConfig::new(Duration::from_secs(total), Duration::from_secs(critical));
        // Pods that were delivered before are added first, so that the set of pods does not change until they stop.
        life.node.refuse_new_pods(true).await;
        let engine = &life.agent.engine;
        let stops = |uid: &PodUid| engine.is_pod_known(uid) && !engine.is_pod_known_terminated(uid);
        let desired = life.agent.desired.pods().into_iter().filter(|pod| stops(pod.uid()));
        let all: BTreeSet<PodUid> = desired.chain(engine.unterminated_pods()).map(|pod| pod.uid().clone()).collect();
        all.iter().for_each(|uid| self.sources.lock().doom(uid));
        let stopping = life.node.stop_pods(config);
        let report = match cancelled_after {
            None => stopping.await,
            Some(after) => {
                let cancel = async {
                    sleep(after).await;
                    life.node.resume().await;
                };
                tokio::join!(stopping, cancel).0
            }
        };
        // A pod that stopped runs again after a cancelled shutdown.
        if report.left_running > 0 || cancelled_after.is_some() {
            return;
        }
        for uid in all.iter().filter(|uid| !report.late.iter().any(|pod| pod.uid() == *uid)) {
            if self.machine.runtime_status(uid).has_running_container() {
                self.machine.violated(format!("{uid}: runs after a shutdown that reported it as stopped"));
            }
        }
    }

    /// Advances the stage. Returns true at the end.
    fn advance_stage(&mut self, life: &AgentLife, now: Time) -> bool {
        let elapsed = now.since(BEGIN);
        match self.stage {
            Stage::Eventful if elapsed >= EVENTFUL && self.next == self.machine.scenario.steps.len() => {
                self.machine.end_faults();
                self.sources.lock().end_faults();
                self.machine.note("faults end".into());
                self.stage = Stage::Settling;
            }
            Stage::Settling if elapsed >= SETTLED => {
                let sources = &mut *self.sources.lock();
                let settled = checks::settled(&self.machine, &life.agent, &sources.desired_pods(), &self.disk);
                match settled.and_then(|()| sources.mirrors_agree(&life.agent)) {
                    Err(what) if elapsed >= SETTLED_LATEST => self.machine.violated(what),
                    Err(_) => {}
                    Ok(()) => {
                        sources.clear();
                        self.machine.note("all pods leave their sources".into());
                        self.stage = Stage::Draining(now);
                    }
                }
            }
            Stage::Draining(since) => {
                let sources = self.sources.lock();
                let result = checks::drained(&self.machine, life, &self.disk, &sources.all_uids());
                let result = result.and_then(|()| sources.mirrors_agree(&life.agent));
                match result {
                    Ok(()) => return true,
                    Err(what) if now.since(since) > DRAINED_WITHIN => self.machine.violated(what),
                    Err(_) => {}
                }
            }
            Stage::Eventful | Stage::Settling => {}
        }
        false
    }
}
