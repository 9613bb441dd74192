//! A runtime that only runs commands, and a network, both with scripted answers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::pod::PodObject;
use crate::ports::{
    Clock, ContainerConfig, ContainerRuntime, EventRecorder, ExecOutput, GrpcHealth, GrpcTarget, HttpTarget,
    ImageError, ImageRequest, NetworkClient, NetworkError, PodEvent, PodRuntimeStatus, RuntimeError, RuntimeFuture,
    RuntimePod, SandboxConfig, TcpTarget, TokioClock,
};
use crate::probe_manager::{ProbeChange, ProbePorts};
use crate::run_facts::RunFacts;
use crate::time::Time;

type ExecAnswer = Arc<dyn Fn(&str) -> Result<ExecOutput, RuntimeError> + Send + Sync>;

/// All fake ports of the manager.
pub(super) struct Fakes {
    pub(super) clock: TokioClock,
    pub(super) start: Time,
    /// The exit code of a command, by its first word.
    pub(super) exec: Mutex<ExecAnswer>,
    /// The duration of a command.
    pub(super) exec_time: Mutex<Duration>,
    pub(super) http: Mutex<Result<(u16, String), NetworkError>>,
    pub(super) requests: Mutex<Vec<(Time, String)>>,
    pub(super) events: Mutex<Vec<String>>,
    pub(super) changes: Mutex<Vec<ProbeChange>>,
    pub(super) run_facts: Arc<RunFacts>,
}

impl Fakes {
    pub(super) fn new() -> Arc<Self> {
        Fakes::after(RunFacts::in_memory())
    }

    /// The fakes of an agent that has these facts.
    pub(super) fn after(run_facts: RunFacts) -> Arc<Self> {
        let start = Time::from_secs(1_000_000);
        Arc::new(Fakes {
            clock: TokioClock::starting_at(start),
            start,
            exec: Mutex::new(Arc::new(|_| Ok(ExecOutput::default()))),
            exec_time: Mutex::default(),
            http: Mutex::new(Ok((200, String::new()))),
            requests: Mutex::default(),
            events: Mutex::default(),
            changes: Mutex::default(),
            run_facts: Arc::new(run_facts),
        })
    }

    pub(super) fn ports(self: &Arc<Self>) -> ProbePorts {
        let clock: Arc<dyn Clock> = Arc::new(self.clock);
        let metrics = podwright_metrics::Metrics::new().probes;
        ProbePorts {
            runtime: self.clone(),
            network: self.clone(),
            clock,
            events: self.clone(),
            metrics,
            host_ips: vec!["192.0.2.1".parse().unwrap()].into(),
            run_facts: self.run_facts.clone(),
        }
    }

    pub(super) fn on_exec(&self, answer: impl Fn(&str) -> Result<ExecOutput, RuntimeError> + Send + Sync + 'static) {
        *self.exec.lock() = Arc::new(answer);
    }

    /// The calls so far, with the seconds since the start.
    pub(super) fn take_requests(&self) -> Vec<(u64, String)> {
        self.requests.lock().drain(..).map(|(at, what)| (at.since(self.start).as_secs(), what)).collect()
    }

    fn note(&self, what: String) {
        self.requests.lock().push((self.clock.now(), what));
    }
}

impl EventRecorder for Fakes {
    fn record(&self, _pod: &Arc<PodObject>, event: PodEvent) {
        self.events.lock().push(format!("{}: {}", event.reason, event.message));
    }
}

impl NetworkClient for Fakes {
    fn http_get(&self, target: HttpTarget, _timeout: Duration) -> BoxFuture<'_, Result<(u16, String), NetworkError>> {
        self.note(format!("http {}:{}{}", target.host, target.port, target.path));
        let answer = self.http.lock().clone();
        async move { answer }.boxed()
    }

    fn tcp_connect(&self, target: TcpTarget, _timeout: Duration) -> BoxFuture<'_, Result<(), NetworkError>> {
        self.note(format!("tcp {}:{}", target.host, target.port));
        async { Err(NetworkError::failed("connection refused")) }.boxed()
    }

    fn grpc_check(&self, target: GrpcTarget, _timeout: Duration) -> BoxFuture<'_, Result<GrpcHealth, NetworkError>> {
        self.note(format!("grpc {}:{} {}", target.host, target.port, target.service));
        async { Ok(GrpcHealth::NotServing) }.boxed()
    }
}

fn never<'a, T: Send + 'a>() -> RuntimeFuture<'a, T> {
    async { panic!("probes run commands only") }.boxed()
}

impl ContainerRuntime for Fakes {
    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        _timeout: Duration,
    ) -> RuntimeFuture<'a, ExecOutput> {
        async move {
            self.note(format!("exec {id} {}", command[0]));
            let (answer, time) = (Arc::clone(&*self.exec.lock()), *self.exec_time.lock());
            tokio::time::sleep(time).await;
            answer(&command[0])
        }
        .boxed()
    }

    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>> {
        never()
    }

    fn pod_status<'a>(&'a self, _: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus> {
        never()
    }

    fn run_sandbox(&self, _: SandboxConfig) -> RuntimeFuture<'_, SandboxId> {
        never()
    }

    fn stop_sandbox<'a>(&'a self, _: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        never()
    }

    fn remove_sandbox<'a>(&'a self, _: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        never()
    }

    fn ensure_image<'a>(
        &'a self,
        _: ImageRequest<'a>,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>> {
        async { panic!("probes run commands only") }.boxed()
    }

    fn create_container(&self, _: ContainerConfig) -> RuntimeFuture<'_, ContainerId> {
        never()
    }

    fn start_container<'a>(&'a self, _: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        never()
    }

    fn stop_container<'a>(&'a self, _: &'a ContainerId, _: Duration) -> RuntimeFuture<'a, ()> {
        never()
    }

    fn remove_container<'a>(&'a self, _: &'a ContainerId, _: bool) -> RuntimeFuture<'a, ()> {
        never()
    }

    fn next_event(&self) -> BoxFuture<'_, PodUid> {
        std::future::pending().boxed()
    }

    fn has_events(&self) -> bool {
        false
    }
}
