//! The simulated runtime's implementation of the [`ContainerRuntime`] port.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_model::ids::{ContainerId, PodUid, SandboxId};
use podwright_model::pod::{PodObject, is_sidecar};
use podwright_model::time::{Grace, Time};
use podwright_ports::{
    ContainerConfig, ContainerRuntime, ContainerUpdate, ExecOutput, ImageError, ImageRequest, PodRuntimeStatus,
    RuntimeCapabilities, RuntimeError, RuntimeFuture, RuntimePod, SandboxConfig,
};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::SimulatedConfig;
use super::behaviour::{BadAnnotation, Behaviour, NamedContainer, RunFor, StopLatency};
use super::draw::{Choice, Draws};
use super::network::SimulatedNetwork;
use super::table::{EndCause, Key, NewContainer, NewSandbox, PodTable, RunEnd, RunPhase, RunSnapshot};

/// The simulated runtime; see the [module](super). Clones share their pods.
#[derive(Clone, Debug)]
pub struct SimulatedRuntime {
    pub(super) shared: Arc<SimulatedRuntimeState>,
}

#[derive(Debug)]
pub(super) struct SimulatedRuntimeState {
    config: SimulatedConfig,
    defaults: Arc<Behaviour>,
    /// The defaults of init containers that are not sidecars.
    init_defaults: Arc<Behaviour>,
    state: Mutex<LockedState>,
    /// Wakes [`next_event`](Self::next_event) when a pod has changed, or when a container will end earlier than planned.
    changed: Notify,
}

#[derive(Debug, Default)]
struct LockedState {
    table: PodTable,
    /// Notifiers of the calls that wait for the end of a stopped container.
    waiters: HashMap<Key, Arc<Notify>>,
}

impl SimulatedRuntime {
    /// A runtime without pods.
    pub fn new(config: SimulatedConfig) -> Self {
        let defaults = Arc::new(config.defaults.clone());
        let init_defaults = Arc::new(config.defaults.for_init_container());
        let shared =
            SimulatedRuntimeState { config, defaults, init_defaults, state: Mutex::default(), changed: Notify::new() };
        SimulatedRuntime { shared: Arc::new(shared) }
    }

    /// Ends a running container now, as if it had ended by itself with this exit code. Returns false if the pod has no running
    /// container of that name.
    pub fn exit(&self, pod: &PodUid, container: &str, code: u8) -> bool {
        self.shared.with(|table, now| {
            let running = table.running(pod, container);
            running.is_some_and(|key| table.stop(key, now, RunEnd { at: now, how: EndCause::ByItself(code) }).is_some())
        })
    }

    /// The network that answers the calls of probes and hooks to the pods of this runtime.
    pub fn network(&self) -> SimulatedNetwork {
        SimulatedNetwork::new(self.shared.clone())
    }
}

impl SimulatedRuntimeState {
    /// Runs `work` on the table as of now, and wakes the calls that wait for a container's end or for a changed pod.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut PodTable, Time) -> T) -> T {
        self.locked(|state, now| work(&mut state.table, now))
    }

    fn locked<T>(&self, work: impl FnOnce(&mut LockedState, Time) -> T) -> T {
        let mut state = self.state.lock();
        let state = &mut *state;
        let due_before = state.table.next_due();
        let now = self.config.clock.now();
        state.table.end_due_runs(now);
        let answer = work(state, now);
        state.table.end_due_runs(now);
        for key in state.table.take_ended() {
            if let Some(waiter) = state.waiters.remove(&key) {
                waiter.notify_waiters();
            }
        }
        let sooner = match (state.table.next_due(), due_before) {
            (Some(now), Some(before)) => now < before,
            (now, _) => now.is_some(),
        };
        if sooner || state.table.has_changed() {
            self.changed.notify_one();
        }
        answer
    }

    pub(super) fn draws(&self, uid: &PodUid, about: &str) -> Draws {
        Draws::new(self.config.seed, &uid.to_string(), about)
    }

    fn behaviour(&self, pod: &PodObject, container: &str) -> Result<Arc<Behaviour>, BadAnnotation> {
        let names = pod.init_containers().iter().chain(pod.containers()).map(|container| container.name.as_str());
        let ephemeral = pod.ephemeral_containers().iter().map(|container| container.name.as_str());
        let all: Vec<&str> = names.chain(ephemeral).collect();
        let is_init = pod.init_containers().iter().any(|init| init.name == container && !is_sidecar(init));
        let defaults = if is_init { &self.init_defaults } else { &self.defaults };
        let named = NamedContainer { name: container, is_init };
        let own = defaults.for_container(pod.metadata().annotations.as_ref(), named, &all)?;
        Ok(own.map_or_else(|| defaults.clone(), Arc::new))
    }

    /// The behaviour of a container, or the default if the pod's annotations are invalid. Used by calls that cannot report
    /// the error; the creation of the pod's containers reports the error.
    fn behaviour_or_default(&self, pod: &PodObject, container: &str) -> Arc<Behaviour> {
        self.behaviour(pod, container).unwrap_or_else(|_| self.defaults.clone())
    }

    async fn run_sandbox(&self, config: SandboxConfig) -> Result<SandboxId, RuntimeError> {
        let (pod, uid) = (&config.pod, config.pod.uid());
        let behaviour = self.behaviour_or_default(pod, "");
        let varies = behaviour.sandbox_latency.varies() || behaviour.sandbox_failures.varies();
        let attempt = if varies { self.with(|table, now| table.attempts().count(uid, "", now)) } else { 0 };
        let draws = self.draws(uid, "");
        wait(behaviour.sandbox_latency.draw(draws.of(Choice::SandboxLatency, attempt))).await;
        if behaviour.sandbox_failures.applies_to(attempt, draws.of(Choice::SandboxFailure, attempt)) {
            return Err(RuntimeError::failed("simulated failure of the sandbox"));
        }
        let new = NewSandbox {
            uid,
            full_name: pod.full_name(),
            is_static: pod.is_static(),
            grace: pod.spec_grace().map(Grace::from_seconds),
            attempt: config.attempt,
            host_network: pod.is_host_network(),
            behaviour,
        };
        let id = self.with(|table, now| table.add_sandbox(new, now));
        id.ok_or_else(|| RuntimeError::failed("no address is left for another pod: remove pods first"))
    }

    async fn ensure_image(&self, request: ImageRequest<'_>, cancel: &CancellationToken) -> Result<String, ImageError> {
        let ImageRequest { pod, image, pull_policy, .. } = request;
        let uid = pod.uid();
        // With the policy `Never` the image counts as present, unless the pod has tried to pull it and failed.
        match pull_policy {
            Some("Never")
                if self.with(|table, _| table.has_image(uid, image) || !table.attempts().has_tried(uid, image)) =>
            {
                return Ok(image.to_owned());
            }
            Some("Never") => return Err(ImageError::NeverPull(image.to_owned())),
            Some("Always") => {}
            _ if self.with(|table, _| table.has_image(uid, image)) => return Ok(image.to_owned()),
            _ => {}
        }
        let all = pod.init_containers().iter().chain(pod.containers());
        let first = all.into_iter().find(|container| container.image.as_deref() == Some(image));
        let behaviour = self.behaviour_or_default(pod, first.map_or("", |container| &container.name));
        let varies = behaviour.pull_latency.varies() || behaviour.pull_failures.varies();
        let attempt = if varies { self.with(|table, now| table.attempts().count(uid, image, now)) } else { 0 };
        let draws = self.draws(uid, image);
        let latency = behaviour.pull_latency.draw(draws.of(Choice::PullLatency, attempt));
        cancel.run_until_cancelled(wait(latency)).await.ok_or(ImageError::Cancelled)?;
        if behaviour.pull_failures.applies_to(attempt, draws.of(Choice::PullFailure, attempt)) {
            return Err(ImageError::pull("simulated failure"));
        }
        Ok(image.to_owned())
    }

    fn create_container(&self, config: ContainerConfig) -> Result<ContainerId, RuntimeError> {
        let name = config.name.clone();
        let behaviour = self.behaviour(&config.pod, name.as_str());
        let behaviour = behaviour.map_err(RuntimeError::config)?;
        let sandbox = Key::parse(config.sandbox.as_str());
        let id = sandbox.and_then(|sandbox| {
            let ContainerConfig { image_id, restart_count, spec_hash, .. } = &config;
            let (restart_count, spec_hash) = (*restart_count, *spec_hash);
            let new = NewContainer { sandbox, name, image: image_id, restart_count, spec_hash, behaviour };
            self.with(|table, now| table.add_container(new, now))
        });
        let gone = || RuntimeError::NotFound(format!("a ready sandbox {}", config.sandbox));
        id.ok_or_else(gone)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let (key, run) = self.find(id)?;
        if run.state != RunPhase::Created {
            return Err(RuntimeError::failed(format!("container {id} was started before: create another container")));
        }
        let (attempt, behaviour) = (run.restart_count, &run.behaviour);
        let draws = self.draws(&run.uid, run.name.as_str());
        wait(behaviour.start_latency.draw(draws.of(Choice::StartLatency, attempt))).await;
        if behaviour.start_failures.applies_to(attempt, draws.of(Choice::StartFailure, attempt)) {
            self.with(|table, now| table.fail_start(key, now));
            return Err(RuntimeError::failed("simulated failure of the start"));
        }
        let ends = behaviour.exits.applies_to(attempt, draws.of(Choice::Exit, attempt));
        let after = match behaviour.run_for {
            RunFor::Time(time) if ends => Some(time.draw(draws.of(Choice::RunFor, attempt))),
            RunFor::Time(_) | RunFor::Forever => None,
        };
        let how = EndCause::ByItself(behaviour.exit_code);
        let started = self.with(|table, now| table.start(key, now, after.map(|after| RunEnd { at: now + after, how })));
        if started {
            Ok(())
        } else {
            Err(RuntimeError::failed(format!("container {id} was stopped before it started")))
        }
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) {
        let Some(key) = Key::parse(id.as_str()) else { return };
        self.locked(|state, now| {
            let Some(run) = state.table.run(key) else { return };
            state.table.stop(key, now, self.stop_end(&run, now, grace));
            // An earlier call of this function may now have to wait for a shorter time.
            if let Some(waiter) = state.waiters.get(&key) {
                waiter.notify_waiters();
            }
        });
        loop {
            let waiting = self.locked(|state, now| match state.table.run(key)?.state {
                RunPhase::Running(Some(end)) => {
                    let waiter = state.waiters.entry(key).or_default();
                    Some((end.since(now), waiter.clone().notified_owned()))
                }
                RunPhase::Created | RunPhase::Running(None) | RunPhase::Ended => None,
            });
            let Some((left, changed)) = waiting else { return };
            // The loop checks the state again, both after a notification and after the timeout.
            let _elapsed = tokio::time::timeout(left, changed).await;
        }
    }

    /// The end of a run that is stopped now with this grace period.
    fn stop_end(&self, run: &RunSnapshot, now: Time, grace: Duration) -> RunEnd {
        let killed = RunEnd { at: now + grace, how: EndCause::Killed };
        match run.behaviour.stop_latency {
            StopLatency::Never => killed,
            StopLatency::After(latency) => {
                let draw = self.draws(&run.uid, run.name.as_str()).of(Choice::StopLatency, run.restart_count);
                killed.min(RunEnd { at: now + latency.draw(draw), how: EndCause::Stopped })
            }
        }
    }
}

impl SimulatedRuntimeState {
    fn find(&self, id: &ContainerId) -> Result<(Key, RunSnapshot), RuntimeError> {
        let key = Key::parse(id.as_str());
        let found = key.and_then(|key| Some((key, self.with(|table, _| table.run(key))?)));
        found.ok_or_else(|| RuntimeError::NotFound(format!("container {id}")))
    }

    fn exec(&self, id: &ContainerId) -> Result<ExecOutput, RuntimeError> {
        let (_, run) = self.find(id)?;
        match run.state {
            RunPhase::Running(_) => {
                let output = b"simulated".to_vec();
                let stderr_from = output.len();
                Ok(ExecOutput { exit_code: run.behaviour.exec_exit_code.into(), output, stderr_from })
            }
            RunPhase::Created | RunPhase::Ended => {
                Err(RuntimeError::failed(format!("container {id} is not running: a command needs a running container")))
            }
        }
    }

    async fn next_event(&self) -> PodUid {
        loop {
            let (changed, next) =
                self.with(|table, now| (table.take_changed(), table.next_due().map(|due| due.since(now))));
            if let Some(uid) = changed {
                return uid;
            }
            // A notification that was sent after the table was read has left a permit, so it is not missed.
            match next {
                Some(left) => {
                    let _elapsed = tokio::time::timeout(left, self.changed.notified()).await;
                }
                None => self.changed.notified().await,
            }
        }
    }
}

/// Waits in tokio's time. Does not yield if the time is zero.
async fn wait(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

impl ContainerRuntime for SimulatedRuntime {
    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>> {
        async { Ok(self.shared.with(|table, _| table.list())) }.boxed()
    }

    fn pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus> {
        async { Ok(self.shared.with(|table, _| table.status(uid))) }.boxed()
    }

    fn run_sandbox(&self, config: SandboxConfig) -> RuntimeFuture<'_, SandboxId> {
        self.shared.run_sandbox(config).boxed()
    }

    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        async {
            if let Some(key) = Key::parse(id.as_str()) {
                self.shared.with(|table, now| table.stop_sandbox(key, now));
            }
            Ok(())
        }
        .boxed()
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        async {
            if let Some(key) = Key::parse(id.as_str()) {
                self.shared.with(|table, now| table.remove_sandbox(key, now));
            }
            Ok(())
        }
        .boxed()
    }

    /// Pulls an image for the first container of a pod that has it, and with the policy `Always` for every container. With
    /// the policy `Never` the image counts as present, unless the pod has tried to pull it and failed.
    fn ensure_image<'a>(
        &'a self,
        request: ImageRequest<'a>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>> {
        self.shared.ensure_image(request, cancel).boxed()
    }

    fn create_container(&self, config: ContainerConfig) -> RuntimeFuture<'_, ContainerId> {
        async { self.shared.create_container(config) }.boxed()
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        self.shared.start_container(id).boxed()
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeFuture<'a, ()> {
        async move {
            self.shared.stop_container(id, grace).await;
            Ok(())
        }
        .boxed()
    }

    /// Nothing limits simulated containers, so every update succeeds.
    fn update_container<'a>(&'a self, id: &'a ContainerId, _: ContainerUpdate) -> RuntimeFuture<'a, ()> {
        async { self.shared.find(id).map(drop) }.boxed()
    }

    /// There are no logs to keep.
    fn remove_container<'a>(&'a self, id: &'a ContainerId, _: bool) -> RuntimeFuture<'a, ()> {
        async move {
            let remove = |key| self.shared.with(|table, _| table.remove_container(key));
            let gone = Key::parse(id.as_str()).is_none_or(remove);
            if gone { Ok(()) } else { Err(RuntimeError::failed(format!("container {id} is running: stop it first"))) }
        }
        .boxed()
    }

    /// Runs no command: every command ends at once with the behaviour's `exec-exit-code`.
    fn exec<'a>(&'a self, id: &'a ContainerId, _: &'a [String], _: Duration) -> RuntimeFuture<'a, ExecOutput> {
        async { self.shared.exec(id) }.boxed()
    }

    fn next_event(&self) -> BoxFuture<'_, PodUid> {
        self.shared.next_event().boxed()
    }

    fn capabilities(&self) -> RuntimeCapabilities {
        RuntimeCapabilities::of_version(env!("CARGO_PKG_VERSION"))
    }

    fn has_events(&self) -> bool {
        true
    }
}
