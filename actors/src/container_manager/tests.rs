mod start;
mod stop;
mod sync;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt;

use super::fake_runtime::{FakeRuntime, Script};
use super::*;
use crate::containers::fixtures::*;
use crate::containers::plan::plan;
use crate::ports::{
    GrpcTarget, HttpTarget, NetworkError, PodEvent, StorageError, SyncRetry, TcpTarget, TokioClock, Unused,
};
use crate::time::{Grace, Time};

/// A manager with a fake on every port.
struct World {
    runtime: Arc<FakeRuntime>,
    told: Arc<Told>,
    manager: ContainerManager,
    clock: TokioClock,
}

/// What the ports were told, and what they answer.
#[derive(Default)]
struct Told {
    events: Mutex<Vec<PodEvent>>,
    counts: Mutex<Vec<String>>,
    /// How many starts wait, and how many may run.
    starts: Mutex<(usize, usize)>,
    network: Mutex<Vec<String>>,
    /// The headers of the calls over HTTP.
    headers: Mutex<Vec<Vec<(String, String)>>>,
    network_broken: Mutex<bool>,
    /// The servers speak no TLS.
    without_tls: Mutex<bool>,
    sandboxes: Mutex<Vec<String>>,
    claims_broken: Mutex<bool>,
    config_broken: Mutex<bool>,
    restarts_by_log: Mutex<HashMap<String, u32>>,
    sleeps_cut: AtomicU32,
    http_fallbacks: AtomicU32,
}

impl World {
    fn new() -> Self {
        let clock = TokioClock::starting_at(Time::from_secs(2_000_000));
        let runtime = Arc::new(FakeRuntime::new(clock));
        let told = Arc::new(Told::default());
        let ports = ContainerPorts {
            recorder: None,
            runtime: runtime.clone(),
            network: told.clone(),
            storage: told.clone(),
            events: told.clone(),
            clock: Arc::new(clock),
            resolver: told.clone(),
            sandboxes: told.clone(),
            counter: told.clone(),
        };
        let manager = ContainerManager::new(ContainersConfig::default(), ports);
        World { runtime, told, manager, clock }
    }

    async fn sync(&self, pod: &Arc<PodObject>) -> SyncContainersResult {
        self.sync_with(pod, &CancellationToken::new(), &ProbeSnapshot::new()).await
    }

    async fn sync_with(
        &self,
        pod: &Arc<PodObject>,
        cancel: &CancellationToken,
        probes: &ProbeSnapshot,
    ) -> SyncContainersResult {
        let work = SyncWork { cancel, pod, status: &self.runtime.status(), probes, volumes: &VolumeMounts::new() };
        self.manager.sync_containers(&work, &plan(pod, work.status, probes)).await
    }

    /// Syncs until nothing is left to do, and forgets the calls.
    async fn settled(&self, pod: &Arc<PodObject>) {
        for _ in 0..10 {
            let result = self.sync(pod).await;
            assert!(result.error.is_none(), "{:?}", result.error);
            if !result.acted {
                self.runtime.calls();
                self.told.events.lock().clear();
                self.told.counts.lock().clear();
                return;
            }
        }
        panic!("the pod does not come to rest");
    }

    async fn kill(&self, pod: &Arc<PodObject>, grace: Option<i64>) -> Result<(), SyncError> {
        self.kill_until(pod, grace, &CancellationToken::new()).await
    }

    async fn kill_until(
        &self,
        pod: &Arc<PodObject>,
        grace: Option<i64>,
        cancel: &CancellationToken,
    ) -> Result<(), SyncError> {
        let running = RunningParts::from(&self.runtime.status());
        self.manager.kill_pod(cancel, pod.uid(), Some(pod), &running, grace.map(Grace::from_seconds)).await
    }

    fn reasons(&self) -> Vec<Cow<'static, str>> {
        self.told.events.lock().iter().map(|event| event.reason.clone()).collect()
    }

    fn waiting(&self, pod: &PodObject) -> Vec<(String, &'static str)> {
        let errors = self.manager.start_errors().of(pod.uid());
        errors.into_iter().map(|(name, error)| (name.to_string(), error.reason)).collect()
    }

    /// Seconds until a backoff is over, if that is what the sync ran into.
    fn backoff(&self, result: &SyncContainersResult) -> Option<u64> {
        match result.error.as_ref()?.retry() {
            SyncRetry::At(until) => Some(until.since(self.clock.now()).as_secs()),
            SyncRetry::NetworkNotReady | SyncRetry::Backoff => None,
        }
    }
}

impl EventRecorder for Told {
    fn record(&self, _: &Arc<PodObject>, event: PodEvent) {
        self.events.lock().push(event);
    }
}

impl StartCounter for Told {
    fn sandbox_attempted(&self, _: &PodObject) {
        self.counts.lock().push("sandbox".into());
    }

    fn sandbox_failed(&self, _: &PodObject) {
        self.counts.lock().push("sandbox failed".into());
    }

    fn container_attempted(&self, kind: ContainerKind) {
        self.counts.lock().push(format!("{kind:?}"));
    }

    fn container_failed(&self, kind: ContainerKind, reason: &'static str) {
        self.counts.lock().push(format!("{kind:?} {reason}"));
    }

    fn starts(&self, waiting: usize, limit: usize) {
        *self.starts.lock() = (waiting, limit);
    }

    fn sleep_cut_short(&self) {
        self.sleeps_cut.fetch_add(1, Ordering::Relaxed);
    }

    fn hook_fell_back_to_http(&self) {
        self.http_fallbacks.fetch_add(1, Ordering::Relaxed);
    }
}

impl SandboxHooks for Told {
    fn before_create<'a>(&'a self, _: &'a Arc<PodObject>) -> BoxFuture<'a, Result<(), SyncError>> {
        self.sandboxes.lock().push("before".into());
        let result = if *self.claims_broken.lock() { Err(SyncError::failed("claim not ready")) } else { Ok(()) };
        async { result }.boxed()
    }

    fn created(&self, _: &Arc<PodObject>, sandbox: &SandboxId) {
        self.sandboxes.lock().push(format!("created {sandbox}"));
    }
}

impl ContainerResolver for Told {
    fn resolve(&self, wanted: &ResolveRequest<'_>) -> Result<ResolvedContainer, String> {
        if *self.config_broken.lock() {
            return Err("no such key".into());
        }
        Ok(ResolvedContainer { args: vec![format!("{:?}", wanted.pod_ips)], ..ResolvedContainer::default() })
    }
}

impl NetworkClient for Told {
    fn http_get(&self, target: HttpTarget, _: Duration) -> BoxFuture<'_, Result<(u16, String), NetworkError>> {
        let scheme = if target.https { "https" } else { "http" };
        self.network.lock().push(format!("{scheme}://{}:{}{}", target.host, target.port, target.path));
        self.headers.lock().push(target.headers);
        let answer = if *self.network_broken.lock() {
            Err(NetworkError::Failed("refused".into()))
        } else if target.https && *self.without_tls.lock() {
            Err(NetworkError::PlainHttp)
        } else {
            Ok((500, String::new()))
        };
        async move { answer }.boxed()
    }

    fn tcp_connect(&self, target: TcpTarget, _: Duration) -> BoxFuture<'_, Result<(), NetworkError>> {
        self.network.lock().push(format!("tcp {}:{}", target.host, target.port));
        async { Ok(()) }.boxed()
    }

    fn grpc_check(&self, _: GrpcTarget, _: Duration) -> BoxFuture<'_, Result<bool, NetworkError>> {
        async { Ok(true) }.boxed()
    }
}

impl PodStorage for Told {
    fn set_up<'a>(&'a self, _: &'a Arc<PodObject>) -> BoxFuture<'a, Result<VolumeMounts, StorageError>> {
        async { Ok(VolumeMounts::new()) }.boxed()
    }

    fn tear_down<'a>(&'a self, _: &'a PodUid) -> BoxFuture<'a, Result<(), StorageError>> {
        async { Ok(()) }.boxed()
    }

    fn remove_pod<'a>(&'a self, _: &'a PodUid, _: Unused) -> BoxFuture<'a, Result<(), StorageError>> {
        async { Ok(()) }.boxed()
    }

    fn pods(&self) -> BoxFuture<'_, Result<Vec<PodUid>, StorageError>> {
        async { Ok(Vec::new()) }.boxed()
    }

    fn restarts_by_log<'a>(&'a self, _: &'a PodObject, container: &'a str) -> BoxFuture<'a, Option<u32>> {
        let count = self.restarts_by_log.lock().get(container).copied();
        async move { count }.boxed()
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
