//! What outlives an agent and what watches it: the machine's runtime, the time, the trace, and the calls under way.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use podwright::adapters::simulated::{SimulatedConfig, SimulatedRuntime};
use podwright_actors::desired::Desired;
use podwright_actors::engine::{Engine, PodSnapshot};
use podwright_actors::ids::{ContainerId, ContainerName, PodUid, SandboxId};
use podwright_actors::node::Node;
use podwright_actors::pod::PodObject;
use podwright_actors::pod_worker::Lifecycle;
use podwright_actors::ports::{Clock, ContainerRuntime, PodEvent, PodRuntimeStatus, SandboxConfig};
use podwright_actors::statuses::Statuses;
use podwright_actors::time::Time;

use super::checks::{self, TurnClock};
use super::clock::SimClock;
use super::rng::Rng;
use super::runs::Runs;
use super::scenario::{Fault, Op, PodPlan, Scenario, Window};
use super::trace::Trace;

/// When every simulation begins.
pub(super) const BEGIN: Time = Time::from_secs(1_800_000_000);

/// No fault makes a call take longer.
const SLOWEST: Duration = Duration::from_secs(60);

pub(super) struct World {
    pub(super) clock: Arc<SimClock>,
    pub(super) runtime: SimulatedRuntime,
    pub(super) scenario: Arc<Scenario>,
    state: Mutex<State>,
}

struct State {
    trace: Trace,
    runs: Runs,
    life: u32,
    agent: Option<Agent>,
    flights: BTreeMap<u64, Flight>,
    numbers: u64,
    calls: BTreeMap<(Op, PodUid), u64>,
    windows: Vec<(Time, Window)>,
    /// Sandboxes that nobody waits for any more and that are made all the same.
    late: Vec<SandboxConfig>,
    /// Until when calls went wrong.
    ill_until: Time,
    broken: Option<String>,
}

/// The parts of a living agent that are asked.
#[derive(Clone)]
pub(super) struct Agent {
    pub(super) engine: Engine,
    pub(super) statuses: Arc<Statuses>,
    pub(super) desired: Arc<Desired>,
}

impl Agent {
    pub(super) fn of(node: &Node) -> Self {
        Agent { engine: node.engine.clone(), statuses: node.statuses.clone(), desired: node.desired.clone() }
    }

    /// How one pod stands for the engine.
    pub(super) fn look(&self, uid: &PodUid) -> Option<Look> {
        let snapshot = self.engine.snapshot(uid)?;
        let stopping = self.engine.should_pod_containers_be_terminating(uid);
        Some(Look { snapshot, stopping, active: self.engine.active_pod(uid) })
    }
}

/// How a pod stands for the engine.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) snapshot: PodSnapshot,
    /// The terminate hook was called: no container may start.
    pub(super) stopping: bool,
    pub(super) active: Option<Arc<PodObject>>,
}

/// What a call is about, besides its pod.
#[derive(Clone, Debug)]
pub(super) enum About {
    Nothing,
    Attempt(u32),
    Sandbox(SandboxId),
    Image(String),
    New { name: ContainerName, restart_count: u32, sandbox: SandboxId },
    Run { name: ContainerName, id: ContainerId },
    Stop { name: ContainerName, id: ContainerId, grace: Duration },
    Command { name: ContainerName, id: ContainerId, command: String },
    Host(String),
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            About::Nothing => Ok(()),
            About::Attempt(attempt) => write!(f, " {attempt}"),
            About::Sandbox(id) => write!(f, " {id}"),
            About::Image(text) | About::Host(text) => write!(f, " {text}"),
            About::New { name, restart_count, sandbox } => write!(f, " {name} {restart_count} in {sandbox}"),
            About::Run { name, id } => write!(f, " {name} {id}"),
            About::Stop { name, id, grace } => write!(f, " {name} {id} within {}", grace.as_secs_f64()),
            About::Command { name, id, command } => write!(f, " {name} {id} {command}"),
        }
    }
}

/// A call under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) op: Op,
    pub(super) uid: PodUid,
    pub(super) about: About,
    /// A stop of what an ended pod left; made beside its worker.
    pub(super) stray: bool,
}

/// Ends a flight, however it ends.
pub(super) struct Landing<'a> {
    world: &'a World,
    number: u64,
    pub(super) fault: Option<Fault>,
    answered: bool,
}

impl Landing<'_> {
    pub(super) fn answered(mut self, how: &str) {
        self.answered = true;
        self.world.landed(self.number, how);
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.world.landed(self.number, "dropped");
        }
    }
}

impl World {
    /// A machine on which nothing ran yet; its trace keeps so much to be shown.
    pub(super) fn new(scenario: Arc<Scenario>, kept: usize) -> Self {
        let clock = Arc::new(SimClock::standing_at(BEGIN));
        let config = SimulatedConfig { seed: scenario.seed, clock: clock.clone(), ..SimulatedConfig::default() };
        let state = State {
            trace: Trace::keeping(kept),
            runs: Runs::default(),
            life: 0,
            agent: None,
            flights: BTreeMap::new(),
            numbers: 0,
            calls: BTreeMap::new(),
            windows: Vec::new(),
            late: Vec::new(),
            ill_until: Time::ZERO,
            broken: None,
        };
        World { clock, runtime: SimulatedRuntime::new(config), scenario, state: Mutex::new(state) }
    }

    /// Since the beginning.
    pub(super) fn elapsed(&self) -> Duration {
        self.clock.now().since(BEGIN)
    }

    pub(super) fn note(&self, what: String) {
        let at = self.elapsed();
        let mut state = self.state.lock();
        let life = state.life;
        state.trace.note(at, life, what);
    }

    /// An agent comes to life.
    pub(super) fn born(&self, agent: Agent) {
        let mut state = self.state.lock();
        state.life += 1;
        state.agent = Some(agent);
    }

    /// It is gone with all that it remembered.
    pub(super) fn died(&self) {
        let agent = {
            let mut state = self.state.lock();
            state.flights.clear();
            state.agent.take()
        };
        drop(agent);
    }

    pub(super) fn life(&self) -> u32 {
        self.state.lock().life
    }

    pub(super) fn agent(&self) -> Option<Agent> {
        self.state.lock().agent.clone()
    }

    /// Something is not as it has to be. The first word counts.
    pub(super) fn violated(&self, what: String) {
        self.note(format!("VIOLATED {what}"));
        self.state.lock().broken.get_or_insert(what);
    }

    pub(super) fn broken(&self) -> Option<String> {
        self.state.lock().broken.clone()
    }

    pub(super) fn trace_hash(&self) -> (u64, usize) {
        let state = self.state.lock();
        (state.trace.hash(), state.trace.len())
    }

    pub(super) fn trace(&self) -> String {
        self.state.lock().trace.to_string()
    }

    pub(super) fn go_wrong(&self, window: Window) {
        let until = self.clock.now() + window.lasts;
        let mut state = self.state.lock();
        if window.op != Some(Op::Event) {
            // A call that was slowed down ends later.
            state.ill_until = state.ill_until.max(until + SLOWEST);
        }
        state.windows.push((until, window));
    }

    /// Since when no call went wrong, or until when one may; events do not count.
    pub(super) fn well_since(&self) -> Time {
        self.state.lock().ill_until
    }

    /// A sandbox is made although its call was dropped.
    pub(super) fn make_late(&self, config: SandboxConfig) {
        self.state.lock().late.push(config);
    }

    pub(super) fn take_late(&self) -> Vec<SandboxConfig> {
        std::mem::take(&mut self.state.lock().late)
    }

    /// From here on nothing goes wrong.
    pub(super) fn heal(&self) {
        self.state.lock().windows.clear();
    }

    pub(super) fn plan_of(&self, uid: &PodUid) -> Option<&PodPlan> {
        let uid = uid.to_string();
        let name = uid.split('-').next()?;
        self.scenario.pods.iter().find(|plan| plan.name == name)
    }

    /// What the runtime has of a pod now.
    pub(super) fn truth(&self, uid: &PodUid) -> PodRuntimeStatus {
        let status = self.runtime.pod_status(uid).now_or_never().expect("the simulated runtime answers at once");
        let status = status.expect("the simulated runtime answers");
        let record = self.agent().and_then(|agent| agent.engine.snapshot(uid)).map(|snapshot| snapshot.synced_at);
        let mut state = self.state.lock();
        let life = state.life;
        state.runs.learn(uid, &status, life, record);
        status
    }

    pub(super) fn with_runs<T>(&self, ask: impl FnOnce(&Runs) -> T) -> T {
        ask(&self.state.lock().runs)
    }

    /// A call begins: it is noted, judged, and its fate is drawn.
    pub(super) fn begin(&self, op: Op, uid: &PodUid, about: About) -> Landing<'_> {
        let now = self.clock.now();
        let agent = self.agent();
        let look = agent.as_ref().and_then(|agent| agent.look(uid));
        let judged = checks::is_judged(op);
        // A run that is removed is looked at for the last time.
        let seen = judged || op == Op::Remove;
        let status = if seen { self.truth(uid) } else { PodRuntimeStatus::default() };
        let rivals =
            agent.as_ref().filter(|_| op == Op::Create).map(|agent| agent.engine.snapshots()).unwrap_or_default();
        let mut state = self.state.lock();
        let state = &mut *state;
        if judged {
            let moment = TurnClock {
                now,
                life: state.life,
                uid,
                op,
                about: &about,
                look: look.as_ref(),
                status: &status,
                runs: state.runs.of(uid),
                flights: &state.flights,
                plan: self.plan_of(uid),
                rivals: &rivals,
            };
            if let Err(what) = checks::call(&moment) {
                let what = format!("{uid}: {op:?}{about}: {what}");
                state.trace.note(now.since(BEGIN), state.life, format!("VIOLATED {what}"));
                state.broken.get_or_insert(what);
            }
        }
        let fault = self.draw(state, op, uid, now);
        let told = fault.map_or(String::new(), |fault| format!(" {fault:?}"));
        state.trace.note(now.since(BEGIN), state.life, format!("{uid} {op:?}{about}{told}"));
        state.numbers += 1;
        let stray = look.as_ref().is_none_or(|look| checks::is_over(&look.snapshot));
        state.flights.insert(state.numbers, Flight { op, uid: uid.clone(), about, stray });
        Landing { world: self, number: state.numbers, fault, answered: false }
    }

    /// The agent tells what it does: a container that it stops in a pod that is to run on may first have a hook to run.
    pub(super) fn told(&self, uid: &PodUid, event: &PodEvent) {
        let look = self.agent().and_then(|agent| agent.look(uid));
        if event.reason == "Killing" && look.is_some_and(|look| look.snapshot.lifecycle == Lifecycle::Sync) {
            self.truth(uid);
            let stopped = |name: &str| event.message.split(' ').any(|word| word == name);
            self.state.lock().runs.replaced(uid, stopped);
        }
    }

    /// Whether something goes wrong with one more call.
    pub(super) fn fate(&self, op: Op, uid: &PodUid) -> Option<Fault> {
        let now = self.clock.now();
        self.draw(&mut self.state.lock(), op, uid, now)
    }

    fn draw(&self, state: &mut State, op: Op, uid: &PodUid, now: Time) -> Option<Fault> {
        state.windows.retain(|(until, _)| *until > now);
        if state.windows.is_empty() {
            return None;
        }
        let count = state.calls.entry((op, uid.clone())).or_default();
        *count += 1;
        let text = uid.to_string();
        let mut rng = Rng::of(self.scenario.seed, &[&[op as u8], text.as_bytes(), &count.to_le_bytes()]);
        let of_pod =
            |which: usize| text.split('-').next() == self.scenario.pods.get(which).map(|pod| pod.name.as_str());
        let hit = state.windows.iter().find(|(_, window)| {
            window.op.is_none_or(|only| only == op) && window.pod.is_none_or(of_pod) && rng.percent(window.percent)
        });
        hit.map(|(_, window)| window.fault)
    }

    fn landed(&self, number: u64, how: &str) {
        let at = self.elapsed();
        let mut state = self.state.lock();
        let life = state.life;
        if let Some(Flight { op, uid, about, .. }) = state.flights.remove(&number) {
            if let (About::Stop { id, .. }, true) = (&about, how.contains("failed")) {
                state.runs.stop_failed(&uid, id, BEGIN + at);
            }
            state.trace.note(at, life, format!("{uid} {op:?}{about}: {how}"));
        }
    }
}
