//! A runtime whose commands have scripted answers, and a network with such answers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_fixtures::scripted_runtime::ScriptedRuntime;

use crate::pod::PodObject;
use crate::ports::{
    Clock, EventRecorder, ExecOutput, GrpcHealth, GrpcTarget, HttpTarget, NetworkClient, NetworkError, PodEvent,
    RuntimeError, TcpTarget, TokioClock,
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
            runtime: Arc::new(self.runtime()),
            network: self.clone(),
            clock,
            events: self.clone(),
            metrics,
            host_ips: vec!["192.0.2.1".parse().unwrap()].into(),
            run_facts: self.run_facts.clone(),
        }
    }

    /// A runtime whose commands end as `exec` and `exec_time` say.
    fn runtime(self: &Arc<Self>) -> ScriptedRuntime {
        let runtime = ScriptedRuntime::new(self.clock, false);
        let fakes = self.clone();
        runtime.on_exec(move |id, command| {
            let (fakes, id, command) = (fakes.clone(), id.clone(), command[0].clone());
            async move {
                fakes.note(format!("exec {id} {command}"));
                let (answer, time) = (Arc::clone(&*fakes.exec.lock()), *fakes.exec_time.lock());
                tokio::time::sleep(time).await;
                answer(&command)
            }
            .boxed()
        });
        runtime
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
