//! The runtime and the network with faults: slow, failing and panicking calls, and events that are late, lost or
//! repeated. The simulated runtime and network below have no faults.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright::adapters::simulated::SimulatedNetwork;
use podwright_model::ids::{ContainerId, ContainerName, PodUid, SandboxId};
use podwright_ports::{
    ContainerConfig, ContainerProcesses, ContainerRuntime, ContainerState, ContainerUpdate, ExecOutput, GrpcHealth,
    GrpcTarget, HttpTarget, ImageError, ImageRequest, NetworkClient, NetworkError, PodRuntimeStatus, ProcessUsage,
    RuntimeError, RuntimeFuture, RuntimePod, SandboxConfig, TcpTarget,
};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::container_resources::Amounts;
use super::machine::{CallDetail, Machine};
use super::rng::Rng;
use super::scenario::{Fault, Moment, Op};

/// An error that a fault can return.
pub(super) trait SimulatedError {
    fn failed(after: bool) -> Self;

    /// The error of a port that does not have the call. By default like every other error.
    fn refused() -> Self
    where
        Self: Sized,
    {
        Self::failed(false)
    }
}

impl SimulatedError for RuntimeError {
    fn failed(after: bool) -> Self {
        match after {
            true => RuntimeError::Timeout { call: "a call", after: Duration::from_secs(1) },
            false => RuntimeError::unreachable("simulated"),
        }
    }

    fn refused() -> Self {
        RuntimeError::unsupported("simulated")
    }
}

impl SimulatedError for ImageError {
    fn failed(_: bool) -> Self {
        ImageError::pull("simulated")
    }
}

impl SimulatedError for NetworkError {
    fn failed(_: bool) -> Self {
        NetworkError::failed("simulated")
    }
}

impl Machine {
    /// Makes a call with the fault that is drawn for it.
    pub(super) async fn call<T, E: SimulatedError>(
        &self,
        op: Op,
        uid: &PodUid,
        about: CallDetail,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let guard = self.begin(op, uid, about);
        match guard.fault {
            Some(Fault::Error) => {
                guard.answered("failed");
                return Err(E::failed(false));
            }
            Some(Fault::Refuses) => {
                guard.answered("refused");
                return Err(E::refused());
            }
            // Without the `panic!` macro, because the panic hook would print every simulated panic.
            Some(Fault::Panic) => resume_unwind(Box::new("simulated")),
            Some(Fault::Slow(time)) => sleep(time).await,
            _ => {}
        }
        let result = work.await;
        self.runtime_status(uid);
        match guard.fault {
            Some(Fault::ErrorAfter) if result.is_ok() => {
                guard.answered("done, and failed");
                return Err(E::failed(true));
            }
            Some(Fault::PanicAfter) => resume_unwind(Box::new("simulated")),
            Some(Fault::Late(time)) => sleep(time).await,
            _ => {}
        }
        guard.answered(if result.is_ok() { "ok" } else { "failed by itself" });
        result
    }

    pub(super) fn owner_of_container(&self, id: &ContainerId) -> (PodUid, ContainerName) {
        let pods = self.runtime.list_pods().now_or_never().unwrap().unwrap();
        let found = pods.iter().find_map(|pod| {
            let container = pod.containers.iter().find(|container| container.id == *id)?;
            Some((pod.uid.clone(), container.name.clone()))
        });
        found.unwrap_or_else(|| (PodUid::new("nobody"), "gone".into()))
    }

    fn owner_of_sandbox(&self, id: &SandboxId) -> PodUid {
        let pods = self.runtime.list_pods().now_or_never().unwrap().unwrap();
        let found = pods.iter().find(|pod| pod.sandboxes.iter().any(|sandbox| sandbox.id == *id));
        found.map_or_else(|| PodUid::new("nobody"), |pod| pod.uid.clone())
    }
}

/// Stands for the UID in calls that are about no pod.
pub(super) static NODE: LazyLock<PodUid> = LazyLock::new(|| PodUid::new("node"));

pub(super) struct FaultyRuntime {
    machine: Arc<Machine>,
    /// Events that are not delivered yet, by delivery time.
    events: Mutex<BTreeSet<(Instant, u64, PodUid)>>,
}

impl FaultyRuntime {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        FaultyRuntime { machine, events: Mutex::default() }
    }

    /// Queues an event of the runtime below, as its fault says.
    fn send(&self, uid: PodUid) {
        let mut events = self.events.lock();
        let now = Instant::now();
        let mut put = |at: Instant| {
            let number = events.len() as u64;
            events.insert((at, number, uid.clone()));
        };
        match self.machine.draw_fault(Op::Event, &uid) {
            Some(Fault::Lost) => {}
            Some(Fault::Slow(time) | Fault::Late(time)) => put(now + time),
            Some(Fault::Twice) => {
                put(now);
                put(now + Duration::from_millis(700));
            }
            _ => put(now),
        }
    }
}

impl ContainerRuntime for FaultyRuntime {
    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>> {
        self.machine.call(Op::List, &NODE, CallDetail::Nothing, self.machine.runtime.list_pods()).boxed()
    }

    fn pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus> {
        self.machine.call(Op::Status, uid, CallDetail::Nothing, self.machine.runtime.pod_status(uid)).boxed()
    }

    fn run_sandbox(&self, config: SandboxConfig) -> RuntimeFuture<'_, SandboxId> {
        async move {
            let (uid, about) = (config.pod.uid().clone(), CallDetail::Attempt(config.attempt));
            let mut late = LateSandbox { machine: &self.machine, config: Some(config.clone()) };
            let made = self.machine.call(Op::RunSandbox, &uid, about, self.machine.runtime.run_sandbox(config)).await;
            late.config = None;
            made
        }
        .boxed()
    }

    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        async move {
            let uid = self.machine.owner_of_sandbox(id);
            self.machine
                .call(Op::StopSandbox, &uid, CallDetail::Sandbox(id.clone()), self.machine.runtime.stop_sandbox(id))
                .await
        }
        .boxed()
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        async move {
            let uid = self.machine.owner_of_sandbox(id);
            self.machine
                .call(Op::RemoveSandbox, &uid, CallDetail::Sandbox(id.clone()), self.machine.runtime.remove_sandbox(id))
                .await
        }
        .boxed()
    }

    fn ensure_image<'a>(
        &'a self,
        request: ImageRequest<'a>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>> {
        let about = CallDetail::Image(request.image.to_owned());
        let work = self.machine.runtime.ensure_image(request, cancel);
        self.machine.call(Op::Pull, request.pod.uid(), about, work).boxed()
    }

    fn create_container(&self, config: ContainerConfig) -> RuntimeFuture<'_, ContainerId> {
        async move {
            let uid = config.pod.uid().clone();
            let about = CallDetail::New {
                name: config.name.clone(),
                restart_count: config.restart_count,
                sandbox: config.sandbox.clone(),
            };
            self.machine.check_devices(&uid, Some(&config));
            self.machine.check_earlier_versions(&config.pod);
            let spec = config.pod.containers().iter().chain(config.pod.init_containers());
            let container = spec.into_iter().find(|container| container.name == config.name.as_str());
            // An ephemeral container has no resources.
            let amounts = container.map(|it| Amounts::in_pod(&config.pod, it)).unwrap_or_default();
            let work = async {
                let id = self.machine.runtime.create_container(config).await?;
                self.machine.resources_applied(&id, amounts);
                Ok(id)
            };
            self.machine.call(Op::Create, &uid, about, work).await
        }
        .boxed()
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        async move {
            let (uid, name) = self.machine.owner_of_container(id);
            let about = CallDetail::Run { name, id: id.clone() };
            self.machine.check_devices(&uid, None);
            let work = async {
                let mut dropped = DroppedStart { machine: &self.machine, start: Some((uid.clone(), id.clone())) };
                self.machine.reach(Op::Start, Moment::Begin).await;
                let started = self.machine.runtime.start_container(id).await;
                dropped.start = None;
                self.machine.reach(Op::Start, Moment::End).await;
                started
            };
            self.machine.call(Op::Start, &uid, about, work).await
        }
        .boxed()
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeFuture<'a, ()> {
        async move {
            let (uid, name) = self.machine.owner_of_container(id);
            let about = CallDetail::Stop { name, id: id.clone(), grace };
            let work = async {
                self.machine.reach(Op::Stop, Moment::Begin).await;
                let stopped = self.machine.runtime.stop_container(id, grace).await;
                self.machine.reach(Op::Stop, Moment::End).await;
                stopped
            };
            self.machine.call(Op::Stop, &uid, about, work).await
        }
        .boxed()
    }

    fn update_container<'a>(&'a self, id: &'a ContainerId, update: ContainerUpdate) -> RuntimeFuture<'a, ()> {
        async move {
            let machine = &self.machine;
            let (uid, name) = machine.owner_of_container(id);
            let about = CallDetail::Run { name, id: id.clone() };
            let work = async {
                machine.reach(Op::UpdateContainer, Moment::Begin).await;
                machine.runtime.update_container(id, update.clone()).await?;
                machine.resources_applied(id, Amounts::of(Some(&update.resources)));
                machine.reach(Op::UpdateContainer, Moment::End).await;
                Ok(())
            };
            machine.call(Op::UpdateContainer, &uid, about, work).await
        }
        .boxed()
    }

    /// Every container uses little memory, so that no resize has to wait until it uses less.
    fn process_usage<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, ProcessUsage> {
        async move {
            let status = self.machine.runtime_status(uid);
            let running = status.containers.iter().filter(|run| run.state == ContainerState::Running);
            Ok(running
                .map(|run| (run.name.to_string(), ContainerProcesses { memory: 1 << 20, processes: 1 }))
                .collect())
        }
        .boxed()
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, keep_log: bool) -> RuntimeFuture<'a, ()> {
        async move {
            let (uid, name) = self.machine.owner_of_container(id);
            let about = CallDetail::Run { name, id: id.clone() };
            self.machine.call(Op::Remove, &uid, about, self.machine.runtime.remove_container(id, keep_log)).await
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
            let (uid, name) = self.machine.owner_of_container(id);
            let about = CallDetail::Command { name, id: id.clone(), command: command.join(" ") };
            let is_hook = command.first().is_some_and(|word| word == "hook");
            let work = async {
                if is_hook {
                    self.machine.reach(Op::Exec, Moment::Begin).await;
                }
                let done = self.machine.runtime.exec(id, command, timeout).await;
                if is_hook {
                    self.machine.reach(Op::Exec, Moment::End).await;
                }
                done
            };
            let work = self.machine.call(Op::Exec, &uid, about, work);
            let late = || RuntimeError::Timeout { call: "exec", after: timeout };
            let done = tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| Err(late()));
            if is_hook && done.as_ref().is_ok_and(|done| done.exit_code == 0) {
                self.machine.hooked(&uid, id);
            }
            done
        }
        .boxed()
    }

    fn next_event(&self) -> BoxFuture<'_, PodUid> {
        if !self.has_events() {
            return std::future::pending().boxed();
        }
        async {
            loop {
                let first = {
                    let mut events = self.events.lock();
                    let first = events.first().map(|(at, _, _)| *at);
                    if first.is_some_and(|at| at <= Instant::now()) {
                        return events.pop_first().map(|(_, _, uid)| uid).unwrap();
                    }
                    first
                };
                let arrival = async {
                    match first {
                        Some(at) => sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    uid = self.machine.runtime.next_event() => self.send(uid),
                    () = arrival => {}
                }
            }
        }
        .boxed()
    }

    fn has_events(&self) -> bool {
        self.machine.scenario.with_events
    }
}

/// Creates the sandbox of a dropped call later, for every second pod.
struct LateSandbox<'a> {
    machine: &'a Machine,
    config: Option<SandboxConfig>,
}

impl Drop for LateSandbox<'_> {
    fn drop(&mut self) {
        let seed = self.machine.scenario.seed;
        let chosen = |config: &SandboxConfig| Rng::of(seed, &[config.pod.full_name().as_str().as_bytes()]).percent(50);
        let config = self.config.take().filter(chosen);
        if let Some(config) = config {
            self.machine.add_late_sandbox(config);
        }
    }
}

/// Reports the start of a container whose call is dropped before it took effect.
struct DroppedStart<'a> {
    machine: &'a Machine,
    start: Option<(PodUid, ContainerId)>,
}

impl Drop for DroppedStart<'_> {
    fn drop(&mut self) {
        if let Some((uid, id)) = self.start.take() {
            self.machine.start_dropped(uid, id);
        }
    }
}

pub(super) struct FaultyNetwork {
    machine: Arc<Machine>,
    below: SimulatedNetwork,
}

impl FaultyNetwork {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        let below = machine.runtime.network();
        FaultyNetwork { machine, below }
    }

    async fn within<T>(
        &self,
        host: &str,
        timeout: Duration,
        work: impl Future<Output = Result<T, NetworkError>>,
    ) -> Result<T, NetworkError> {
        let call = self.machine.call(Op::Network, &NODE, CallDetail::Host(host.to_owned()), work);
        tokio::time::timeout(timeout, call).await.unwrap_or(Err(NetworkError::Timeout(timeout)))
    }
}

impl NetworkClient for FaultyNetwork {
    fn http_get(&self, target: HttpTarget, timeout: Duration) -> BoxFuture<'_, Result<(u16, String), NetworkError>> {
        async move {
            let host = target.host.clone();
            self.within(&host, timeout, self.below.http_get(target, timeout)).await
        }
        .boxed()
    }

    fn tcp_connect(&self, target: TcpTarget, timeout: Duration) -> BoxFuture<'_, Result<(), NetworkError>> {
        async move {
            let host = target.host.clone();
            self.within(&host, timeout, self.below.tcp_connect(target, timeout)).await
        }
        .boxed()
    }

    fn grpc_check(&self, target: GrpcTarget, timeout: Duration) -> BoxFuture<'_, Result<GrpcHealth, NetworkError>> {
        async move {
            let host = target.host.clone();
            self.within(&host, timeout, self.below.grpc_check(target, timeout)).await
        }
        .boxed()
    }
}
