//! The phases of the benchmark: N pods on one node are created, idle, fail, are updated and are deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ContainerState, Pod, PodStatus};
use podwright::adapters::checkpoint::FileCheckpoint;
use podwright::adapters::simulated::{SimulatedConfig, SimulatedRuntime};
use podwright_actors::node::{Node, NodeHandle, NodePorts};
use podwright_core::admission::NodeCapacity;
use podwright_engine::EngineConfig;
use podwright_engine::recorder::Recorder;
use podwright_metrics::{Format, Metrics};
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::{Clock, ContainerRuntime, SourceKind, SourceSet, TokioClock};
use serde_json::{Map, Value};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::marks::{Mark, Marks};
use crate::pods;
use crate::ports::{NoStorage, Watched};
use crate::process::{cpu_time, resident};

/// How long the idle node is measured. The time contains housekeeping passes, relists and some of the resyncs.
pub(crate) const IDLE: Duration = Duration::from_secs(20);
/// In the phase `fail`, one of this many pods loses its container.
const FAILING: usize = 10;
/// How many containers end one after the other, to measure the time from an exit to the status.
const EXITS: usize = 200;
/// The time between two checks whether a phase has ended.
const POLL: Duration = Duration::from_millis(1);

/// Runs all phases and returns the figures.
pub(crate) fn run(n: usize, idle: Duration) -> Map<String, Value> {
    actix::System::new().block_on(live(n, idle))
}

struct Bed {
    node: NodeHandle,
    runtime: SimulatedRuntime,
    metrics: Metrics,
    marks: Arc<Marks>,
    figures: Map<String, Value>,
    n: usize,
    /// The directory of the journal.
    _dir: TempDir,
}

async fn live(n: usize, idle: Duration) -> Map<String, Value> {
    let created = objects(n, |_| {});
    let updated = objects(n, |pod| pod.metadata.labels = Some(BTreeMap::from([("v".to_owned(), "2".to_owned())])));
    let deleted = objects(n, |pod| {
        pod.metadata.labels = Some(BTreeMap::from([("v".to_owned(), "2".to_owned())]));
        pod.metadata.deletion_timestamp = Some(Time::from_secs(1_800_000_000).to_api());
        pod.metadata.deletion_grace_period_seconds = Some(30);
    });
    let all: Vec<PodUid> = created.iter().map(|pod| pod.uid().clone()).collect();
    let marks = Arc::new(Marks::new(all.iter().cloned()));
    let mut bed = Bed::start(n, marks);
    bed.deliver(Vec::new()).await;
    let mut healthy = bed.node.healthy();
    healthy.wait_for(|healthy| *healthy).await.expect("the node runs");

    let nothing = resident();
    bed.phase("create", Mark::Running, &all, async |bed| bed.deliver(created.clone()).await).await;
    sleep(idle / 4).await;
    let running = resident();
    bed.figure("create_bytes_per_pod", (running as f64 - nothing as f64) / n as f64);

    let (cpu, start) = (cpu_time(), Instant::now());
    sleep(idle).await;
    let cpu = (cpu_time() - cpu).as_secs_f64() / start.elapsed().as_secs_f64();
    bed.figure("idle_cpu_percent", cpu * 100.0);
    bed.figure("idle_cpu_us_per_pod", cpu * 1e6 / n as f64);
    let list = Instant::now();
    drop(bed.runtime.list_pods().await);
    bed.figure("list_us_per_pod", list.elapsed().as_secs_f64() * 1e6 / n as f64);
    let scrape = Instant::now();
    drop(bed.metrics.encode(Format::Classic));
    bed.figure("scrape_us", scrape.elapsed().as_secs_f64() * 1e6);

    let ending: Vec<_> = all.iter().skip(1).step_by((n / EXITS).max(1)).cloned().collect();
    bed.exits(&ending).await;
    let failing: Vec<_> = all.iter().step_by(FAILING).cloned().collect();
    let fail = async |bed: &Bed| failing.iter().for_each(|uid| assert!(bed.runtime.exit(uid, "main", 1)));
    bed.phase("fail", Mark::RunningAgain, &failing, fail).await;
    drop(created);

    bed.phase("update", Mark::Synced, &all, async |bed| bed.deliver(updated.clone()).await).await;
    drop(updated);
    bed.phase("delete", Mark::Gone, &all, async |bed| bed.deliver(deleted.clone()).await).await;
    drop(deleted);
    let (cpu, start) = (cpu_time(), Instant::now());
    bed.deliver(Vec::new()).await;
    while bed.node.engine().known_pods() > 0 || !bed.runtime.list_pods().await.is_ok_and(|pods| pods.is_empty()) {
        sleep(POLL * 10).await;
    }
    bed.figure("forget_s", start.elapsed().as_secs_f64());
    bed.figure("forget_cpu_us_per_pod", (cpu_time() - cpu).as_secs_f64() * 1e6 / n as f64);
    bed.figure("peak_mib", crate::process::peak_resident() as f64 / f64::from(1 << 20));
    bed.figures
}

/// The pods, without a status.
fn objects(n: usize, edit: impl Fn(&mut Pod)) -> Vec<Arc<PodObject>> {
    let object = |i| {
        let mut pod = pods::pod(i).pod().clone();
        pod.status = None;
        edit(&mut pod);
        PodObject::new(pod).expect("the edited pod is valid")
    };
    (0..n).map(object).collect()
}

impl Bed {
    fn start(n: usize, marks: Arc<Marks>) -> Bed {
        let dir = TempDir::new().expect("the temporary directory is writable");
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let runtime = SimulatedRuntime::new(SimulatedConfig { clock: clock.clone(), ..SimulatedConfig::default() });
        let metrics = Metrics::new();
        let capacity = NodeCapacity::new(i64::MAX, i64::MAX, n);
        let watched = Watched { runtime: runtime.clone(), marks: marks.clone() };
        let ports = NodePorts::new(Arc::new(watched), Arc::new(runtime.network()), Arc::new(NoStorage(marks.clone())))
            .final_statuses(Arc::new(FileCheckpoint::new(dir.path().join("journal"))))
            .clock(clock)
            .admission(Arc::new(capacity))
            .metrics(metrics.clone())
            .recorder(Arc::new(Recorder::new(16 << 20)));
        let node = Node::builder(ports)
            .name("node1")
            .host_ips(vec!["192.0.2.1".parse().expect("an address")])
            .runtime_name("simulated")
            .sources([SourceKind::Api])
            .engine(EngineConfig::default().seed(1))
            .start()
            .expect("threads can be started");
        Bed { _dir: dir, node, runtime, metrics, marks, figures: Map::new(), n }
    }

    fn figure(&mut self, name: &str, value: f64) {
        self.figures.insert(name.to_owned(), value.into());
    }

    async fn deliver(&self, pods: Vec<Arc<PodObject>>) {
        let set = SourceSet { source: SourceKind::Api, pods, problems: Vec::new() };
        self.node.sources().send(set.into()).await.expect("the node runs");
    }

    /// Ends containers one by one, and measures the time until the status of the pod reports the exit.
    async fn exits(&mut self, uids: &[PodUid]) {
        let mut changes = self.node.statuses().subscribe();
        let mut millis = Vec::new();
        for uid in uids {
            let start = Instant::now();
            assert!(self.runtime.exit(uid, "main", 1));
            while !self.node.statuses().get(uid).is_some_and(|status| reports_exit(&status)) {
                changes.changed().await.expect("the node runs");
            }
            millis.push(start.elapsed().as_secs_f64() * 1e3);
        }
        millis.sort_by(f64::total_cmp);
        let at = |share: f64| millis[((millis.len() - 1) as f64 * share).round() as usize];
        self.figure("exit_to_status_p50_ms", at(0.5));
        self.figure("exit_to_status_p99_ms", at(0.99));
    }

    /// Calls `act` and waits until each of these pods has reached `mark`.
    async fn phase(&mut self, name: &str, mark: Mark, pods: &[PodUid], act: impl AsyncFn(&Bed)) {
        let count = pods.len();
        self.marks.wait_for(mark, pods);
        let (cpu, start) = (cpu_time(), self.marks.now());
        act(self).await;
        while self.marks.left() > 0 {
            sleep(POLL).await;
        }
        let took = (self.marks.now() - start) as f64 / 1e9;
        // Work that the phase left counts for this phase. Otherwise it would count for the next one.
        self.node.engine().quiesced().await;
        let cpu = (cpu_time() - cpu).as_secs_f64();
        let millis = self.marks.millis_since(start);
        let at = |share: f64| millis[((millis.len() - 1) as f64 * share).round() as usize];
        self.figure(&format!("{name}_pods_per_s"), count as f64 / took);
        self.figure(&format!("{name}_p50_ms"), at(0.5));
        self.figure(&format!("{name}_p99_ms"), at(0.99));
        self.figure(&format!("{name}_cpu_us_per_pod"), cpu * 1e6 / count as f64);
        self.figure(&format!("{name}_rss_mib"), resident() as f64 / f64::from(1 << 20));
        eprintln!("  {name}: {took:.2} s, {} of {}", count, self.n);
    }
}

/// Whether a container has ended, even if a later run has started since.
fn reports_exit(status: &PodStatus) -> bool {
    status.container_statuses.iter().flatten().any(|container| {
        let ended = |state: &Option<ContainerState>| state.as_ref().is_some_and(|state| state.terminated.is_some());
        ended(&container.state) || ended(&container.last_state)
    })
}
