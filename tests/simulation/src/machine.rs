//! The simulated machine, which outlives the agents: its runtime, its clock, the trace, the calls in progress and the faults.

mod agent;
mod call;
mod faults;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use podwright::adapters::simulated::{SimulatedConfig, SimulatedRuntime};
use podwright_core::pod_worker::Lifecycle;
use podwright_model::ids::{ContainerId, PodUid};
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::{Clock, ContainerRuntime, PodEvent, PodRuntimeStatus, SandboxConfig};
use serde_json::Value;
use tokio::sync::Notify;

use super::clock::SimClock;
use super::container_resources::{Amounts, AppliedResources};
use super::container_runs::ContainerRuns;
use super::devices::Devices;
use super::scenario::{Moment, Op, PodPlan, Scenario, Window};
use super::trace::Trace;

pub(super) use agent::{Agent, PodView};
pub(super) use call::{ActiveCall, CallDetail};

/// The time at which every simulation begins.
pub(super) const BEGIN: Time = Time::from_secs(1_800_000_000);

/// What all pods together may request.
pub(super) const CPU_MILLIS: i64 = 4000;
pub(super) const MEMORY: i64 = 1 << 30;

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
    /// The end of the last fault of calls, without the jumps of the clock.
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

    /// The runtime has created or updated a container.
    pub(super) fn resources_applied(&self, id: &ContainerId, amounts: Amounts) {
        self.state.lock().resources.set(id, amounts);
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

    /// A new agent starts and reads what the earlier agents recorded of each run.
    pub(super) fn inherit(&self, facts: &BTreeMap<String, Value>) {
        self.state.lock().runs.inherit(facts, self.clock.now());
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
        let listed = self.runtime.list_pods().now_or_never().unwrap().unwrap();
        for other in listed.iter().filter(|other| other.uid != *pod.uid() && other.full_name == *pod.full_name()) {
            self.runtime_status(&other.uid);
            let life = self.life();
            if self.with_runs(|runs| runs.of(&other.uid).iter().any(|run| run.runs() && run.life < life)) {
                self.violated(format!("{}: starts while its earlier version {} runs", pod.uid(), other.uid));
            }
        }
    }

    pub(super) fn with_devices<T>(&self, ask: impl FnOnce(&mut Devices) -> T) -> T {
        ask(&mut self.state.lock().devices)
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

    /// The agent published an event. An event that a container is killed in a pod in sync marks its run as replaced,
    /// since the container's pre-stop hook may run before the stop call.
    pub(super) fn event_recorded(&self, uid: &PodUid, event: &PodEvent) {
        self.note(format!("{uid} event {}: {}", event.reason, event.message));
        let view = self.agent().and_then(|agent| agent.pod_view(uid));
        if event.reason == "Killing" && view.is_some_and(|view| view.snapshot.lifecycle == Lifecycle::Sync) {
            self.runtime_status(uid);
            let container = event.field_path.as_deref().unwrap_or_default();
            let stopped = |name: &str| container.ends_with(&format!("{{{name}}}"));
            let resize_stop = event.message.ends_with("resize requires restart").then(|| self.clock.now());
            self.state.lock().runs.replaced(uid, stopped, resize_stop);
        }
    }
}
