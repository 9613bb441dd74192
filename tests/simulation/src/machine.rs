//! The simulated machine, which outlives the agents: its runtime, its clock, the trace and the calls in progress.

mod call;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::ResourceRequirements;
use parking_lot::Mutex;
use podwright::adapters::simulated::{SimulatedConfig, SimulatedRuntime};
use podwright_actors::claims::ClaimManager;
use podwright_actors::desired::DesiredPods;
use podwright_actors::engine::{Engine, PodSnapshot};
use podwright_actors::ids::{ContainerId, PodUid};
use podwright_actors::node::NodeHandle;
use podwright_actors::pod::PodObject;
use podwright_actors::pod_worker::Lifecycle;
use podwright_actors::ports::{
    Clock, ContainerRuntime, ContainerState, ContainerStatus, PodEvent, PodRuntimeStatus, SandboxConfig,
};
use podwright_actors::statuses::Statuses;
use podwright_actors::time::Time;
use serde_json::Value;
use tokio::sync::Notify;

use super::checks::{self, CallContext};
use super::clock::SimClock;
use super::container_resources::{Amounts, AppliedResources};
use super::container_runs::ContainerRuns;
use super::devices::Devices;
use super::rng::Rng;
use super::scenario::{Fault, Moment, Op, PodPlan, Scenario, Window};
use super::trace::Trace;

pub(super) use call::{ActiveCall, CallDetail};

/// The time at which every simulation begins.
pub(super) const BEGIN: Time = Time::from_secs(1_800_000_000);

/// What all pods together may request.
pub(super) const CPU_MILLIS: i64 = 4000;
pub(super) const MEMORY: i64 = 1 << 30;

/// How long after the last fault the agent surely knows what the API server has: its watch has waited for the longest backoff and listed the
/// pods again.
const CALM_AFTER: Duration = Duration::from_secs(120);

/// The longest delay of a call by a fault.
const SLOWEST: Duration = Duration::from_secs(60);

pub(super) struct Machine {
    pub(super) clock: Arc<SimClock>,
    pub(super) runtime: SimulatedRuntime,
    pub(super) scenario: Arc<Scenario>,
    state: Mutex<MachineState>,
    must_crash: Notify,
}

struct MachineState {
    trace: Trace,
    runs: ContainerRuns,
    resources: AppliedResources,
    life: u32,
    /// When the running agent started.
    life_began: Time,
    agent: Option<Agent>,
    active_calls: BTreeMap<u64, ActiveCall>,
    /// When the running agent last listed the pods of the runtime.
    listed: Option<Time>,
    numbers: u64,
    calls: BTreeMap<(Op, PodUid), u64>,
    windows: Vec<(Time, Window)>,
    /// Sandboxes whose call was dropped and that are created later nevertheless.
    late_sandboxes: Vec<SandboxConfig>,
    /// The containers whose start had not ended when the agent was killed.
    dropped_starts: Vec<(PodUid, ContainerId)>,
    /// The end of the last fault of calls.
    faults_until: Time,
    /// The end of all faults, once it is reached.
    faults_ended: Option<Time>,
    violation: Option<String>,
    devices: Devices,
    /// The calls in which the agent is killed.
    crashes: Vec<(Op, Moment, Duration)>,
    /// The agent has to be killed now. The next one starts after this time.
    crash: Option<Duration>,
}

/// The parts of a running agent that the checks query.
#[derive(Clone)]
pub(super) struct Agent {
    pub(super) engine: Engine,
    pub(super) statuses: Arc<Statuses>,
    pub(super) desired: Arc<DesiredPods>,
    pub(super) claims: Arc<ClaimManager>,
}

impl Agent {
    pub(super) fn of(node: &NodeHandle, claims: Arc<ClaimManager>) -> Self {
        let (statuses, desired) = (node.statuses().clone(), node.desired().clone());
        Agent { engine: node.engine().clone(), statuses, desired, claims }
    }

    /// One pod as the engine sees it.
    pub(super) fn pod_view(&self, uid: &PodUid) -> Option<PodView> {
        let snapshot = self.engine.snapshot(uid)?;
        let stopping = self.engine.should_pod_containers_be_terminating(uid);
        Some(PodView { snapshot, stopping, active: self.engine.active_pod(uid) })
    }
}

/// A pod as the engine sees it.
#[derive(Clone, Debug)]
pub(super) struct PodView {
    pub(super) snapshot: PodSnapshot,
    /// The terminate hook was called: no container may start.
    pub(super) stopping: bool,
    pub(super) active: Option<Arc<PodObject>>,
}

/// Ends an active call when it is answered or dropped.
pub(super) struct CallGuard<'a> {
    machine: &'a Machine,
    number: u64,
    pub(super) fault: Option<Fault>,
    answered: bool,
}

impl CallGuard<'_> {
    pub(super) fn answered(mut self, how: &str) {
        self.answered = true;
        self.machine.call_ended(self.number, how);
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.machine.call_ended(self.number, "dropped");
        }
    }
}

impl Machine {
    /// A machine on which nothing has run. Its trace keeps this many lines.
    pub(super) fn new(scenario: Arc<Scenario>, kept: usize) -> Self {
        let clock = Arc::new(SimClock::stopped_at(BEGIN));
        let config = SimulatedConfig { seed: scenario.seed, clock: clock.clone(), ..SimulatedConfig::default() };
        let state = MachineState {
            trace: Trace::keeping(kept),
            runs: ContainerRuns::default(),
            resources: AppliedResources::default(),
            life: 0,
            life_began: BEGIN,
            agent: None,
            active_calls: BTreeMap::new(),
            listed: None,
            numbers: 0,
            calls: BTreeMap::new(),
            windows: Vec::new(),
            late_sandboxes: Vec::new(),
            dropped_starts: Vec::new(),
            faults_until: Time::ZERO,
            faults_ended: None,
            violation: None,
            devices: Devices::default(),
            crashes: Vec::new(),
            crash: None,
        };
        let must_crash = Notify::new();
        Machine { must_crash, clock, runtime: SimulatedRuntime::new(config), scenario, state: Mutex::new(state) }
    }

    /// Time since the simulation began.
    pub(super) fn elapsed(&self) -> Duration {
        self.clock.steady().since(BEGIN)
    }

    /// Sets the clock of the machine ahead. For a while, the checks find nothing late.
    pub(super) fn clock_jumps(&self, time: Duration) {
        self.clock.jump(time);
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.faults_until = now.max(state.faults_until + time) + SLOWEST;
    }

    /// The runtime has created or updated a container.
    pub(super) fn resources_applied(&self, id: &ContainerId, resources: Option<&ResourceRequirements>) {
        self.state.lock().resources.set(id, resources);
    }

    pub(super) fn resources_of(&self, id: &ContainerId) -> Option<Amounts> {
        self.state.lock().resources.get(id)
    }

    pub(super) fn note(&self, what: String) {
        let at = self.elapsed();
        let mut state = self.state.lock();
        let life = state.life;
        state.trace.note(at, life, what);
    }

    /// Sets the running agent.
    pub(super) fn agent_started(&self, agent: Agent) {
        let mut state = self.state.lock();
        state.life += 1;
        state.agent = Some(agent);
        state.listed = None;
        state.crash = None;
    }

    /// Drops the agent with all that it remembered.
    pub(super) fn agent_ended(&self) {
        let agent = {
            let mut state = self.state.lock();
            state.active_calls.clear();
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

    /// Records a violation. Only the first one is reported.
    pub(super) fn violated(&self, what: String) {
        self.note(format!("VIOLATED {what}"));
        self.state.lock().violation.get_or_insert(what);
    }

    pub(super) fn violation(&self) -> Option<String> {
        self.state.lock().violation.clone()
    }

    pub(super) fn trace_hash(&self) -> u64 {
        self.state.lock().trace.hash()
    }

    pub(super) fn trace(&self) -> String {
        self.state.lock().trace.to_string()
    }

    pub(super) fn add_fault_window(&self, window: Window) {
        let mut state = self.state.lock();
        if window.op != Some(Op::Event) {
            // A delayed call ends after the window.
            state.faults_until = state.faults_until.max(self.clock.now() + window.lasts + SLOWEST);
        }
        state.windows.push((self.clock.steady() + window.lasts, window));
    }

    /// The time since which no call can have failed. Faults of events do not count.
    pub(super) fn faultless_since(&self) -> Time {
        self.state.lock().faults_until
    }

    /// Creates a sandbox later although its call was dropped.
    pub(super) fn add_late_sandbox(&self, config: SandboxConfig) {
        self.state.lock().late_sandboxes.push(config);
    }

    pub(super) fn take_late_sandboxes(&self) -> Vec<SandboxConfig> {
        std::mem::take(&mut self.state.lock().late_sandboxes)
    }

    /// The start of a container is dropped before it took effect.
    pub(super) fn start_dropped(&self, uid: PodUid, id: ContainerId) {
        self.state.lock().dropped_starts.push((uid, id));
    }

    /// Cancels some of the starts that the agent had requested when it was killed, as a runtime does whose client is gone. `is_known`
    /// says whether the next agent knows that the start was under way.
    pub(super) fn cancel_starts(&self, is_known: impl Fn(&ContainerId) -> bool) {
        let dropped = std::mem::take(&mut self.state.lock().dropped_starts);
        for (uid, id) in dropped {
            let status = self.runtime_status(&uid);
            let is_created = status.containers.iter().any(|run| run.id == id && run.state == ContainerState::Created);
            let chosen = Rng::of(self.scenario.seed, &[id.as_str().as_bytes()]).percent(70);
            if !is_created || !chosen {
                continue;
            }
            self.note(format!("{uid} the start of {id} is cancelled"));
            // A container that is stopped before its start ends at once, and never starts.
            self.runtime.stop_container(&id, Duration::ZERO).now_or_never().expect("a created container ends").unwrap();
            self.runtime_status(&uid);
            if is_known(&id) {
                self.state.lock().runs.start_cancelled(&uid, &id);
            }
        }
    }

    /// A new agent starts and reads what the earlier agents recorded of each run.
    pub(super) fn inherit(&self, facts: &BTreeMap<String, Value>) {
        let mut state = self.state.lock();
        state.life_began = self.clock.now();
        state.runs.inherit(facts);
    }

    /// A hook of a container has succeeded.
    pub(super) fn hooked(&self, uid: &PodUid, id: &ContainerId) {
        self.state.lock().runs.hooked(uid, id);
    }

    /// A static pod starts only after its earlier version, which an earlier agent left running, has stopped (POD-I8).
    pub(super) fn check_earlier_versions(&self, pod: &PodObject) {
        if !pod.is_static() {
            return;
        }
        let began = self.state.lock().life_began;
        let listed = self.runtime.list_pods().now_or_never().unwrap().unwrap();
        for other in listed.iter().filter(|other| other.uid != *pod.uid() && other.full_name == *pod.full_name()) {
            let status = self.runtime_status(&other.uid);
            let left = |run: &ContainerStatus| run.started_at.is_some_and(|at| at < began);
            if status.containers.iter().any(|run| run.state == ContainerState::Running && left(run)) {
                self.violated(format!("{}: starts while its earlier version {} runs", pod.uid(), other.uid));
            }
        }
    }

    /// Ends all faults.
    pub(super) fn end_faults(&self) {
        let mut state = self.state.lock();
        state.faults_ended = Some(self.clock.steady());
        state.windows.clear();
        state.crashes.clear();
        state.devices.all_return();
    }

    /// Whether the last fault is so long ago that the agent and the API server agree.
    pub(super) fn is_calm(&self) -> bool {
        self.state.lock().faults_ended.is_some_and(|at| self.clock.steady().since(at) >= CALM_AFTER)
    }

    pub(super) fn with_devices<T>(&self, ask: impl FnOnce(&mut Devices) -> T) -> T {
        ask(&mut self.state.lock().devices)
    }

    /// Kills the agent at this moment of its next call of a kind.
    pub(super) fn crash_in(&self, op: Op, moment: Moment, down: Duration) {
        self.state.lock().crashes.push((op, moment, down));
    }

    /// A call reaches a moment. Does not return if the agent is killed now.
    pub(super) async fn reach(&self, op: Op, moment: Moment) {
        {
            let mut state = self.state.lock();
            let found = state.crashes.iter().position(|(of, at, _)| (*of, *at) == (op, moment));
            let Some((_, _, down)) = found.map(|index| state.crashes.remove(index)) else { return };
            state.crash = Some(down);
        }
        self.note(format!("the agent is killed: {op:?} {moment:?}"));
        self.must_crash.notify_one();
        std::future::pending().await
    }

    /// Waits until the agent is killed in a call. Returns when the next one starts.
    pub(super) async fn crash(&self) -> Duration {
        loop {
            self.must_crash.notified().await;
            if let Some(down) = self.state.lock().crash.take() {
                return down;
            }
        }
    }

    pub(super) fn plan_of(&self, uid: &PodUid) -> Option<&PodPlan> {
        let uid = uid.to_string();
        let name = uid.split('-').next()?;
        self.scenario.pods.iter().find(|plan| plan.name == name)
    }

    /// The pod as the runtime really has it now.
    pub(super) fn runtime_status(&self, uid: &PodUid) -> PodRuntimeStatus {
        let status = self.runtime.pod_status(uid).now_or_never().expect("the simulated runtime answers at once");
        let status = status.expect("the simulated runtime answers");
        let record = self.agent().and_then(|agent| agent.engine.snapshot(uid)).map(|snapshot| snapshot.synced_at);
        let mut state = self.state.lock();
        let life = state.life;
        state.runs.learn(uid, &status, life, record);
        status
    }

    /// Whether the running agent has listed the pods of the runtime within this time.
    pub(super) fn was_listed_within(&self, time: Duration) -> bool {
        self.state.lock().listed.is_some_and(|at| self.clock.steady().since(at) <= time)
    }

    pub(super) fn with_runs<T>(&self, ask: impl FnOnce(&ContainerRuns) -> T) -> T {
        ask(&self.state.lock().runs)
    }

    /// Begins a call: traces it, checks it and draws its fault.
    pub(super) fn begin(&self, op: Op, uid: &PodUid, about: CallDetail) -> CallGuard<'_> {
        let now = self.clock.now();
        let agent = self.agent();
        let view = agent.as_ref().and_then(|agent| agent.pod_view(uid));
        let checked = checks::is_checked(op);
        // A container that is removed is recorded for the last time.
        let recorded = checked || op == Op::Remove;
        let status = if recorded { self.runtime_status(uid) } else { PodRuntimeStatus::default() };
        let rivals =
            agent.as_ref().filter(|_| op == Op::Create).map(|agent| agent.engine.snapshots()).unwrap_or_default();
        let mut state = self.state.lock();
        let state = &mut *state;
        match &about {
            _ if op == Op::SetUp => state.runs.set_up(uid),
            CallDetail::Command { id, command, .. } if command == "probe" => state.runs.probed(uid, id),
            _ => {}
        }
        if checked {
            let call = CallContext {
                now,
                life: state.life,
                uid,
                op,
                about: &about,
                view: view.as_ref(),
                status: &status,
                runs: state.runs.of(uid),
                active_calls: &state.active_calls,
                plan: self.plan_of(uid),
                rivals: &rivals,
                applied: about.container().and_then(|id| state.resources.get(id)),
                clock: &self.clock,
            };
            if let Err(what) = checks::call_begin(&call) {
                let what = format!("{uid}: {op:?}{about}: {what}");
                state.trace.note(self.elapsed(), state.life, format!("VIOLATED {what}"));
                state.violation.get_or_insert(what);
            }
        }
        let fault = self.draw(state, op, uid);
        let fault_text = fault.map_or(String::new(), |fault| format!(" {fault:?}"));
        state.trace.note(self.elapsed(), state.life, format!("{uid} {op:?}{about}{fault_text}"));
        state.numbers += 1;
        let zombie_stop = view.as_ref().is_none_or(|view| checks::is_terminated(&view.snapshot));
        state.active_calls.insert(state.numbers, ActiveCall { op, uid: uid.clone(), about, zombie_stop });
        CallGuard { machine: self, number: state.numbers, fault, answered: false }
    }

    /// The agent published an event. An event that a container is killed in a pod in sync marks its run as replaced,
    /// since the container's pre-stop hook may run before the stop call.
    pub(super) fn event_recorded(&self, uid: &PodUid, event: &PodEvent) {
        self.note(format!("{uid} event {}: {}", event.reason, event.message));
        let view = self.agent().and_then(|agent| agent.pod_view(uid));
        if event.reason == "Killing" && view.is_some_and(|view| view.snapshot.lifecycle == Lifecycle::Sync) {
            self.runtime_status(uid);
            let container = event.field_path.as_deref().unwrap_or_default();
            let stopped = |name: &str| container.ends_with(&format!("{{{name}}}"));
            self.state.lock().runs.replaced(uid, stopped);
        }
    }

    /// The fault of one more call, if it gets one.
    pub(super) fn draw_fault(&self, op: Op, uid: &PodUid) -> Option<Fault> {
        self.draw(&mut self.state.lock(), op, uid)
    }

    fn draw(&self, state: &mut MachineState, op: Op, uid: &PodUid) -> Option<Fault> {
        let now = self.clock.steady();
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

    fn call_ended(&self, number: u64, how: &str) {
        let at = self.elapsed();
        let mut state = self.state.lock();
        let life = state.life;
        if let Some(ActiveCall { op, uid, about, .. }) = state.active_calls.remove(&number) {
            if op == Op::List && how == "ok" {
                state.listed = Some(self.clock.steady());
            }
            if let (CallDetail::Stop { id, .. }, true) = (&about, how.contains("failed")) {
                state.runs.stop_failed(&uid, id, self.clock.now());
            }
            state.trace.note(at, life, format!("{uid} {op:?}{about}: {how}"));
        }
    }
}
