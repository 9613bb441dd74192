//! The engine with hooks that record their calls, in paused time. A code such as POD-S1 above a test is the scenario that it checks
//! (`docs/rules.md`).

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::ids::FullName;
use crate::pod::PodObject;
use crate::pod_worker::{Hook, KillOptions, Lifecycle};
use crate::ports::{RunningPod, TokioClock};
use crate::testing::{Hooks, View};
use crate::time::{Grace, Time};

mod known_pods;
mod lock_free;
mod queries;
mod races;
mod recordings;
mod retries;
mod static_pods;
mod stops;
mod supervision;
mod threads;
mod updates;

thread_local! {
    /// Whether this thread has paused its clock. A test may have several rigs.
    static PAUSED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The time at which the tests' clock starts.
const START: Time = Time::from_secs(1_000_000);

/// An engine on the arbiter of the test, with its hooks and its view of the runtime.
struct Rig {
    hooks: Arc<Hooks>,
    view: Arc<View>,
    clock: TokioClock,
    engine: Engine,
}

fn rig() -> Rig {
    rig_with(EngineConfig::default())
}

/// The threads and the seed of the configuration are replaced.
fn rig_with(config: EngineConfig) -> Rig {
    if !PAUSED.replace(true) {
        tokio::time::pause();
    }
    let (hooks, view, clock) = (Hooks::new(), Arc::new(View::default()), TokioClock::starting_at(START));
    let config = EngineConfig { threads: Threads::Current, seed: Some(1), ..config };
    let builder = Engine::builder(hooks.clone()).config(config).clock(Arc::new(clock)).view(view.clone());
    let engine = builder.start().unwrap();
    Rig { hooks, view, clock, engine }
}

impl Rig {
    async fn settled(&self) {
        let hour = Duration::from_secs(3600);
        tokio::time::timeout(hour, self.engine.quiesced()).await.expect("the engine is quiescent within an hour");
    }

    /// Creates a pod and waits until its first sync has ended.
    async fn run(&self, pod: &Arc<PodObject>) {
        self.engine.update_pod(Update::create(pod.clone()));
        self.settled().await;
    }

    async fn update(&self, update: Update) {
        self.engine.update_pod(update);
        self.settled().await;
    }

    fn lifecycle(&self, name: &str) -> Option<Lifecycle> {
        self.engine.lifecycle(&name.into())
    }

    /// Calls `sync_known_pods`. The answer is in the order of the UIDs.
    fn known(&self, desired: &[&str]) -> Vec<KnownPod> {
        let desired: HashSet<PodUid> = desired.iter().map(|name| PodUid::new(name)).collect();
        let mut known = self.engine.sync_known_pods(&desired);
        known.sort_by_key(|pod| pod.uid.to_string());
        known
    }

    /// The UIDs in the answer of `sync_known_pods`.
    fn known_uids(&self, desired: &[&str]) -> Vec<String> {
        self.known(desired).into_iter().map(|pod| pod.uid.to_string()).collect()
    }
}

async fn pass(duration: Duration) {
    tokio::time::sleep(duration).await;
}

async fn pass_secs(seconds: u64) {
    pass(Duration::from_secs(seconds)).await;
}

/// Lets every worker run until it waits.
async fn let_workers_run() {
    pass(Duration::from_millis(2)).await;
}

fn graced(seconds: i64) -> KillOptions {
    KillOptions { grace: Some(Grace::from_seconds(seconds)), ..KillOptions::default() }
}

fn evicting() -> KillOptions {
    KillOptions { evict: true, ..KillOptions::default() }
}

fn with_reason(reason: &'static str) -> KillOptions {
    let status_fn: crate::ports::StatusFn = Arc::new(move |status| status.reason = Some(reason.to_owned()));
    KillOptions { status_fn: Some(status_fn), ..KillOptions::default() }
}

/// The update that housekeeping sends for a runtime-only pod.
fn runtime_kill(name: &str) -> Update {
    let running = RunningPod { uid: name.into(), full_name: FullName::new("test", name) };
    Update::kill_runtime(running).with_options(graced(1))
}
