//! Engines under random load: clients, housekeeping, and hooks that take random virtual times, fail and panic. The invariants are
//! checked inside the hooks and at the end. A test that fails prints its seed and the command to repeat it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::rc::Rc;

use futures_util::FutureExt;
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::*;
use crate::ids::FullName;
use crate::pod_worker::{Completed, Notifier, UpdateKind};
use crate::ports::{HookContext, Observed, SyncError, SyncOutcome, SyncPod, TerminatingPod};
use crate::testing::pod;

const SEEDS: u64 = 200;

#[actix::test]
async fn invariants_hold_under_random_updates_failures_and_panics() {
    tokio::time::pause();
    let first = podwright_random::seed();
    let mut calls = 0;
    for seed in first..first + podwright_random::times(SEEDS) {
        match AssertUnwindSafe(run_world(seed)).catch_unwind().await {
            Ok(made) => calls += made,
            Err(panic) => {
                eprintln!(
                    "repeat with: {}={seed} cargo nextest run --locked -p podwright-actors invariants_hold",
                    podwright_random::SEED
                );
                resume_unwind(panic);
            }
        }
    }
    assert!(calls > 0);
}

/// Random numbers that a seed repeats.
struct Random(fastrand::Rng);

impl Random {
    fn new(seed: u64) -> Self {
        Random(fastrand::Rng::with_seed(seed))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0.u64(..limit)
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Often zero, mostly short, sometimes long.
    fn pause(&mut self) -> Duration {
        let longest = [0, 1, 50, 3_000, 20_000][self.below(5) as usize];
        Duration::from_millis(self.below(longest + 1))
    }
}

/// Hooks that take random times, fail and panic.
struct Chaos(Mutex<ChaosState>);

struct ChaosState {
    random: Random,
    calm: bool,
    calls: usize,
    lives: HashMap<PodUid, Life>,
    /// The static pod of each full name that was synced and is not cleaned up.
    started: HashMap<FullName, PodUid>,
    violations: Vec<String>,
}

/// One life of a UID: from its first sync until it is cleaned up.
#[derive(Default)]
struct Life {
    inside: bool,
    stopping: bool,
    stopped: bool,
    grace: Option<Grace>,
    version: Option<String>,
}

impl Chaos {
    /// Begins a hook call: checks the invariants and draws what the call will do.
    fn enter(&self, uid: &PodUid, check: impl FnOnce(&mut Life) -> Result<(), &'static str>) -> (Duration, bool, u64) {
        let mut seen = self.0.lock();
        let seen = &mut *seen;
        seen.calls += 1;
        let life = seen.lives.entry(uid.clone()).or_default();
        if std::mem::replace(&mut life.inside, true) {
            seen.violations.push(format!("{uid}: two hook calls at once (POD-I3)"));
        }
        if let Err(violation) = check(life) {
            seen.violations.push(format!("{uid}: {violation}"));
        }
        let faults = if seen.calm { 100 } else { seen.random.below(100) };
        (if seen.calm { Duration::ZERO } else { seen.random.pause() }, seen.random.percent(70), faults)
    }

    async fn act(&self, cx: &HookContext, (takes, listens, faults): (Duration, bool, u64)) -> Result<(), SyncError> {
        let _inside = Inside { chaos: self, uid: &cx.uid };
        if listens {
            tokio::select! {
                () = tokio::time::sleep(takes) => {}
                () = cx.cancelled() => return Err(SyncError::Cancelled),
            }
        } else {
            tokio::time::sleep(takes).await;
        }
        match faults {
            0..3 => resume_unwind(Box::new("chaos")),
            3..20 => Err(SyncError::failed("chaos")),
            _ => Ok(()),
        }
    }

    fn end_of_life(&self, uid: &PodUid) {
        let mut seen = self.0.lock();
        seen.lives.remove(uid);
        seen.started.retain(|_, started| started != uid);
    }
}

struct Inside<'a> {
    chaos: &'a Chaos,
    uid: &'a PodUid,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(life) = self.chaos.0.lock().lives.get_mut(self.uid) {
            life.inside = false;
        }
    }
}

impl PodSyncer for Chaos {
    async fn sync_pod(&self, cx: &HookContext, work: &SyncPod) -> Result<SyncOutcome, SyncError> {
        let version = work.pod.metadata().labels.as_ref().and_then(|labels| labels.get("v").cloned());
        let plan = self.enter(&cx.uid, |life| {
            life.version = version;
            if life.stopping { Err("synced while terminating (POD-I2)") } else { Ok(()) }
        });
        if work.pod.is_static() {
            let mut seen = self.0.lock();
            let started = seen.started.entry(work.pod.full_name().clone()).or_insert_with(|| cx.uid.clone()).clone();
            if started != cx.uid {
                seen.violations.push(format!("{} started beside {started} (POD-I8)", cx.uid));
            }
        }
        self.act(cx, plan).await?;
        let mut seen = self.0.lock();
        let ends = !seen.calm && seen.random.percent(10);
        if ends {
            seen.lives.entry(cx.uid.clone()).or_default().stopping = true;
        }
        Ok(if ends { SyncOutcome::Terminal } else { SyncOutcome::Continue { check_at: None } })
    }

    async fn sync_terminating_pod(&self, cx: &HookContext, work: &TerminatingPod) -> Result<(), SyncError> {
        let plan = self.enter(&cx.uid, |life| {
            life.stopping = true;
            let before = life.grace.replace(work.grace);
            match before {
                _ if life.stopped => Err("stopped twice (POD-I2)"),
                Some(before) if before < work.grace => Err("the grace period grew (POD-I5)"),
                _ => Ok(()),
            }
        });
        self.act(cx, plan).await?;
        self.0.lock().lives.entry(cx.uid.clone()).or_default().stopped = true;
        Ok(())
    }

    async fn sync_terminating_runtime_pod(
        &self,
        cx: &HookContext,
        _running: &RunningPod,
        _: Grace,
    ) -> Result<(), SyncError> {
        let plan = self.enter(&cx.uid, |life| {
            let stopped = life.stopped;
            life.stopping = true;
            if stopped { Err("stopped twice (POD-I2)") } else { Ok(()) }
        });
        self.act(cx, plan).await?;
        self.end_of_life(&cx.uid);
        Ok(())
    }

    async fn sync_terminated_pod(&self, cx: &HookContext, _pod: &Arc<PodObject>) -> Result<(), SyncError> {
        let plan = self.enter(&cx.uid, |life| {
            life.stopping = true;
            life.stopped = true;
            Ok(())
        });
        self.act(cx, plan).await?;
        self.end_of_life(&cx.uid);
        Ok(())
    }
}

/// One engine with its clients.
struct World {
    engine: Engine,
    view: Arc<View>,
    desired: RefCell<HashSet<PodUid>>,
    waiting: RefCell<Vec<Completed>>,
}

/// The UID and the name of each pod, and whether it is a static pod.
const UIDS: [(&str, &str, bool); 10] = [
    ("api 1", "api 1", false),
    ("api 2", "api 2", false),
    ("api 3", "api 3", false),
    ("api 4", "api 4", false),
    ("web 1", "web", true),
    ("web 2", "web", true),
    ("web 3", "web", true),
    ("log 1", "log", true),
    ("log 2", "log", true),
    ("log 3", "log", true),
];

fn some_pod(random: &mut Random) -> crate::testing::PodBuilder {
    let (uid, name, is_static) = UIDS[random.below(10) as usize];
    built(uid, name, is_static).label("v", &random.below(1_000).to_string())
}

fn built(uid: &str, name: &str, is_static: bool) -> crate::testing::PodBuilder {
    let pod = pod(name).uid(uid);
    if is_static { pod.static_pod() } else { pod }
}

/// Runs one world to its end. Returns the number of hook calls.
async fn run_world(seed: u64) -> usize {
    let random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let seen = ChaosState {
        random,
        calm: false,
        calls: 0,
        lives: HashMap::new(),
        started: HashMap::new(),
        violations: Vec::new(),
    };
    let chaos = Arc::new(Chaos(Mutex::new(seen)));
    let view = Arc::new(View::default());
    let config = EngineConfig { threads: Threads::Current, seed: Some(seed), ..EngineConfig::default() };
    let engine = Engine::builder(chaos.clone()).config(config).view(view.clone()).start().unwrap();
    let (desired, waiting) = (RefCell::default(), RefCell::default());
    let world = Rc::new(World { engine, view, desired, waiting });

    let clients = (0..4).map(|n| client(world.clone(), Random::new(seed ^ (n + 1) << 32), 40));
    let housekeeper = actix::spawn(housekeeping(world.clone(), Random::new(!seed)));
    join_all(clients).await;
    housekeeper.abort();
    chaos.0.lock().calm = true;

    // The newest update is always processed (POD-I4).
    for (uid, name, is_static) in UIDS {
        world.engine.update_pod(Update::changed(built(uid, name, is_static).label("v", "last").build()));
    }
    pass_secs(120).await;
    let mut stuck = Vec::new();
    for (uid, ..) in UIDS {
        let uid = PodUid::new(uid);
        let seen = chaos.0.lock();
        let version = seen.lives.get(&uid).and_then(|life| life.version.clone());
        match world.engine.lifecycle(&uid) {
            Some(Lifecycle::Sync) if version.as_deref() == Some("last") => {}
            Some(Lifecycle::Waiting | Lifecycle::Finished) | None => {}
            other => stuck.push(format!("{uid}: {other:?}, version {version:?}")),
        }
    }
    assert_eq!(stuck, Vec::<String>::new(), "after two minutes without failures (POD-I4, POD-I9)");

    // No pod hangs (POD-I9), and no notifier waits for a pod that cannot run (POD-W2).
    for _ in 0..60 {
        world.engine.sync_known_pods(&HashSet::new());
        pass_secs(2).await;
    }
    assert_eq!(world.engine.known_pods(), 0, "{:?}", world.engine.snapshots());
    for completed in world.waiting.take() {
        assert_eq!(completed.now_or_never(), Some(true), "a notifier was lost");
    }
    assert!(world.engine.inner().names.is_empty());
    let seen = chaos.0.lock();
    assert_eq!(seen.violations, Vec::<String>::new());
    seen.calls
}

async fn client(world: Rc<World>, mut random: Random, steps: usize) {
    for _ in 0..steps {
        tokio::time::sleep(random.pause()).await;
        let target = some_pod(&mut random);
        let target = if random.percent(10) { target.phase("Failed") } else { target };
        let deletes = random.percent(10);
        let target = if deletes { target.deleting(random.below(40) as i64) } else { target }.build();
        world
            .view
            .shows(target.uid(), [Observed::Never, Observed::Running, Observed::Stopped][random.below(3) as usize]);
        let before = world.engine.lifecycle(target.uid());
        let update = match random.below(10) {
            0..4 => {
                world.desired.borrow_mut().insert(target.uid().clone());
                Update::create(target.clone())
            }
            4..6 => Update::changed(target.clone()),
            6 => Update::sync(target.clone()),
            7 => runtime_kill(&target.uid().to_string()),
            _ => Update::kill(target.clone()),
        };
        let kills = update.kind() == UpdateKind::Kill;
        let completed = random.percent(30).then(|| {
            let (notifier, completed) = Notifier::new();
            world.waiting.borrow_mut().push(completed);
            notifier
        });
        let grace = random.percent(50).then(|| Grace::from_seconds(random.below(60) as i64));
        let options = KillOptions { completed, evict: random.percent(30), status_fn: None, grace };
        world.engine.update_pod(update.with_options(options));
        let after = world.engine.lifecycle(target.uid());
        assert!(after.is_some() && after >= before, "the lifecycle went back (POD-I2)");
        assert!(!kills || after >= Some(Lifecycle::Terminating), "a kill was lost (POD-I4)");
        if random.percent(10) {
            world.desired.borrow_mut().remove(target.uid());
        }
        if random.percent(5)
            && let Some(hold) = world.engine.hold(target.uid())
        {
            tokio::time::sleep(random.pause()).await;
            drop(hold);
        }
    }
}

/// Runs housekeeping every two seconds. Creates desired pods without a record again (POD-K10).
async fn housekeeping(world: Rc<World>, mut random: Random) {
    loop {
        pass_secs(2).await;
        let desired = world.desired.borrow().clone();
        let known: HashSet<_> = world.engine.sync_known_pods(&desired).into_iter().map(|pod| pod.uid).collect();
        for (uid, name, is_static) in UIDS {
            let uid_ = PodUid::new(uid);
            if desired.contains(&uid_) && !known.contains(&uid_) && random.percent(80) {
                world.engine.update_pod(Update::create(built(uid, name, is_static).build()));
            }
        }
    }
}
