//! Runs one simulation, from the start of the first agent to the empty node at the end.

mod api_source;
mod life;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use podwright_actors::Registration;
use podwright_engine::replay::{Pick, replay};
use podwright_model::ids::PodUid;
use podwright_model::time::Time;
use podwright_ports::{ContainerRuntime, SourceUpdate};
use tokio::time::sleep;

use super::api_server::SimApiServer;
use super::checks;
use super::cluster::Cluster;
use super::disk::Disk;
use super::generator::EVENTFUL;
use super::laws::Laws;
use super::machine::{BEGIN, Machine};
use super::scenario::{Api, PodIndex, Scenario, Source, StepAction};
use super::sources::SimSources;
use super::trace::KEPT;

use api_source::{HeldUpdate, next_update};

pub(super) use life::{AgentLife, UnawareAdmission};

/// The time between two samples of all pods.
const SAMPLE: Duration = Duration::from_secs(1);
/// The earliest and the latest time for every pod to be in its final state. There are two, because a container that
/// exits again and again may have exited just before a check.
const SETTLED: Duration = Duration::from_secs(EVENTFUL.as_secs() + 180);
const SETTLED_LATEST: Duration = Duration::from_secs(SETTLED.as_secs() + 20);
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
    // The backoffs of watches and of events draw from the generator of the thread.
    fastrand::seed(scenario.seed);
    let machine = Arc::new(Machine::new(scenario.clone(), kept));
    let disk = Arc::new(Disk::new(machine.clone()));
    let laws = Laws::new(&machine, &disk);
    let (sources, api) = match scenario.api {
        Api::Ports => {
            let sources = Arc::new(Mutex::new(SimSources::new(scenario.clone(), None)));
            let api = SimApiServer::new(machine.clone(), sources.clone(), laws);
            (sources, ApiServer::Ports(Arc::new(api)))
        }
        Api::Adapters => {
            let cluster = Arc::new(Cluster::new(&machine, laws));
            let sources = SimSources::new(scenario.clone(), Some(cluster.clone()));
            (Arc::new(Mutex::new(sources)), ApiServer::Adapters(cluster))
        }
    };
    let mut simulation = Simulation {
        disk,
        api,
        sources,
        machine: machine.clone(),
        next: 0,
        returns: Vec::new(),
        early: BTreeSet::new(),
        reruns: BTreeSet::new(),
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
            LifeEnd::SetBack { by, down } => {
                machine.clock.skip(down);
                machine.clock.set_back(by);
            }
        }
    }
    let hash = machine.trace_hash();
    let violation = machine.violation();
    let trace = if violation.is_some() || kept > KEPT { machine.trace() } else { String::new() };
    Report { violation, trace, hash }
}

/// What implements the ports of the API server.
enum ApiServer {
    Ports(Arc<SimApiServer>),
    /// The adapters, over this server.
    Adapters(Arc<Cluster>),
}

struct Simulation {
    machine: Arc<Machine>,
    disk: Arc<Disk>,
    sources: Arc<Mutex<SimSources>>,
    api: ApiServer,
    /// The index of the next step.
    next: usize,
    /// Pods that are added again, and when.
    returns: Vec<(Time, usize)>,
    /// See [`AgentLife::early`].
    early: BTreeSet<PodUid>,
    /// See [`AgentLife::reruns`].
    reruns: BTreeSet<PodUid>,
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
    /// The next agent starts after the time `down`, and reads a clock that was set back.
    SetBack {
        by: Duration,
        down: Duration,
    },
}

impl Simulation {
    async fn run_agent(&mut self) -> LifeEnd {
        self.machine.clock.start();
        let mut life = self.start();
        self.machine.agent_started(life.agent.clone());
        self.machine.note("the agent starts".into());
        self.sources.lock().agent_started();
        let end = self.run_steps(&mut life).await;
        if life.delivered.len() == 1 {
            life.admits_early();
        }
        self.early = std::mem::take(&mut life.early);
        self.reruns = std::mem::take(&mut life.reruns);
        self.check_recording(&life);
        self.machine.clock.stop();
        end
    }

    async fn run_steps(&mut self, life: &mut AgentLife) -> LifeEnd {
        loop {
            let now = self.machine.clock.steady();
            self.sources.lock().end_due_faults(now);
            for source in Source::ALL {
                self.deliver(life, source, now);
            }
            let next = self.next_instant(now);
            tokio::select! {
                biased;
                down = self.machine.crash() => return LifeEnd::Down(down),
                update = next_update(&mut life.api_source) => self.check_and_pass_on(life, update),
                () = next_accepted(&mut life.sending) => {}
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
            due.into_iter().for_each(|(_, which)| self.add(which));
            if now.since(BEGIN).subsec_nanos() == 0 {
                let has_files = life.delivered.contains(&Source::File);
                let is_delivered = |uid: &PodUid| {
                    has_files && self.machine.plan_of(uid).is_some_and(|plan| plan.source == Source::File)
                };
                let may_be_stopped = self.sources.lock().may_be_stopped.clone();
                let checked = life.samples.check(&life.agent, &may_be_stopped, is_delivered);
                let checked = checked.and_then(|()| life.health_follows_lists(&self.machine));
                let checked =
                    checked.and_then(|()| checks::exits_are_noticed(&self.machine, &life.agent, life.started));
                let checked = checked.and_then(|()| checks::containers_are_shown(&self.machine, &life.agent));
                let checked = checked.and_then(|()| checks::cancelled_starts_are_no_runs(&self.machine, &life.agent));
                let checked =
                    checked.and_then(|()| checks::succeeded_pods_have_completed_their_work(&self.machine, &life.agent));
                let checked = checked.and_then(|()| checks::ready_containers_stay_ready(&self.machine, &life.agent));
                let checked = checked.and_then(|()| checks::post_start_hooks_have_run(&self.machine, &life.agent));
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

    /// Adds a pod to its source.
    fn add(&self, which: PodIndex) {
        let mut sources = self.sources.lock();
        sources.add(which);
        if let Some(uid) = sources.uid(which) {
            self.machine.with_devices(|devices| devices.set_pod(which, uid));
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
        if let Some(adapter) = life.api_source.as_mut().filter(|_| source == Source::Api) {
            adapter.start();
            return;
        }
        if life.sending.contains_key(&source) {
            return;
        }
        let set = self.sources.lock().next_set(source, now);
        if let Some(set) = set {
            self.pass_on(life, set.into(), || {});
        }
    }

    /// Takes an update of an adapter.
    fn check_and_pass_on(&mut self, life: &mut AgentLife, HeldUpdate { update, accepted }: HeldUpdate) {
        if let SourceUpdate::Set(set) = &update {
            let checked = self.sources.lock().set_sent(set);
            if let Err(what) = checked {
                self.machine.violated(what);
            }
        }
        self.pass_on(life, update, || drop(accepted));
    }

    /// Gives an update of a source to the agent. Calls `accepted` once the agent has accepted it.
    fn pass_on(&mut self, life: &mut AgentLife, update: SourceUpdate, accepted: impl FnOnce() + 'static) {
        let source = Source::of_kind(update.source());
        if let SourceUpdate::Set(set) = &update {
            let uids: Vec<String> = set.pods.iter().map(|pod| pod.uid().to_string()).collect();
            self.machine.note(format!("{source:?} delivers {uids:?}"));
            if !life.delivered.contains(&source) {
                if !life.delivered.is_empty() {
                    // The agent has not yet handled all of them, but it handles them first.
                    life.admits_early();
                }
                life.delivered.push(source);
            }
            life.sent.extend(set.pods.iter().map(|pod| pod.uid().clone()));
        }
        let sending = life.node.sources().send(update);
        let sending = async move {
            sending.await.unwrap();
            accepted();
        };
        life.sending.insert(source, sending.boxed_local());
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
                let settled = settled.and_then(|()| sources.mirrors_agree(&life.agent));
                match settled.and_then(|()| sources.statuses_agree(&life.agent)) {
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
                let result = result.and_then(|()| sources.pods_are_gone());
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

/// Waits until the agent has accepted an update.
async fn next_accepted(sending: &mut BTreeMap<Source, LocalBoxFuture<'static, ()>>) {
    let accepted = poll_fn(|cx| {
        let before = sending.len();
        sending.retain(|_, update| update.as_mut().poll(cx).is_pending());
        if sending.len() < before { Poll::Ready(()) } else { Poll::Pending }
    });
    accepted.await;
}
