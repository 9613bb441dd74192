mod post_start;
mod runtime;
mod start;
mod stop;
mod sync;

use std::borrow::Cow;
use std::collections::HashMap;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_fixtures::containers::*;
use podwright_metrics::Format;

use self::runtime::{OnePod, Script};
use super::*;
use crate::containers::plan::plan;
use crate::ports::{
    GrpcHealth, GrpcTarget, HttpTarget, NetworkError, NoCheckpoint, PodEvent, StorageError, SyncRetry, TcpTarget,
    TokioClock, Unused,
};
use crate::probes::{ContainerProbes, ProbeResult};
use crate::time::{Grace, Time};

/// The results of probes, by the name of the run: startup and liveness.
fn probes(of: &[(&str, Option<ProbeResult>, Option<ProbeResult>)]) -> ProbeSnapshot {
    of.iter()
        .map(|(id, startup, liveness)| {
            ((*id).into(), ContainerProbes { startup: *startup, liveness: *liveness, readiness: None })
        })
        .collect()
}

/// A manager with fake ports.
struct Rig {
    runtime: OnePod,
    fakes: Arc<FakePorts>,
    manager: ContainerManager,
    statuses: Arc<Statuses>,
    metrics: Metrics,
    clock: TokioClock,
}

/// Fake ports that record their calls.
#[derive(Default)]
struct FakePorts {
    events: Mutex<Vec<PodEvent>>,
    network: Mutex<Vec<String>>,
    /// The headers of the HTTP calls.
    headers: Mutex<Vec<Vec<(String, String)>>>,
    network_broken: Mutex<bool>,
    /// Whether the servers lack TLS.
    without_tls: Mutex<bool>,
    restarts_by_log: Mutex<HashMap<String, u32>>,
}

impl Rig {
    fn new() -> Self {
        Rig::with(RunFacts::in_memory())
    }

    fn with(run_facts: RunFacts) -> Self {
        let clock = TokioClock::starting_at(Time::from_secs(2_000_000));
        let runtime = OnePod::new(clock);
        let fakes = Arc::new(FakePorts::default());
        let metrics = Metrics::new();
        let statuses = Arc::new(Statuses::new(Arc::new(clock), metrics.clone()));
        let ports = ContainerPorts {
            resources: None,
            recorder: None,
            cgroups: None,
            resizes: Arc::new(Resizes::in_memory(Arc::new(clock), fakes.clone(), metrics.resize.clone())),
            run_facts: Arc::new(run_facts),
            runtime: runtime.port(),
            network: fakes.clone(),
            storage: fakes.clone(),
            objects: None,
            events: fakes.clone(),
            clock: Arc::new(clock),
            resolver: ContainerResolver::default(),
            statuses: statuses.clone(),
            metrics: metrics.clone(),
            starts: Arc::new(PodStarts::new(Arc::new(clock), metrics.start.clone())),
        };
        let manager = ContainerManager::new(ContainersConfig::default(), ports);
        Rig { runtime, fakes, manager, statuses, metrics, clock }
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

    /// Syncs until nothing changes, and forgets the calls.
    async fn settled(&self, pod: &Arc<PodObject>) {
        for _ in 0..10 {
            let result = self.sync(pod).await;
            assert!(result.error.is_none(), "{:?}", result.error);
            if !result.acted {
                self.runtime.calls();
                self.fakes.events.lock().clear();
                return;
            }
        }
        panic!("the pod keeps changing");
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
        self.fakes.events.lock().iter().map(|event| event.reason.clone()).collect()
    }

    /// The message of the first event with this reason.
    fn event(&self, reason: &str) -> String {
        let events = self.fakes.events.lock();
        events.iter().find(|event| event.reason == reason).map(|event| event.message.clone()).unwrap_or_default()
    }

    /// The value of a metric's series, named as in the Prometheus text; 0 if it is absent.
    fn metric(&self, series: &str) -> u64 {
        let text = self.metrics.encode(Format::Classic);
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }

    /// The number of attempted sandbox creations and regular container starts.
    fn attempts(&self) -> (u64, u64) {
        (
            self.metric("kubelet_started_pods_total"),
            self.metric("kubelet_started_containers_total{container_type=\"container\"}"),
        )
    }

    fn waiting(&self, pod: &PodObject) -> Vec<(String, &'static str)> {
        let errors = self.manager.start_errors().of(pod.uid());
        errors.into_iter().map(|(name, error)| (name.to_string(), error.reason)).collect()
    }

    /// Seconds until the end of the backoff, if the sync failed with one.
    fn backoff(&self, result: &SyncContainersResult) -> Option<u64> {
        match result.error.as_ref()?.retry() {
            SyncRetry::At(until) => Some(until.since(self.clock.now()).as_secs()),
            SyncRetry::NetworkNotReady | SyncRetry::Backoff => None,
        }
    }
}

impl EventRecorder for FakePorts {
    fn record(&self, _: &Arc<PodObject>, event: PodEvent) {
        self.events.lock().push(event);
    }
}

impl NetworkClient for FakePorts {
    fn http_get(&self, target: HttpTarget, _: Duration) -> BoxFuture<'_, Result<(u16, String), NetworkError>> {
        let scheme = if target.https { "https" } else { "http" };
        self.network.lock().push(format!("{scheme}://{}:{}{}", target.host, target.port, target.path));
        self.headers.lock().push(target.headers);
        let answer = if *self.network_broken.lock() {
            Err(NetworkError::failed("refused"))
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

    fn grpc_check(&self, _: GrpcTarget, _: Duration) -> BoxFuture<'_, Result<GrpcHealth, NetworkError>> {
        async { Ok(GrpcHealth::Serving) }.boxed()
    }
}

impl PodStorage for FakePorts {
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
