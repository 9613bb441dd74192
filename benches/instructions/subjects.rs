//! The subjects. Each one prepares its data and then runs the counted operation several times inside [`counted_region`]. Only
//! that region is counted.

use std::collections::HashSet;
use std::env;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix::{System, SystemRunner};
use podwright_core::pod_worker::Update;
use podwright_core::pod_worker::state::Record;
use podwright_core::pod_worker::step::{Event, Outcome, StepContext, new_record, step};
use podwright_engine::recorder::Recorder;
use podwright_engine::{Engine, EngineConfig, Threads};
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_model::time::{Grace, Time};
use podwright_ports::{
    Clock, HookContext, Observed, PodSyncer, RunningPod, SyncError, SyncOutcome, SyncPod, TerminatingPod,
};

use crate::pods::{pod, pods};
use crate::refused::Refused;

/// An operation whose instructions are counted.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    /// Runs the operation and returns how often it ran.
    pub(crate) run: fn() -> usize,
}

/// All subjects.
pub(crate) const SUBJECTS: &[Subject] = &[
    Subject { name: "step_update", run: step_update },
    Subject { name: "step_sync", run: step_sync },
    Subject { name: "update_pod_wakes", run: update_wakes },
    Subject { name: "update_pod_merges", run: update_merges },
    Subject { name: "worker_sync", run: worker_sync },
    Subject { name: "worker_retry", run: worker_retry },
    Subject { name: "lifecycle", run: lifecycle },
    Subject { name: "query", run: query },
];

/// If this environment variable is set, the engine runs without a recorder. The difference is the cost of the recorder.
pub(crate) const UNRECORDED: &str = "PODWRIGHT_BENCH_UNRECORDED";

/// The kubelet's `backOffPeriod`.
const ERROR_BACKOFF: Duration = Duration::from_secs(10);
const CALLS: usize = 1_000;
const PODS: usize = 250;
const ROUNDS: usize = 4;

/// Valgrind counts the instructions between the entry and the exit of this function. It finds the function by name, so no
/// other function name of the program may contain this name.
#[inline(never)]
fn counted_region<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// An update of a running, idle pod, in the core alone.
fn step_update() -> usize {
    let (mut record, pod) = running();
    for i in 0..CALLS {
        let event = Event::Update(Update::sync(pod.clone()));
        drop(counted_region(|| step(&mut record, event, tick(i))));
        finish(&mut record, i);
    }
    CALLS
}

/// An update that the worker takes and completes, in the core alone.
fn step_sync() -> usize {
    let (mut record, pod) = running();
    for i in 0..CALLS {
        let event = Event::Update(Update::sync(pod.clone()));
        counted_region(|| {
            drop(black_box(step(&mut record, event, tick(i))));
            finish(&mut record, i);
        });
    }
    CALLS
}

/// A record of a pod that was set up once.
fn running() -> (Record, Arc<PodObject>) {
    let pod = pod(0);
    let (mut record, _effects) = new_record(Update::create(pod.clone()), Observed::Never, tick(0));
    finish(&mut record, 0);
    (record, pod)
}

fn finish(record: &mut Record, i: usize) {
    drop(black_box(step(record, Event::Take { may_start: true, observed: Observed::Never }, tick(i))));
    drop(black_box(step(record, Event::Done(Outcome::Continues { check_at: None }), tick(i))));
}

fn tick(i: usize) -> StepContext {
    StepContext {
        now: Time::from_secs(1_000 + i as u64),
        jitter: 0.25,
        resync: Duration::from_secs(60),
        error_backoff: Duration::from_secs(10),
    }
}

/// `update_pod` of an idle pod: the worker is woken.
fn update_wakes() -> usize {
    let bed = Bed::idle();
    for _ in 0..ROUNDS {
        counted_region(|| bed.update_all());
        bed.work_off(PODS);
    }
    PODS * ROUNDS
}

/// `update_pod` of a pod with a pending update: the newer update replaces it.
fn update_merges() -> usize {
    let bed = Bed::idle();
    bed.update_all();
    for _ in 0..ROUNDS {
        counted_region(|| bed.update_all());
    }
    bed.work_off(PODS);
    PODS * ROUNDS
}

/// The turn of a woken worker: it takes the update, calls the hook, records the success and sleeps.
fn worker_sync() -> usize {
    let bed = Bed::idle();
    for _ in 0..ROUNDS {
        bed.update_all();
        counted_region(|| bed.work_off(PODS));
    }
    PODS * ROUNDS
}

/// The turn of a worker whose retry is due and whose hook fails again.
fn worker_retry() -> usize {
    let hooks = Arc::new(Hooks { fails: true, ..Hooks::default() });
    let bed = Bed::with(hooks, Duration::ZERO);
    // The backoff is zero, so more syncs run than requested.
    (0..ROUNDS).map(|_| counted_region(|| bed.work_off(PODS))).sum()
}

/// The lifecycle of a pod: created, set up, killed, stopped, cleaned up, forgotten.
fn lifecycle() -> usize {
    let bed = Bed::idle();
    let live = || {
        for pod in &bed.pods {
            bed.engine.update_pod(Update::kill(pod.clone()));
        }
        bed.run_until(|hooks| &hooks.clean_ups, PODS);
        black_box(bed.engine.sync_known_pods(&HashSet::<PodUid>::new()));
        for pod in &bed.pods {
            bed.engine.update_pod(Update::create(pod.clone()));
        }
        bed.work_off(PODS);
    };
    live();
    for _ in 0..ROUNDS {
        counted_region(live);
    }
    PODS * ROUNDS
}

/// A query about a known pod.
fn query() -> usize {
    let bed = Bed::idle();
    for _ in 0..ROUNDS {
        counted_region(|| {
            for pod in &bed.pods {
                black_box(bed.engine.could_have_running_containers(pod.uid()));
            }
        });
    }
    PODS * ROUNDS
}

/// An engine on this thread. Its workers run only inside [`Bed::work_off`], so the counts are the same in each run.
struct Bed {
    pods: Vec<Arc<PodObject>>,
    engine: Engine,
    hooks: Arc<Hooks>,
    runner: SystemRunner,
}

impl Bed {
    /// Creates an engine with pods that were set up once.
    fn idle() -> Self {
        Bed::with(Arc::new(Hooks::default()), ERROR_BACKOFF)
    }

    fn with(hooks: Arc<Hooks>, error_backoff: Duration) -> Self {
        let runner = System::new();
        let config = EngineConfig::default().threads(Threads::Current).seed(1).error_backoff(error_backoff);
        // The default size of an agent's recording.
        let recorder = env::var_os(UNRECORDED).is_none().then(|| Arc::new(Recorder::new(16 << 20)));
        let engine = runner
            .block_on(async {
                let mut builder = Engine::builder(hooks.clone()).config(config).clock(Arc::new(Still));
                if let Some(recorder) = recorder {
                    builder = builder.recorder(recorder);
                }
                builder.start()
            })
            .expect("an arbiter runs on this thread");
        let bed = Bed { pods: pods(PODS), engine, hooks, runner };
        for pod in &bed.pods {
            bed.engine.update_pod(Update::create(pod.clone()));
        }
        bed.work_off(PODS);
        // A second round, because the first work allocates timers and buffers.
        bed.update_all();
        bed.work_off(PODS);
        bed
    }

    fn update_all(&self) {
        for pod in &self.pods {
            self.engine.update_pod(Update::sync(pod.clone()));
        }
    }

    /// Runs the workers until this many syncs have run.
    fn work_off(&self, syncs: usize) -> usize {
        self.run_until(|hooks| &hooks.syncs, syncs)
    }

    /// Runs the workers until the counter reaches `goal`. Returns the counter and resets it.
    fn run_until(&self, counter: fn(&Hooks) -> &AtomicUsize, goal: usize) -> usize {
        let counter = counter(&self.hooks);
        self.runner.block_on(async {
            while counter.load(Ordering::Relaxed) < goal {
                tokio::task::yield_now().await;
            }
        });
        counter.swap(0, Ordering::Relaxed)
    }
}

/// A clock that stands still, because times are meaningless under valgrind and on a busy machine.
struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time::from_secs(1_000)
    }
}

#[derive(Default)]
struct Hooks {
    syncs: AtomicUsize,
    clean_ups: AtomicUsize,
    fails: bool,
}

impl PodSyncer for Hooks {
    async fn sync_pod(&self, _cx: &HookContext, _work: &SyncPod) -> Result<SyncOutcome, SyncError> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        if self.fails {
            return Err(SyncError::failed(Refused));
        }
        Ok(SyncOutcome::Continue { check_at: None })
    }

    async fn sync_terminating_pod(&self, _cx: &HookContext, _work: &TerminatingPod) -> Result<(), SyncError> {
        Ok(())
    }

    async fn sync_terminating_runtime_pod(
        &self,
        _cx: &HookContext,
        _running: &RunningPod,
        _: Grace,
    ) -> Result<(), SyncError> {
        Ok(())
    }

    async fn sync_terminated_pod(&self, _cx: &HookContext, _pod: &Arc<PodObject>) -> Result<(), SyncError> {
        self.clean_ups.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
