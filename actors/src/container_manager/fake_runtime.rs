//! A container runtime in memory, for tests in paused time. Its containers behave by scripts.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::ports::{
    Clock, ContainerConfig, ContainerRuntime, ContainerState, ContainerStatus, ExecOutput, ImageError, ImageRequest,
    PodRuntimeStatus, RuntimeError, RuntimeFuture, RuntimePod, SandboxConfig, SandboxState, SandboxStatus, TokioClock,
};
use crate::testing::created;

/// The behaviour of a container. The default runs for ever and stops at once with exit code 143.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    /// When the container ends by itself, and its exit code.
    pub(super) ends: Option<(Duration, i32)>,
    /// How long the container takes to stop; `None` never stops.
    pub(super) stops_in: Option<Duration>,
    /// How long a command in the container takes, and its exit code.
    pub(super) exec: (Duration, i32),
}

impl Default for Script {
    fn default() -> Self {
        Script { ends: None, stops_in: Some(Duration::ZERO), exec: (Duration::ZERO, 0) }
    }
}

pub(super) struct FakeRuntime {
    clock: TokioClock,
    begin: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Newest first.
    sandboxes: Vec<SandboxStatus>,
    /// Newest first.
    containers: Vec<Live>,
    scripts: HashMap<String, Script>,
    images: HashMap<String, ImageError>,
    pull_takes: Duration,
    failures: HashMap<String, RuntimeError>,
    calls: Vec<String>,
}

struct Live {
    status: ContainerStatus,
    started: Option<Instant>,
    asked: Option<Instant>,
    killed_at: Option<Instant>,
}

impl FakeRuntime {
    pub(super) fn new(clock: TokioClock) -> Self {
        FakeRuntime { clock, begin: Instant::now(), state: Mutex::default() }
    }

    pub(super) fn script(&self, container: &str, script: Script) {
        self.state.lock().scripts.insert(container.into(), script);
    }

    pub(super) fn fail_image(&self, image: &str, error: ImageError) {
        self.state.lock().images.insert(image.into(), error);
    }

    /// Makes the image present without a pull.
    pub(super) fn have_image(&self, image: &str) {
        self.state.lock().images.remove(image);
    }

    pub(super) fn pull_takes(&self, time: Duration) {
        self.state.lock().pull_takes = time;
    }

    /// Makes a call (`create a`, `sandbox`) fail until [`heal`](Self::heal).
    pub(super) fn fail(&self, call: &str) {
        self.state.lock().failures.insert(call.into(), RuntimeError::failed("it broke"));
    }

    pub(super) fn fail_with(&self, call: &str, error: RuntimeError) {
        self.state.lock().failures.insert(call.into(), error);
    }

    pub(super) fn heal(&self) {
        self.state.lock().failures.clear();
    }

    pub(super) fn end_sandbox(&self) {
        self.state.lock().sandboxes[0].state = SandboxState::NotReady;
    }

    pub(super) fn edit(&self, id: &str, edit: impl FnOnce(&mut ContainerStatus)) {
        let mut state = self.state.lock();
        edit(&mut state.containers.iter_mut().find(|live| live.status.id.as_str() == id).unwrap().status);
    }

    /// Takes the calls since the last time, each with its second.
    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().calls)
    }

    pub(super) fn status(&self) -> PodRuntimeStatus {
        let mut state = self.state.lock();
        self.settle(&mut state);
        PodRuntimeStatus {
            sandboxes: state.sandboxes.clone(),
            containers: state.containers.iter().map(|live| live.status.clone()).collect(),
        }
    }

    /// Records a call and returns whether it succeeds.
    fn note(&self, state: &mut State, call: &str, detail: &str) -> Result<(), RuntimeError> {
        let second = self.begin.elapsed().as_secs();
        state.calls.push(format!("{second}: {call}{detail}"));
        state.failures.get(call).cloned().map_or(Ok(()), Err)
    }

    /// Ends the containers whose time has come.
    fn settle(&self, state: &mut State) {
        let State { containers, scripts, .. } = state;
        for live in containers.iter_mut().filter(|live| live.status.state == ContainerState::Running) {
            let script = scripts.get(live.status.name.as_str()).copied().unwrap_or_default();
            let own = script.ends.zip(live.started).map(|((after, code), started)| (started + after, code));
            let term = script.stops_in.zip(live.asked).map(|(after, asked)| (asked + after, 143));
            let kill = live.killed_at.map(|at| (at, 137));
            let Some((at, code)) = [own, term, kill].into_iter().flatten().min_by_key(|(at, _)| *at) else { continue };
            if at <= Instant::now() {
                live.status.state = ContainerState::Exited;
                live.status.exit_code = code;
                let ago = at.elapsed();
                let nanos = self.clock.now().as_nanos() - u64::try_from(ago.as_nanos()).unwrap();
                live.status.finished_at = Some(crate::time::Time::from_nanos(nanos));
            }
        }
    }

    fn name(state: &State, id: &ContainerId) -> Result<String, RuntimeError> {
        let live = state.containers.iter().find(|live| live.status.id == *id);
        live.map(|live| live.status.name.to_string()).ok_or_else(|| RuntimeError::NotFound(id.to_string()))
    }
}

impl ContainerRuntime for FakeRuntime {
    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>> {
        async { Ok(Vec::new()) }.boxed()
    }

    fn pod_status<'a>(&'a self, _: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus> {
        let failure = self.state.lock().failures.get("status").cloned();
        async move { failure.map_or_else(|| Ok(self.status()), Err) }.boxed()
    }

    fn run_sandbox(&self, config: SandboxConfig) -> RuntimeFuture<'_, SandboxId> {
        async move {
            let mut state = self.state.lock();
            self.note(&mut state, "sandbox", &format!(" {}", config.attempt))?;
            let id = SandboxId::from(format!("s{}", config.attempt));
            let sandbox = SandboxStatus {
                id: id.clone(),
                attempt: config.attempt,
                state: SandboxState::Ready,
                created_at: self.clock.now(),
                host_network: config.pod.is_host_network(),
                ips: if config.pod.is_host_network() { Vec::new() } else { vec![[10, 0, 0, 7].into()] },
            };
            state.sandboxes.insert(0, sandbox);
            Ok(id)
        }
        .boxed()
    }

    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        async move {
            let mut state = self.state.lock();
            self.note(&mut state, &format!("stop-sandbox {id}"), "")?;
            for sandbox in state.sandboxes.iter_mut().filter(|sandbox| sandbox.id == *id) {
                sandbox.state = SandboxState::NotReady;
            }
            let now = Instant::now();
            for live in state.containers.iter_mut().filter(|live| live.status.sandbox == *id) {
                live.killed_at = Some(now);
            }
            self.settle(&mut state);
            Ok(())
        }
        .boxed()
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        async move {
            self.state.lock().sandboxes.retain(|sandbox| sandbox.id != *id);
            Ok(())
        }
        .boxed()
    }

    fn ensure_image<'a>(
        &'a self,
        request: ImageRequest<'a>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>> {
        let ImageRequest { image, pull_policy: policy, .. } = request;
        async move {
            let takes = self.state.lock().pull_takes;
            cancel.run_until_cancelled(sleep(takes)).await.ok_or(ImageError::Cancelled)?;
            match self.state.lock().images.get(image).cloned() {
                None => Ok(format!("sha256:{image}")),
                // Without a pull the image is absent.
                Some(ImageError::Pull(_)) if policy == Some("Never") => Err(ImageError::NeverPull(image.into())),
                Some(error) => Err(error),
            }
        }
        .boxed()
    }

    fn create_container(&self, config: ContainerConfig) -> RuntimeFuture<'_, ContainerId> {
        async move {
            let mut state = self.state.lock();
            let id = ContainerId::from(format!("{}#{}", config.name, config.restart_count));
            self.note(&mut state, &format!("create {}", config.name), &format!("#{}", config.restart_count))?;
            let image =
                crate::containers::definition::Definition::find(&config.pod, config.name.as_str()).unwrap().image();
            let status = ContainerStatus {
                id: id.clone(),
                sandbox: config.sandbox,
                restart_count: config.restart_count,
                created_at: self.clock.now(),
                spec_hash: config.spec_hash,
                image: image.to_owned(),
                image_id: config.image_id,
                ..created(config.name.as_str())
            };
            state.containers.insert(0, Live { status, started: None, asked: None, killed_at: None });
            Ok(id)
        }
        .boxed()
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        async move {
            let mut state = self.state.lock();
            let name = FakeRuntime::name(&state, id)?;
            let noted = self.note(&mut state, &format!("start {name}"), "");
            let now = self.clock.now();
            let exits = state.failures.contains_key(&format!("exit of start {name}"));
            let live = state.containers.iter_mut().find(|live| live.status.id == *id).unwrap();
            if noted.is_err() && exits {
                live.status.state = ContainerState::Exited;
                (live.status.exit_code, live.status.reason) = (128, "StartError".to_owned());
                live.status.finished_at = Some(now);
            }
            noted?;
            live.started = Some(Instant::now());
            live.status.started_at = Some(now);
            live.status.state = ContainerState::Running;
            // The start took effect, and its answer was lost.
            state.failures.get(&format!("answer to start {name}")).cloned().map_or(Ok(()), Err)
        }
        .boxed()
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeFuture<'a, ()> {
        async move {
            {
                let mut state = self.state.lock();
                let name = FakeRuntime::name(&state, id)?;
                self.note(&mut state, &format!("stop {name}"), &format!(" {}", grace.as_secs_f64()))?;
                let now = Instant::now();
                let live = state.containers.iter_mut().find(|live| live.status.id == *id).unwrap();
                live.asked.get_or_insert(now);
                live.killed_at = Some(live.killed_at.map_or(now + grace, |at| at.min(now + grace)));
            }
            // Short steps, because another call may shorten the grace period.
            loop {
                let next = {
                    let mut state = self.state.lock();
                    self.settle(&mut state);
                    let live = state.containers.iter().find(|live| live.status.id == *id);
                    if live.is_none_or(|live| live.status.state != ContainerState::Running) {
                        return Ok(());
                    }
                    Instant::now() + Duration::from_millis(10)
                };
                sleep_until(next).await;
            }
        }
        .boxed()
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, keep_log: bool) -> RuntimeFuture<'a, ()> {
        async move {
            let mut state = self.state.lock();
            self.note(&mut state, &format!("remove {id}"), if keep_log { " keep" } else { "" })?;
            state.containers.retain(|live| live.status.id != *id);
            Ok(())
        }
        .boxed()
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Duration,
    ) -> RuntimeFuture<'a, ExecOutput> {
        async move {
            let (takes, exit_code) = {
                let mut state = self.state.lock();
                let name = FakeRuntime::name(&state, id)?;
                self.note(&mut state, &format!("exec {name}"), &format!(" {}", command.join(" ")))?;
                state.scripts.get(&name).copied().unwrap_or_default().exec
            };
            sleep(takes.min(timeout)).await;
            if takes > timeout {
                return Err(RuntimeError::Timeout { call: "exec", after: timeout });
            }
            Ok(ExecOutput { exit_code, output: b"said\nwarned\n".to_vec(), stderr_from: 5 })
        }
        .boxed()
    }

    fn next_event(&self) -> BoxFuture<'_, PodUid> {
        std::future::pending().boxed()
    }

    fn has_events(&self) -> bool {
        false
    }
}
