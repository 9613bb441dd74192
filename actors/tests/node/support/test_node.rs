//! A whole node over fake ports, in paused time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use parking_lot::Mutex;
use podwright_actors::NodeRegistration;
use podwright_actors::eviction::EvictionPolicy;
use podwright_actors::node::{Node, NodeHandle, NodePorts};
use podwright_core::admission::{AdmissionHandler, NodeCapacity};
use podwright_core::pod_worker::Lifecycle;
use podwright_engine::recorder::Recorder;
use podwright_engine::{EngineConfig, Threads};
use podwright_fixtures::api_pods::PodBuilder;
use podwright_fixtures::fake_ports::{Events, FakeFinalStatuses, FakeStorage, NoNetwork};
use podwright_fixtures::scripted_runtime::ScriptedRuntime;
use podwright_metrics::{Format, Metrics};
use podwright_model::time::Time;
use podwright_ports::{
    ApiObjects, ContainerRuntime, HostIps, NodeApi, ResourcePhase, SourceKind, SourceProblem, SourceSet, TokioClock,
};
use tokio::time::{Instant, sleep, sleep_until};

use super::fake_cgroups::FakeCgroups;
use super::fake_disks::{FakeDisks, FakeMeter};
use super::fake_pod_api::FakePodApi;

/// The metric families whose 23 series [`TestNode::pod_counts`] checks.
const FAMILIES: [&str; 6] = [
    "kubelet_desired_pods",
    "kubelet_active_pods",
    "kubelet_mirror_pods",
    "kubelet_working_pods",
    "kubelet_restarted_pods_total",
    "kubelet_orphaned_runtime_pods_total",
];

pub(crate) struct TestNode {
    pub(crate) node: NodeHandle,
    pub(crate) runtime: Arc<ScriptedRuntime>,
    pub(crate) storage: Arc<FakeStorage>,
    pub(crate) final_statuses: Arc<FakeFinalStatuses>,
    pub(crate) run_facts: Arc<FakeFinalStatuses>,
    pub(crate) events: Arc<Events>,
    pub(crate) metrics: Metrics,
    pub(crate) clock: TokioClock,
    begin: Instant,
    /// The set that each source delivered last.
    last_sets: Mutex<[Vec<Arc<podwright_model::pod::PodObject>>; 2]>,
}

/// The fakes and settings of a node that has not started.
pub(crate) struct Setup {
    pub(crate) runtime: Arc<ScriptedRuntime>,
    pub(crate) storage: Arc<FakeStorage>,
    /// The disks and images, if they are measured.
    pub(crate) disks: Option<Arc<FakeDisks>>,
    /// The meter of memory and process ids, if they are measured.
    pub(crate) meter: Option<Arc<FakeMeter>>,
    pub(crate) eviction: EvictionPolicy,
    /// The phase of pods' resources, if pods may need any.
    pub(crate) resources: Option<Arc<dyn ResourcePhase>>,
    /// The cgroups of pods, if pods have any.
    pub(crate) cgroups: Option<Arc<FakeCgroups>>,
    /// The API server to which statuses are written, if there is one.
    pub(crate) api: Option<Arc<FakePodApi>>,
    /// The API objects that pods refer to, if there is an API server.
    pub(crate) objects: Option<Arc<dyn ApiObjects>>,
    /// The API server in which the node is registered, if there is one, and how.
    pub(crate) node_api: Option<(Arc<dyn NodeApi>, NodeRegistration)>,
    pub(crate) final_statuses: Arc<FakeFinalStatuses>,
    /// The store of the resources that are allocated to pods.
    pub(crate) allocations: Arc<FakeFinalStatuses>,
    /// The store of what the next agent has to know of the containers.
    pub(crate) run_facts: Arc<FakeFinalStatuses>,
    /// The store of the times of the last shutdown.
    pub(crate) shutdown_times: Arc<FakeFinalStatuses>,
    pub(crate) cpu_millis: i64,
    /// The addresses of the node.
    pub(crate) host_ips: HostIps,
    pub(crate) resync: Duration,
    pub(crate) sources: Vec<SourceKind>,
    pub(crate) clock: TokioClock,
    /// An admission handler that runs after the node capacity.
    pub(crate) admission: Option<Arc<dyn AdmissionHandler>>,
}

impl Setup {
    /// A setup in paused time. A runtime without events is relisted every second.
    pub(crate) fn new(with_events: bool) -> Self {
        tokio::time::pause();
        Setup::again(with_events)
    }

    /// The setup of another node, after time was paused.
    pub(crate) fn again(with_events: bool) -> Self {
        let clock = TokioClock::starting_at(Time::from_secs(1_800_000_000));
        Setup {
            runtime: Arc::new(ScriptedRuntime::new(clock, with_events)),
            storage: Arc::default(),
            disks: None,
            meter: None,
            eviction: EvictionPolicy::default(),
            resources: None,
            cgroups: None,
            api: None,
            objects: None,
            node_api: None,
            final_statuses: Arc::default(),
            allocations: Arc::default(),
            run_facts: Arc::default(),
            shutdown_times: Arc::default(),
            cpu_millis: 4000,
            host_ips: vec!["192.0.2.1".parse().unwrap()].into(),
            resync: Duration::from_secs(60),
            sources: vec![SourceKind::File, SourceKind::Api],
            clock,
            admission: None,
        }
    }

    pub(crate) fn start(self) -> TestNode {
        let Setup {
            runtime,
            storage,
            disks,
            meter,
            eviction,
            resources,
            cgroups,
            api,
            objects,
            node_api,
            final_statuses,
            allocations,
            run_facts,
            shutdown_times,
            cpu_millis,
            host_ips,
            resync,
            sources,
            clock,
            admission,
        } = self;
        let (events, metrics) = (Arc::new(Events::default()), Metrics::new());
        let capacity = NodeCapacity::new(cpu_millis, 1 << 30, 500);
        let engine = EngineConfig::default().threads(Threads::Current).seed(7).resync(resync);
        let mut ports = NodePorts::new(runtime.clone(), Arc::new(NoNetwork), storage.clone())
            .final_statuses(final_statuses.clone())
            .allocations(allocations)
            .run_facts(run_facts.clone())
            .shutdown_times(shutdown_times)
            .events(events.clone())
            .clock(Arc::new(clock))
            .admission(Arc::new(capacity))
            .metrics(metrics.clone())
            .recorder(Arc::new(Recorder::new(Recorder::SMALLEST)));
        if let Some(api) = api {
            ports = ports.pod_api(api);
        }
        if let Some(objects) = objects {
            ports = ports.objects(objects);
        }
        if let Some(admission) = admission {
            ports = ports.admission(admission);
        }
        if let Some(disks) = disks {
            ports = ports.images(disks.clone()).disks(disks);
        }
        if let Some(meter) = meter {
            ports = ports.meter(meter);
        }
        if let Some(resources) = resources {
            ports = ports.resources(resources);
        }
        if let Some(cgroups) = cgroups {
            ports = ports.cgroups(cgroups);
        }
        let mut registration = None;
        if let Some((api, settings)) = node_api {
            ports = ports.node_api(api);
            registration = Some(settings);
        }
        let mut builder = Node::builder(ports);
        if let Some(registration) = registration {
            builder = builder.registration(registration);
        }
        let node = builder
            .name("node1")
            .host_ips(host_ips)
            .runtime_name("fake")
            .sources(sources)
            .engine(engine)
            .eviction(eviction)
            .start()
            .unwrap();
        let last_sets = Mutex::default();
        let begin = Instant::now();
        TestNode { node, runtime, storage, final_statuses, run_facts, events, metrics, clock, begin, last_sets }
    }
}

impl TestNode {
    /// A node whose runtime has events and whose two sources have delivered empty sets.
    pub(crate) async fn start() -> Self {
        let node = Setup::new(true).start();
        node.deliver(&[]).await;
        node
    }

    /// Kills the agent. Returns the setup of the next one on the same machine.
    pub(crate) fn killed(self) -> Setup {
        let TestNode { node, runtime, storage, final_statuses, run_facts, clock, .. } = self;
        drop(node);
        let with_events = runtime.has_events();
        Setup { runtime, storage, final_statuses, run_facts, clock, ..Setup::again(with_events) }
    }

    /// Delivers full sets: static pods from the file source, the others from the API server.
    pub(crate) async fn deliver(&self, pods: &[PodBuilder]) {
        let (files, api) = pods.iter().map(PodBuilder::build).partition(|pod| pod.is_static());
        self.deliver_set(SourceKind::File, files, Vec::new()).await;
        self.deliver_set(SourceKind::Api, api, Vec::new()).await;
        self.settled().await;
    }

    pub(crate) async fn deliver_set(
        &self,
        source: SourceKind,
        pods: Vec<Arc<podwright_model::pod::PodObject>>,
        problems: Vec<SourceProblem>,
    ) {
        // A source delivers the same object for an unchanged pod.
        let pods: Vec<_> = {
            let mut last_sets = self.last_sets.lock();
            let last = &mut last_sets[usize::from(source == SourceKind::Api)];
            let same = |pod: &Arc<podwright_model::pod::PodObject>| {
                last.iter().find(|old| old.pod() == pod.pod()).unwrap_or(pod).clone()
            };
            let pods = pods.iter().map(same).collect::<Vec<_>>();
            last.clone_from(&pods);
            pods
        };
        self.node.sources().send(SourceSet { source, pods, problems }.into()).await.unwrap();
    }

    /// Lets the node do all work that needs no waiting.
    pub(crate) async fn settled(&self) {
        sleep(Duration::from_millis(1)).await;
    }

    pub(crate) async fn wait(&self, seconds: f64) {
        sleep(Duration::from_secs_f64(seconds)).await;
    }

    /// Waits until a time on the node's clock.
    pub(crate) async fn until(&self, seconds: f64) {
        sleep_until(self.begin + Duration::from_secs_f64(seconds)).await;
    }

    /// Seconds since the node started.
    pub(crate) fn now(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Runs one housekeeping pass, besides the periodic ones.
    pub(crate) async fn pass(&self) {
        self.node.run_housekeeping().await.unwrap();
        self.settled().await;
    }

    /// Waits for a condition. Fails after so many seconds.
    pub(crate) async fn eventually(&self, within: f64, what: &str, mut is: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs_f64(within);
        while !is() {
            assert!(Instant::now() < end, "not within {within} s: {what}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn lifecycle(&self, uid: &str) -> Option<Lifecycle> {
        self.node.engine().lifecycle(&uid.into())
    }

    pub(crate) fn status(&self, uid: &str) -> PodStatus {
        self.node.statuses().get(&uid.into()).map(|status| PodStatus::clone(&status)).unwrap_or_default()
    }

    pub(crate) fn phase(&self, uid: &str) -> String {
        self.status(uid).phase.unwrap_or_default()
    }

    pub(crate) fn reason(&self, uid: &str) -> String {
        self.status(uid).reason.unwrap_or_default()
    }

    /// One number of the exposition, or 0.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let text = self.metrics.encode(Format::Classic);
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// The non-zero series of the six families that count pods, in the form
    /// `working_pods{config,lifecycle,static} n`, sorted. Checks that the families have 23 series.
    pub(crate) fn pod_counts(&self) -> Vec<String> {
        let text = self.metrics.encode(Format::Classic);
        let mut all = BTreeSet::new();
        let mut some = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            if !FAMILIES.contains(&name) {
                continue;
            }
            let labels: Vec<&str> = labels.split('"').skip(1).step_by(2).collect();
            let short = format!("{}{{{}}}", name.strip_prefix("kubelet_").unwrap(), labels.join(","));
            if value.parse::<f64>().unwrap() != 0.0 {
                some.push(format!("{short} {value}"));
            }
            assert!(all.insert(short), "{series} twice");
        }
        assert_eq!(all.len(), 23, "{all:#?}");
        some.sort();
        some
    }
}
