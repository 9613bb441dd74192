//! The engine under test with its pods, and the steps that most workloads begin with.

use std::sync::Arc;
use std::time::Duration;

use podwright_core::pod_worker::Update;
use podwright_engine::recorder::Recorder;
use podwright_engine::{Engine, EngineConfig};
use podwright_metrics::Metrics;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::{Clock, PodSyncer, TokioClock};

use crate::hooks::Counting;
use crate::measure::scan_until;
use crate::pods::pods;

/// The step between pods in scattered order. It is prime, so that every pod is picked.
pub(crate) const STRIDE: usize = 7919;

/// How large a workload is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Pods.
    pub(crate) n: usize,
    /// The divisor of fixed numbers of the specification, such as a million updates.
    /// It is one for a measurement, and large for a run that only shows that the workload runs.
    pub(crate) shrink: usize,
}

impl Scale {
    /// A number of the specification, at this scale.
    pub(crate) fn of(&self, full: usize) -> usize {
        (full / self.shrink).max(1)
    }

    /// A time of the specification, at this scale.
    pub(crate) fn lasting(&self, full: Duration) -> Duration {
        full / u32::try_from(self.shrink).unwrap_or(u32::MAX)
    }
}

/// The kubelet's `backOffPeriod`.
pub(crate) const ERROR_BACKOFF: Duration = Duration::from_secs(10);

/// Settings of every workload: resync 60 s, backoff 10 s, the default number of threads.
pub(crate) fn config() -> EngineConfig {
    EngineConfig::default().resync(Duration::from_secs(60)).error_backoff(ERROR_BACKOFF)
}

/// The recorder that an agent has by default, because its cost is part of the targets. None if the environment has
/// `PODWRIGHT_BENCH_UNRECORDED`, to measure that cost.
fn recorder() -> Option<Arc<Recorder>> {
    std::env::var_os("PODWRIGHT_BENCH_UNRECORDED").is_none().then(|| Arc::new(Recorder::new(16 << 20)))
}

/// An engine with the real clock and metrics that a scrape would see.
pub(crate) fn start<S: PodSyncer>(hooks: Arc<S>, config: EngineConfig) -> Engine {
    let mut builder = Engine::builder(hooks).config(config).metrics(Metrics::new());
    if let Some(recorder) = recorder() {
        builder = builder.recorder(recorder);
    }
    builder.start().expect("the system gives a bench its threads")
}

/// An engine with counting hooks and N pods that it does not know yet.
pub(crate) struct Bed {
    pub(crate) pods: Vec<Arc<PodObject>>,
    pub(crate) engine: Engine,
    pub(crate) hooks: Arc<Counting>,
    clock: TokioClock,
}

impl Bed {
    pub(crate) fn new(n: usize) -> Self {
        let hooks = Counting::new();
        let engine = start(hooks.clone(), config());
        Bed { pods: pods(n), engine, hooks, clock: TokioClock::new() }
    }

    /// N idle pods.
    pub(crate) fn idle(n: usize) -> Self {
        let bed = Bed::new(n);
        bed.create(&bed.pods);
        bed.settled();
        bed
    }

    /// Creates pods, as one set of a source, and waits for their first syncs.
    pub(crate) fn create(&self, pods: &[Arc<PodObject>]) {
        let goal = self.hooks.syncs.count() + pods.len() as u64;
        create(&self.engine, pods, self.clock.now());
        self.hooks.syncs.wait_for(goal);
    }

    /// Kills pods, as one set of a source, and waits until all are finished.
    pub(crate) fn kill(&self, pods: &[Arc<PodObject>]) {
        let goal = self.hooks.clean_ups.count() + pods.len() as u64;
        let start = self.clock.now();
        for pod in pods {
            self.engine.update_pod(Update::kill(pod.clone()).with_start_time(start));
        }
        self.hooks.clean_ups.wait_for(goal);
        // The last cleanup was called, and its worker records the end within nanoseconds, so this loop does not pause.
        while !self.engine.is_quiescent() {
            std::thread::yield_now();
        }
    }

    /// Waits until no update is pending and no hook runs.
    pub(crate) fn settled(&self) {
        scan_until(|| self.engine.is_quiescent());
    }
}

/// Creates pods without waiting.
pub(crate) fn create(engine: &Engine, pods: &[Arc<PodObject>], start: Time) {
    for pod in pods {
        engine.update_pod(Update::create(pod.clone()).with_start_time(start));
    }
}

/// The pods in scattered order, endlessly.
pub(crate) fn scattered(pods: &[Arc<PodObject>]) -> impl Iterator<Item = &Arc<PodObject>> {
    let step = STRIDE % pods.len();
    let mut at = 0;
    std::iter::from_fn(move || {
        at += step;
        if at >= pods.len() {
            at -= pods.len();
        }
        pods.get(at)
    })
}
