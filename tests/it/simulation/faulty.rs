//! The runtime and the network as an agent meets them: slow, failing, panicking, with news that are late, lost or told
//! twice. What is below them does what it is told.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright::adapters::simulated::SimulatedNetwork;
use podwright_actors::ids::{ContainerId, ContainerName, PodUid, SandboxId};
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{
    ContainerConfig, ContainerRuntime, ExecOutput, GrpcTarget, HttpTarget, ImageError, NetworkClient, NetworkError,
    PodRuntimeStatus, RuntimeError, RuntimeFuture, RuntimePod, SandboxConfig, TcpTarget,
};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::rng::Rng;
use super::scenario::{Fault, Op};
use super::world::{About, World};

/// A call that fails says so.
pub(super) trait Failed {
    fn failed(after: bool) -> Self;
}

impl Failed for RuntimeError {
    fn failed(after: bool) -> Self {
        match after {
            true => RuntimeError::Timeout { call: "a call", after: Duration::from_secs(1) },
            false => RuntimeError::Unreachable("simulated".into()),
        }
    }
}

impl Failed for ImageError {
    fn failed(_: bool) -> Self {
        ImageError::Pull("simulated".into())
    }
}

impl Failed for NetworkError {
    fn failed(_: bool) -> Self {
        NetworkError::Failed("simulated".into())
    }
}

impl World {
    /// Makes a call with what befalls it.
    pub(super) async fn call<T, E: Failed>(
        &self,
        op: Op,
        uid: &PodUid,
        about: About,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let landing = self.begin(op, uid, about);
        match landing.fault {
            Some(Fault::Error) => {
                landing.answered("failed");
                return Err(E::failed(false));
            }
            // Not by the macro: the panic hook would print each.
            Some(Fault::Panic) => resume_unwind(Box::new("simulated")),
            Some(Fault::Slow(time)) => sleep(time).await,
            Some(Fault::ErrorAfter | Fault::Late(_) | Fault::PanicAfter | Fault::Lost | Fault::Twice) | None => {}
        }
        let result = work.await;
        self.truth(uid);
        match landing.fault {
            Some(Fault::ErrorAfter) if result.is_ok() => {
                landing.answered("done, and failed");
                return Err(E::failed(true));
            }
            Some(Fault::PanicAfter) => resume_unwind(Box::new("simulated")),
            Some(Fault::Late(time)) => sleep(time).await,
            _ => {}
        }
        landing.answered(if result.is_ok() { "ok" } else { "failed by itself" });
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

/// For all that is not about one pod.
pub(super) static NODE: LazyLock<PodUid> = LazyLock::new(|| PodUid::new("node"));

pub(super) struct Faulty {
    world: Arc<World>,
    /// News on their way.
    news: Mutex<BTreeSet<(Instant, u64, PodUid)>>,
}

impl Faulty {
    pub(super) fn new(world: Arc<World>) -> Self {
        Faulty { world, news: Mutex::default() }
    }

    /// News from below set out.
    fn send(&self, uid: PodUid) {
        let mut news = self.news.lock();
        let now = Instant::now();
        let mut put = |at: Instant| {
            let number = news.len() as u64;
            news.insert((at, number, uid.clone()));
        };
        match self.world.fate(Op::Event, &uid) {
            Some(Fault::Lost) => {}
            Some(Fault::Slow(time) | Fault::Late(time)) => put(now + time),
            Some(Fault::Twice) => {
                put(now);
                put(now + Duration::from_millis(700));
            }
            Some(Fault::Error | Fault::ErrorAfter | Fault::Panic | Fault::PanicAfter) | None => put(now),
        }
    }
}

impl ContainerRuntime for Faulty {
    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>> {
        self.world.call(Op::List, &NODE, About::Nothing, self.world.runtime.list_pods()).boxed()
    }

    fn pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus> {
        self.world.call(Op::Status, uid, About::Nothing, self.world.runtime.pod_status(uid)).boxed()
    }

    fn run_sandbox(&self, config: SandboxConfig) -> RuntimeFuture<'_, SandboxId> {
        async move {
            let (uid, about) = (config.pod.uid().clone(), About::Attempt(config.attempt));
            let mut late = Late { world: &self.world, config: Some(config.clone()) };
            let made = self.world.call(Op::RunSandbox, &uid, about, self.world.runtime.run_sandbox(config)).await;
            late.config = None;
            made
        }
        .boxed()
    }

    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        async move {
            let uid = self.world.owner_of_sandbox(id);
            self.world
                .call(Op::StopSandbox, &uid, About::Sandbox(id.clone()), self.world.runtime.stop_sandbox(id))
                .await
        }
        .boxed()
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        async move {
            let uid = self.world.owner_of_sandbox(id);
            self.world
                .call(Op::RemoveSandbox, &uid, About::Sandbox(id.clone()), self.world.runtime.remove_sandbox(id))
                .await
        }
        .boxed()
    }

    fn ensure_image<'a>(
        &'a self,
        pod: &'a Arc<PodObject>,
        image: &'a str,
        policy: Option<&'a str>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>> {
        let work = self.world.runtime.ensure_image(pod, image, policy, cancel);
        self.world.call(Op::Pull, pod.uid(), About::Image(image.to_owned()), work).boxed()
    }

    fn create_container(&self, config: ContainerConfig) -> RuntimeFuture<'_, ContainerId> {
        async move {
            let uid = config.pod.uid().clone();
            let about = About::New {
                name: config.name.clone(),
                restart_count: config.restart_count,
                sandbox: config.sandbox.clone(),
            };
            self.world.call(Op::Create, &uid, about, self.world.runtime.create_container(config)).await
        }
        .boxed()
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        async move {
            let (uid, name) = self.world.owner_of_container(id);
            let about = About::Run { name, id: id.clone() };
            self.world.call(Op::Start, &uid, about, self.world.runtime.start_container(id)).await
        }
        .boxed()
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeFuture<'a, ()> {
        async move {
            let (uid, name) = self.world.owner_of_container(id);
            let about = About::Stop { name, id: id.clone(), grace };
            self.world.call(Op::Stop, &uid, about, self.world.runtime.stop_container(id, grace)).await
        }
        .boxed()
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, keep_log: bool) -> RuntimeFuture<'a, ()> {
        async move {
            let (uid, name) = self.world.owner_of_container(id);
            let about = About::Run { name, id: id.clone() };
            self.world.call(Op::Remove, &uid, about, self.world.runtime.remove_container(id, keep_log)).await
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
            let (uid, name) = self.world.owner_of_container(id);
            let about = About::Command { name, id: id.clone(), command: command.join(" ") };
            let work = self.world.call(Op::Exec, &uid, about, self.world.runtime.exec(id, command, timeout));
            let late = || RuntimeError::Timeout { call: "exec", after: timeout };
            tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| Err(late()))
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
                    let mut news = self.news.lock();
                    let first = news.first().map(|(at, _, _)| *at);
                    if first.is_some_and(|at| at <= Instant::now()) {
                        return news.pop_first().map(|(_, _, uid)| uid).unwrap();
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
                    uid = self.world.runtime.next_event() => self.send(uid),
                    () = arrival => {}
                }
            }
        }
        .boxed()
    }

    fn has_events(&self) -> bool {
        self.world.scenario.with_events
    }
}

/// A call that is dropped takes effect for every second pod.
struct Late<'a> {
    world: &'a World,
    config: Option<SandboxConfig>,
}

impl Drop for Late<'_> {
    fn drop(&mut self) {
        let seed = self.world.scenario.seed;
        let chosen = |config: &SandboxConfig| Rng::of(seed, &[config.pod.full_name().as_str().as_bytes()]).percent(50);
        let config = self.config.take().filter(chosen);
        if let Some(config) = config {
            self.world.make_late(config);
        }
    }
}

pub(super) struct FaultyNetwork {
    world: Arc<World>,
    below: SimulatedNetwork,
}

impl FaultyNetwork {
    pub(super) fn new(world: Arc<World>) -> Self {
        let below = world.runtime.network();
        FaultyNetwork { world, below }
    }

    async fn within<T>(
        &self,
        host: &str,
        timeout: Duration,
        work: impl Future<Output = Result<T, NetworkError>>,
    ) -> Result<T, NetworkError> {
        let call = self.world.call(Op::Network, &NODE, About::Host(host.to_owned()), work);
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

    fn grpc_check(&self, target: GrpcTarget, timeout: Duration) -> BoxFuture<'_, Result<bool, NetworkError>> {
        async move {
            let host = target.host.clone();
            self.within(&host, timeout, self.below.grpc_check(target, timeout)).await
        }
        .boxed()
    }
}
