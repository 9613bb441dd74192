//! Agents that are killed while they prepare and release a claim. The next agent completes the work: nothing stays prepared, and
//! nothing is released that a process uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use futures_util::future::join_all;
use parking_lot::Mutex;
use podwright::dra_driver::{
    CallError, Claim, ClaimRef, ClaimResults, ClaimUid, Driver, DriverBuilder, Failure, PreparedDevice,
};
use podwright_stand_in::User;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::Notify;

use super::claim_cluster::{ClaimCluster, DRIVER, recorded};
use crate::agent::harness::eventually;
use crate::support::processes::kill;

/// The pods, which share the claim.
const PODS: [&str; 2] = ["a", "b"];

/// Kills the agent at a chosen moment.
struct Killer {
    /// The number of the moment at which it kills, counted from 1.
    at: usize,
    seen: AtomicUsize,
    agent: AtomicU32,
    killed: Notify,
}

impl Killer {
    fn at(at: usize) -> Arc<Self> {
        Arc::new(Killer { at, seen: AtomicUsize::new(0), agent: AtomicU32::new(0), killed: Notify::new() })
    }

    /// Counts a moment, and kills the agent if it is the chosen one.
    fn moment(&self) {
        let agent = self.agent.load(Ordering::SeqCst);
        if agent != 0 && self.seen.fetch_add(1, Ordering::SeqCst) + 1 == self.at {
            kill(agent, Signal::KILL);
            self.killed.notify_one();
        }
    }

    fn has_killed(&self) -> bool {
        self.seen.load(Ordering::SeqCst) >= self.at
    }

    /// Counts the changes of the file of claims and of its journal as moments, until the directory is removed.
    fn watch(self: &Arc<Self>, root: &Path) {
        let watched = inotify::init(CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watched, root, WatchFlags::CREATE | WatchFlags::MODIFY | WatchFlags::MOVED_TO).unwrap();
        let killer = self.clone();
        std::thread::spawn(move || {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut events = Reader::new(watched, &mut buffer);
            while let Ok(event) = events.next() {
                if event.events().contains(ReadFlags::IGNORED) {
                    return;
                }
                let name = event.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                if name.contains("dra_manager_state") {
                    killer.moment();
                }
            }
        });
    }
}

/// A driver that checks each call. Its calls count as moments.
struct StrictDriver {
    calls: Option<Arc<Killer>>,
    root: PathBuf,
    shared: PathBuf,
    state: Arc<Mutex<DriverState>>,
}

#[derive(Default)]
struct DriverState {
    prepared: BTreeSet<ClaimUid>,
    calls: BTreeMap<&'static str, usize>,
    faults: Vec<String>,
}

impl StrictDriver {
    fn begin(&self, call: &'static str) {
        *self.state.lock().calls.entry(call).or_default() += 1;
        // A claim that the agent can forget in a crash must not be prepared.
        if recorded(&self.root).is_empty() {
            self.state.lock().faults.push(format!("{call} of a claim that is not in the file"));
        }
        self.moment();
    }

    fn moment(&self) {
        if let Some(killer) = &self.calls {
            killer.moment();
        }
    }
}

impl Driver for StrictDriver {
    async fn prepare(&self, claims: Vec<Claim>) -> Result<ClaimResults<Vec<PreparedDevice>>, CallError> {
        self.begin("prepare");
        let mut results = ClaimResults::new();
        for claim in claims {
            self.state.lock().prepared.insert(claim.uid().clone());
            let devices = claim.results().map(|result| PreparedDevice {
                pool: result.pool.clone(),
                device: result.device.clone(),
                requests: vec![result.request.clone()],
                ..PreparedDevice::default()
            });
            results.insert(claim.uid().clone(), Ok(devices.collect()));
        }
        self.moment();
        Ok(results)
    }

    async fn unprepare(&self, claims: Vec<ClaimRef>) -> Result<ClaimResults<()>, CallError> {
        self.begin("unprepare");
        if let Some(user) = PODS.into_iter().find(|pod| is_running(&self.shared, pod)) {
            self.state.lock().faults.push(format!("the claim is released while {user} uses it"));
        }
        let mut results = ClaimResults::new();
        for claim in claims {
            self.state.lock().prepared.remove(&claim.uid);
            results.insert(claim.uid, Ok(()));
        }
        self.moment();
        Ok(results)
    }

    fn failed(&self, failure: Failure) {
        self.state.lock().faults.push(failure.to_string());
    }
}

/// Whether the process of a pod runs: it holds a lock for its whole life.
fn is_running(shared: &Path, pod: &str) -> bool {
    File::open(shared.join(format!("lock-{pod}"))).is_ok_and(|file| file.try_lock().is_err())
}

/// Runs two pods with one claim, and deletes one after the other. Meanwhile the agent is killed at most once, and the next one
/// continues. Returns whether it was killed.
async fn round(at: usize, moments_are_writes: bool) -> bool {
    let cluster = ClaimCluster::start().await;
    let (root, shared) = (cluster.home.root().to_owned(), cluster.home.shared().to_owned());
    let (killer, state) = (Killer::at(at), Arc::<Mutex<DriverState>>::default());
    let calls = (!moments_are_writes).then(|| killer.clone());
    let driver = StrictDriver { calls, root: root.clone(), shared: shared.clone(), state: state.clone() };
    let agent = cluster.agent().await;
    let data = root.join("plugins").join(DRIVER);
    fs::create_dir_all(&data).unwrap();
    // The agent may not have created its directory yet.
    fs::create_dir_all(root.join("plugins_registry")).unwrap();
    let driver = DriverBuilder::new(DRIVER, driver).node_name("n1").client(cluster.server.client(&User::admin()).await);
    let driver = driver.registrar_dir(root.join("plugins_registry")).data_dir(data).start().await.unwrap();
    if moments_are_writes {
        killer.watch(&root);
    }
    killer.agent.store(agent.pid(), Ordering::SeqCst);

    let next_agent = async {
        killer.killed.notified().await;
        let mut agent = agent;
        agent.ended().await;
        let _next = cluster.agent().await;
        std::future::pending::<()>().await;
    };
    let pods = async {
        cluster.claim("cam");
        for pod in PODS {
            let lock = shared.join(format!("lock-{pod}"));
            fs::write(&lock, "").unwrap();
            cluster.create_pod_with(pod, "cam", &format!("exec 9<{0}; flock -s 9; exec sleep 1000", lock.display()));
        }
        cluster.allocate("cam", "device-0", DRIVER, &PODS);
        PODS.into_iter().for_each(|pod| cluster.bind(pod));
        for pod in PODS {
            let runs = || async { (cluster.phase(pod) == "Running" && is_running(&shared, pod)).then_some(()) };
            eventually(&format!("{pod} runs"), runs).await;
        }
        cluster.delete("a");
        cluster.is_gone("a").await;
        assert!(is_running(&shared, "b") && state.lock().prepared.len() == 1, "round {at}");
        cluster.delete("b");
        cluster.is_gone("b").await;
        assert!(PODS.into_iter().all(|pod| !is_running(&shared, pod)), "round {at}");
        assert_eq!(cluster.recorded(), [], "round {at}");
        assert_eq!(cluster.pod("a"), Value::Null);
    };
    tokio::select! { () = pods => {} () = next_agent => {} }

    driver.stop().await;
    let state = state.lock();
    assert!(state.faults.is_empty(), "round {at}: {:?}", state.faults);
    assert!(state.prepared.is_empty(), "round {at}: the claim stays prepared");
    let killed = usize::from(killer.has_killed());
    for (call, count) in &state.calls {
        assert!(*count <= 1 + killed, "round {at}: {count} calls of {call}");
    }
    killed == 1
}

#[tokio::test]
async fn next_agent_completes_the_calls_at_which_the_agent_is_killed() {
    // Each call of a driver is a moment when it arrives, and another one when the driver answers.
    let killed = join_all((1..=4).map(|at| round(at, false))).await;
    assert_eq!(killed, [true; 4]);
}

#[tokio::test]
async fn next_agent_completes_what_a_kill_at_a_write_of_the_file_interrupts() {
    for first in (1..).step_by(4) {
        let killed = join_all((first..first + 4).map(|at| round(at, true))).await;
        if !killed.contains(&true) {
            assert!(first > 4, "the agent writes the file");
            break;
        }
    }
}
