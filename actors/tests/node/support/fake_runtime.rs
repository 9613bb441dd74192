//! A container runtime in memory, in tokio's time. Scripts by container name define what its containers do.

mod calls;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use podwright_model::ids::{ContainerId, FullName, PodUid, SandboxId};
use podwright_model::time::{Grace, Time};
use podwright_ports::{
    Clock, ContainerProcess, ContainerState, ContainerStatus, ExecOutput, PodRuntimeStatus, RuntimeError, RuntimePod,
    RuntimePodContainer, RuntimePodSandbox, SandboxState, SandboxStatus, TokioClock, Unready,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// The behaviour of a container. By default it runs for ever and ends with 0 as soon as it gets a stop request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    /// The container ends by itself after this time, with this exit code.
    pub(crate) ends: Option<(Duration, i32)>,
    /// Time from a stop request to the exit, and the exit code. `None` ignores the request.
    pub(crate) stops: Option<(Duration, i32)>,
    /// Whether the container fails to start.
    pub(crate) fails_to_start: bool,
    /// The container ends in its start, as when its command does not exist. The text is the runtime's error.
    pub(crate) start_error: Option<&'static str>,
}

impl Default for Script {
    fn default() -> Self {
        Script { ends: None, stops: Some((Duration::ZERO, 0)), fails_to_start: false, start_error: None }
    }
}

impl Script {
    /// A container that ends by itself.
    pub(crate) fn ends(after: f64, code: i32) -> Self {
        Script { ends: Some((Duration::from_secs_f64(after), code)), ..Script::default() }
    }

    /// A container that ignores stop requests and has to be killed.
    pub(crate) fn stubborn() -> Self {
        Script { stops: None, ..Script::default() }
    }
}

/// A call that can be made to fail, to take long, or to panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Op {
    List,
    Status,
    RunSandbox,
    StopSandbox,
    Pull,
    Create,
    Start,
    Stop,
    Remove,
    Exec,
    Update,
    Events,
}

impl Op {
    const ALL: [Op; 9] =
        [Op::List, Op::Status, Op::RunSandbox, Op::StopSandbox, Op::Pull, Op::Create, Op::Start, Op::Stop, Op::Remove];
}

/// A call that changes state, or a status read.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Seconds since the runtime was made.
    pub(crate) at: f64,
    pub(crate) uid: PodUid,
    /// `start main`, `stop main 30`, `sandbox 0`.
    pub(crate) what: String,
}

pub(crate) struct FakeRuntime {
    clock: TokioClock,
    begin: Instant,
    with_events: bool,
    state: Mutex<State>,
    /// Wakes stops and the event stream after a change.
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// The CDI devices of the container that was created last, by pod.
    cdi_devices: BTreeMap<PodUid, Vec<String>>,
    /// The CDI devices that no specification has.
    missing_devices: BTreeSet<String>,
    pods: BTreeMap<PodUid, Pod>,
    scripts: BTreeMap<String, Script>,
    failing: BTreeMap<Op, RuntimeError>,
    unready: Unready,
    /// The images that are absent and cannot be pulled.
    absent_images: BTreeSet<String>,
    /// The commands that began.
    commands: Vec<Vec<String>>,
    /// The result of each command.
    exec_result: Option<Result<ExecOutput, RuntimeError>>,
    panicking: BTreeSet<Op>,
    slow: BTreeMap<Op, Duration>,
    slow_reads: BTreeMap<PodUid, Duration>,
    /// The memory of each pod's container, in mebibytes.
    memory: BTreeMap<PodUid, u64>,
    /// The pods whose processes cannot be measured.
    unmeasured: BTreeMap<PodUid, RuntimeError>,
    /// How old a list is when it arrives.
    list_age: Duration,
    /// Whether no stop ends a container, although each stop succeeds.
    loses_exits: bool,
    /// The process of every container, if the runtime reports one.
    process: Option<ContainerProcess>,
    calls: Vec<Call>,
    hints: VecDeque<PodUid>,
    ids: u32,
}

struct Pod {
    full_name: FullName,
    is_static: bool,
    grace: Option<Grace>,
    /// Newest first.
    sandboxes: Vec<SandboxStatus>,
    /// Newest first.
    containers: Vec<Live>,
}

impl Pod {
    /// A pod of which the runtime knows nothing but the name.
    fn planted(full_name: FullName) -> Self {
        Pod { full_name, is_static: false, grace: None, sandboxes: Vec::new(), containers: Vec::new() }
    }
}

struct Live {
    status: ContainerStatus,
    script: Script,
    started: Option<Instant>,
    stop_requested: Option<Instant>,
    killed_at: Option<Instant>,
}

impl Live {
    /// The time and the exit code of its end, if its end is determined.
    fn end(&self) -> Option<(Instant, i32)> {
        let own = self.script.ends.zip(self.started).map(|((after, code), started)| (started + after, code));
        let term = self
            .script
            .stops
            .zip(self.stop_requested)
            .map(|((after, code), stop_requested)| (stop_requested + after, code));
        let kill = self.killed_at.map(|at| (at, 137));
        let running = self.status.state == ContainerState::Running;
        [own, term, kill].into_iter().flatten().filter(|_| running).min_by_key(|(at, _)| *at)
    }
}

impl FakeRuntime {
    /// Sets the memory of a pod's container in mebibytes.
    pub(crate) fn uses_memory(&self, pod: &str, mebibytes: u64) {
        self.state.lock().memory.insert(pod.into(), mebibytes);
    }

    /// Makes each measurement of a pod's processes fail until [`heal`](Self::heal).
    pub(crate) fn fail_usage(&self, pod: &str, error: RuntimeError) {
        self.state.lock().unmeasured.insert(pod.into(), error);
    }

    pub(crate) fn new(clock: TokioClock, with_events: bool) -> Self {
        let (state, changed) = (Mutex::default(), Notify::new());
        FakeRuntime { clock, begin: Instant::now(), with_events, state, changed }
    }

    pub(crate) fn script(&self, container: &str, script: Script) {
        self.state.lock().scripts.insert(container.into(), script);
    }

    /// Makes a call fail until [`heal`](Self::heal).
    pub(crate) fn fail(&self, op: Op) {
        self.state.lock().failing.insert(op, RuntimeError::failed("it broke"));
    }

    /// Neither containers nor sandboxes can be stopped until [`heal`](Self::heal).
    pub(crate) fn fail_stops(&self) {
        self.fail(Op::Stop);
        self.fail(Op::StopSandbox);
    }

    /// Makes all calls fail until [`heal`](Self::heal). Containers keep running.
    pub(crate) fn unreachable(&self) {
        let error = RuntimeError::unreachable("nobody listens");
        self.state.lock().failing.extend(Op::ALL.map(|op| (op, error.clone())));
    }

    /// Makes an image absent. A pull fails with `not found`.
    pub(crate) fn no_image(&self, image: &str) {
        self.state.lock().absent_images.insert(image.to_owned());
    }

    /// The command that ran last.
    pub(crate) fn last_command(&self) -> Vec<String> {
        self.commands().pop().unwrap_or_default()
    }

    /// The commands that began.
    pub(crate) fn commands(&self) -> Vec<Vec<String>> {
        self.state.lock().commands.clone()
    }

    /// Sets the result of the commands that run from now on.
    pub(crate) fn exec_result(&self, result: Result<ExecOutput, RuntimeError>) {
        self.state.lock().exec_result = Some(result);
    }

    /// Sets the conditions that the runtime reports as not ready.
    pub(crate) fn unready(&self, unready: Unready) {
        self.state.lock().unready = unready;
    }

    pub(crate) fn panic_in(&self, op: Op) {
        self.state.lock().panicking.insert(op);
    }

    pub(crate) fn heal(&self) {
        let mut state = self.state.lock();
        state.failing.clear();
        state.panicking.clear();
        state.slow.clear();
        state.unmeasured.clear();
    }

    /// Makes a call take this long before it has an effect.
    pub(crate) fn slow(&self, op: Op, by: f64) {
        self.state.lock().slow.insert(op, Duration::from_secs_f64(by));
    }

    /// From now on, stops succeed and end no container, as in a runtime that has missed the exits. `process` is the process of every
    /// container.
    pub(crate) fn lose_exits(&self, process: Option<ContainerProcess>) {
        let mut state = self.state.lock();
        (state.loses_exits, state.process) = (true, process);
    }

    /// Makes stops end containers again.
    pub(crate) fn find_exits(&self) {
        let mut state = self.state.lock();
        (state.loses_exits, state.process) = (false, None);
    }

    /// Makes lists arrive this long after they were taken.
    pub(crate) fn old_lists(&self, seconds: f64) {
        self.state.lock().list_age = Duration::from_secs_f64(seconds);
    }

    /// Makes each read of one pod take this long.
    pub(crate) fn slow_pod(&self, uid: &str, by: f64) {
        self.state.lock().slow_reads.insert(uid.into(), Duration::from_secs_f64(by));
    }

    /// Adds a pod that an earlier agent started: a ready sandbox and a running container, whose definition matches no pod.
    pub(crate) fn plant(&self, uid: &str, full_name: FullName, container: &str) {
        self.plant_sandbox(uid, full_name);
        let mut state = self.state.lock();
        let pod = &state.pods[&uid.into()];
        let sandbox = pod.sandboxes[0].id.clone();
        let mut status = self.made(&mut state, container, sandbox);
        status.state = ContainerState::Running;
        status.started_at = Some(self.clock.now());
        let script = state.scripts.get(container).copied().unwrap_or_default();
        let live = Live { status, script, started: Some(Instant::now()), stop_requested: None, killed_at: None };
        state.pods.get_mut(&uid.into()).unwrap().containers.insert(0, live);
        self.hint(&mut state, &uid.into());
    }

    /// Adds a ready sandbox to a pod without one, as a runtime does that finishes a sandbox late.
    pub(crate) fn plant_sandbox(&self, uid: &str, full_name: FullName) {
        let mut state = self.state.lock();
        let new = || Pod::planted(full_name);
        let pod = state.pods.entry(uid.into()).or_insert_with(new);
        if pod.sandboxes.is_empty() {
            pod.sandboxes.push(self.sandbox(format!("planted-{uid}"), 0, false));
        }
        self.hint(&mut state, &uid.into());
    }

    /// Adds a container in its own sandbox, so that it keeps running when the other sandboxes stop.
    pub(crate) fn plant_apart(&self, uid: &str, container: &str) {
        let apart = self.sandbox(format!("apart-{uid}"), 1, false);
        let full_name = FullName::new("test", uid);
        let new = || Pod::planted(full_name.clone());
        self.state.lock().pods.entry(uid.into()).or_insert_with(new).sandboxes.insert(0, apart);
        self.plant(uid, full_name.clone(), container);
    }

    /// Edits the status of a container's newest run.
    pub(crate) fn edit(&self, uid: &str, container: &str, edit: impl FnOnce(&mut ContainerStatus)) {
        let mut state = self.state.lock();
        let pod = state.pods.get_mut(&uid.into()).unwrap();
        edit(&mut pod.containers.iter_mut().find(|live| live.status.name.as_str() == container).unwrap().status);
        self.hint(&mut state, &uid.into());
    }

    /// Ends the newest sandbox of a pod and all its containers.
    pub(crate) fn end_sandbox(&self, uid: &str) {
        let mut state = self.state.lock();
        let pod = state.pods.get_mut(&uid.into()).unwrap();
        pod.sandboxes[0].state = SandboxState::NotReady;
        pod.sandboxes[0].ips.clear();
        pod.containers.iter_mut().for_each(|live| live.killed_at = Some(Instant::now()));
        self.hint(&mut state, &uid.into());
    }

    /// Adds a call of another port to the list of calls.
    pub(crate) fn note(&self, uid: &PodUid, what: String) {
        self.state.lock().calls.push(Call { at: self.begin.elapsed().as_secs_f64(), uid: uid.clone(), what });
    }

    /// All calls so far that change state.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.state.lock().calls.iter().filter(|call| call.what != "status").cloned().collect()
    }

    /// The calls of one pod.
    pub(crate) fn calls_of(&self, uid: &str) -> Vec<String> {
        let uid = PodUid::from(uid);
        self.calls().into_iter().filter(|call| call.uid == uid).map(|call| call.what).collect()
    }

    /// The time in seconds of each call that starts with this text.
    pub(crate) fn times_of(&self, what: &str) -> Vec<f64> {
        let state = self.state.lock();
        state.calls.iter().filter(|call| call.what.starts_with(what)).map(|call| call.at).collect()
    }

    /// The CDI devices of the pod's container that was created last.
    pub(crate) fn cdi_devices(&self, uid: &str) -> Vec<String> {
        self.state.lock().cdi_devices.get(&uid.into()).cloned().unwrap_or_default()
    }

    /// Removes the specification of a CDI device.
    pub(crate) fn lose_device(&self, name: &str) {
        self.state.lock().missing_devices.insert(name.to_owned());
    }

    /// The running containers of a pod.
    pub(crate) fn running(&self, uid: &str) -> Vec<String> {
        let status = self.inspect(&uid.into());
        let running = status.containers.iter().filter(|c| c.state == ContainerState::Running);
        running.map(|c| c.name.to_string()).collect()
    }

    pub(crate) fn inspect(&self, uid: &PodUid) -> PodRuntimeStatus {
        let mut state = self.state.lock();
        self.settle(&mut state);
        let Some(pod) = state.pods.get(uid) else { return PodRuntimeStatus::default() };
        let containers = pod.containers.iter().map(|live| live.status.clone()).collect();
        PodRuntimeStatus { sandboxes: pod.sandboxes.clone(), containers }
    }

    fn sandbox(&self, id: String, attempt: u32, host_network: bool) -> SandboxStatus {
        SandboxStatus {
            id: id.into(),
            attempt,
            state: SandboxState::Ready,
            created_at: self.clock.now(),
            host_network,
            ips: if host_network { Vec::new() } else { vec![[10, 0, 0, 7].into()] },
        }
    }

    fn made(&self, state: &mut State, name: &str, sandbox: SandboxId) -> ContainerStatus {
        state.ids += 1;
        ContainerStatus {
            id: format!("{name}-{}", state.ids).into(),
            sandbox,
            name: name.into(),
            restart_count: 0,
            state: ContainerState::Created,
            created_at: self.clock.now(),
            started_at: None,
            finished_at: None,
            exit_code: 0,
            signal: None,
            reason: String::new(),
            message: String::new(),
            spec_hash: 0,
            image: "img".into(),
            image_id: "sha256:img".into(),
            applied: None,
        }
    }

    /// Records a call, and applies the delay, failure or panic that the test set for it.
    async fn enter(&self, op: Op, uid: &PodUid, what: String) -> Result<(), RuntimeError> {
        let slow = {
            let mut state = self.state.lock();
            let call = Call { at: self.begin.elapsed().as_secs_f64(), uid: uid.clone(), what };
            state.calls.push(call);
            let reads = state.slow_reads.get(uid).filter(|_| op == Op::Status);
            state.slow.get(&op).or(reads).copied()
        };
        if let Some(slow) = slow {
            sleep(slow).await;
        }
        let state = self.state.lock();
        assert!(!state.panicking.contains(&op), "the test makes {op:?} panic");
        state.failing.get(&op).cloned().map_or(Ok(()), Err)
    }

    /// Ends the containers whose end is due.
    fn settle(&self, state: &mut State) {
        let now = Instant::now();
        let mut ended = Vec::new();
        for (uid, pod) in &mut state.pods {
            for live in &mut pod.containers {
                let Some((at, code)) = live.end().filter(|(at, _)| *at <= now) else { continue };
                live.status.state = ContainerState::Exited;
                live.status.exit_code = code;
                live.status.reason = if code == 0 { "Completed".into() } else { "Error".into() };
                let ago = u64::try_from((now - at).as_nanos()).unwrap();
                live.status.finished_at = Some(Time::from_nanos(self.clock.now().as_nanos() - ago));
                ended.push(uid.clone());
            }
        }
        ended.iter().for_each(|uid| self.hint(state, uid));
    }

    fn hint(&self, state: &mut State, uid: &PodUid) {
        if self.with_events && !state.hints.contains(uid) {
            state.hints.push_back(uid.clone());
        }
        self.changed.notify_waiters();
    }

    fn owner<'a>(state: &'a State, id: &ContainerId) -> Result<(&'a PodUid, &'a Live), RuntimeError> {
        let all = state.pods.iter().flat_map(|(uid, pod)| pod.containers.iter().map(move |live| (uid, live)));
        all.into_iter().find(|(_, live)| live.status.id == *id).ok_or_else(|| RuntimeError::NotFound(id.to_string()))
    }

    fn named(&self, id: &ContainerId) -> Result<(PodUid, String), RuntimeError> {
        let state = self.state.lock();
        FakeRuntime::owner(&state, id).map(|(uid, live)| (uid.clone(), live.status.name.to_string()))
    }

    fn live<T>(&self, id: &ContainerId, edit: impl FnOnce(&mut Live) -> T) -> Result<T, RuntimeError> {
        let mut state = self.state.lock();
        self.settle(&mut state);
        let all = state.pods.values_mut().flat_map(|pod| &mut pod.containers);
        let live = all.into_iter().find(|live| live.status.id == *id);
        live.map(edit).ok_or_else(|| RuntimeError::NotFound(id.to_string()))
    }

    fn holder(&self, id: &SandboxId) -> PodUid {
        let state = self.state.lock();
        let has = |pod: &Pod| pod.sandboxes.iter().any(|sandbox| sandbox.id == *id);
        state.pods.iter().find(|(_, pod)| has(pod)).map_or_else(|| "".into(), |(uid, _)| uid.clone())
    }
}

impl State {
    fn list(&self) -> Vec<RuntimePod> {
        let container = |live: &Live| RuntimePodContainer {
            id: live.status.id.clone(),
            sandbox: live.status.sandbox.clone(),
            name: live.status.name.clone(),
            state: live.status.state,
            attempt: live.status.restart_count,
            created_at: live.status.created_at,
        };
        let sandbox = |s: &SandboxStatus| RuntimePodSandbox {
            id: s.id.clone(),
            state: s.state,
            attempt: s.attempt,
            created_at: s.created_at,
        };
        let pods = self.pods.iter().map(|(uid, pod)| RuntimePod {
            uid: uid.clone(),
            full_name: pod.full_name.clone(),
            is_static: pod.is_static,
            grace: pod.grace,
            sandboxes: pod.sandboxes.iter().map(sandbox).collect(),
            containers: pod.containers.iter().map(container).collect(),
        });
        pods.collect()
    }
}
