//! Builds and starts the node.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use super::RunError;
use super::manifests::ManifestSources;
use crate::adapters::adoption::Adoption;
use crate::adapters::log::rotation::{Limits, Rotator};
use crate::adapters::storage::FileStorage;
use crate::agent::boot::{self, BootChange};
use crate::agent::cli::RunArgs;
use crate::agent::events::EventLog;
use crate::agent::instance;
use crate::agent::machine;
use crate::agent::root::RootDirectory;
use crate::agent::runtime::Runtime;
use crate::agent::runtime_ports::{RuntimeConfig, RuntimePorts};
use crate::agent::view::{NodeControl, NodeView};
use podwright_actors::NodeRegistration;
use podwright_actors::container_manager::ContainersConfig;
use podwright_actors::node::{Node, NodePorts};
use podwright_checkpoint::FileCheckpoint;
use podwright_core::admission::{NoRootPods, NodeCapacity};
use podwright_engine::recorder::{Note, Recorder};
use podwright_host::node_meter::{self, LinuxNodeMeter};
use podwright_host::stats::RuntimeStats;
use podwright_host::streaming::StreamingRuntime;
use podwright_metrics::Metrics;
use podwright_model::time::Time;
use podwright_node_api::Checkpoints;
use podwright_parts::Parts;
use podwright_ports::{
    ApiObjects, Clock, EventRecorder, HostIps, NoPullSecrets, NodeApi, PodApi, PullSecrets, ServiceAccounts,
    SourceKind, SystemClock,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// How often the addresses of the machine are read (upstream `nodeStatusUpdateFrequency`, kubelet 1.36).
const ADDRESSES_READ_EVERY: Duration = Duration::from_secs(10);
/// The file below the root directory that keeps the final statuses of pods.
const JOURNAL: &str = "journal";
/// The file below the root directory that keeps the resources that are allocated to pods.
const ALLOCATIONS: &str = "allocations";
/// The file below the root directory that keeps the facts of containers that the runtime does not know. No container outlives the boot.
const RUN_FACTS: &str = "run_facts";
/// The features that the agent declares in the status of its node (`component-helpers/nodedeclaredfeatures`, Kubernetes 1.36). The
/// scheduler binds a pod that needs one of these features only to a node that declares the feature. The API server accepts a resize that
/// needs one of them only if the node of the pod declares it.
const DECLARED_FEATURES: [&str; 4] = [
    "GuaranteedQoSPodCPUResize",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];
/// The feature of a node whose node API serves the WebSocket requests of clients. The API server then forwards these requests, and
/// translates them to SPDY otherwise (KEP-4006).
const STREAMING_FEATURE: &str = "ExtendWebSocketsToKubelet";
/// The file below the root directory that keeps the times of the last shutdown (upstream has a file of this name).
const SHUTDOWN_TIMES: &str = "graceful_node_shutdown_state";

/// What works by itself beside the node.
pub(super) struct Background {
    pub(super) metrics: Metrics,
    /// The parts that end with the agent.
    pub(super) parts: Parts,
    /// The sources of pods. They end when the agent begins to stop.
    pub(super) sources: Parts,
}

impl Background {
    pub(super) fn new() -> Self {
        let (metrics, stop) = (Metrics::new(), CancellationToken::new());
        let panics = metrics.actors.panics();
        let sources = Parts::new(panics.clone(), stop.child_token());
        Background { parts: Parts::new(panics.clone(), stop), sources, metrics }
    }
}

/// The ports of a node that an API server implements, if the node has one.
pub(super) struct ClusterPorts {
    pub(super) pod_api: Option<Arc<dyn PodApi>>,
    pub(super) node_api: Option<Arc<dyn NodeApi>>,
    pub(super) objects: Option<Arc<dyn ApiObjects>>,
    pub(super) claims: super::claims::ClaimServer,
    pub(super) pull_secrets: Arc<dyn PullSecrets>,
    pub(super) accounts: Option<Arc<dyn ServiceAccounts>>,
    /// Starts the recorder that writes events to the API server.
    pub(super) events: Option<StartEvents>,
    /// The port of the node API; 0 if it is not served.
    pub(super) port: u16,
}

impl Default for ClusterPorts {
    fn default() -> Self {
        ClusterPorts {
            pod_api: None,
            node_api: None,
            objects: None,
            claims: super::claims::ClaimServer::default(),
            pull_secrets: Arc::new(NoPullSecrets),
            accounts: None,
            events: None,
            port: 0,
        }
    }
}

/// Starts an event recorder with the clock and the metrics of the node.
pub(super) type StartEvents = Box<dyn FnOnce(Arc<dyn Clock>, &Metrics) -> Arc<dyn EventRecorder>>;

/// The ports of the runtime that the node API uses.
pub(super) struct RuntimeHandles {
    pub(super) streams: Arc<dyn StreamingRuntime>,
    pub(super) stats: Arc<dyn RuntimeStats>,
    pub(super) checkpoints: Option<Arc<dyn Checkpoints>>,
}

/// A node that runs, and what belongs to it.
pub(super) struct StartedNode {
    pub(super) control: NodeControl,
    pub(super) view: NodeView,
    /// The adopter of a kubelet's pods, if a kubelet may have started pods in the runtime.
    pub(super) adoption: Option<Adoption>,
    pub(super) handles: RuntimeHandles,
}

/// Opens the runtime and the other ports, and starts the node on them.
pub(super) async fn start(
    args: &RunArgs,
    root: &RootDirectory,
    name: &str,
    manifests: &ManifestSources,
    host_ips: HostIps,
    remote: ClusterPorts,
    background: &Background,
) -> Result<StartedNode, RunError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut booted = Time::ZERO;
    match boot::compare(root.path(), &[RUN_FACTS]) {
        Ok(BootChange::First | BootChange::Same) => {}
        Ok(BootChange::New) => {
            tracing::warn!("the machine rebooted since the last agent ran: containers of that agent have ended");
            booted = node_meter::booted(clock.now());
        }
        Err(error) => tracing::warn!(%error, "cannot find out whether the machine rebooted since the last agent ran"),
    }
    let eviction = args.eviction.policy()?;
    let machine = machine::capacity(args.max_pods, args.pods_per_core, root.path());
    let reservations = args.admission.reservations();
    let enforced = machine::enforced(&machine, &reservations);
    let whole = args.runtime.capacity(machine.clone());
    let capacity = args.runtime.allocatable(machine, &reservations, &eviction);
    let registration = registration(args, root, &whole, &capacity)?
        .kubelet_port(remote.port)
        .declared_features(declared_features(remote.port))
        .enforces_allocatable(args.runtime.limits_all_pods() && enforced.is_some());
    let metrics = background.metrics.clone();
    let remote_events = remote.events.map(|start| start(clock.clone(), &metrics));
    let events = Arc::new(EventLog::new(clock.clone(), remote_events));
    let allocatable = machine::quantities(&capacity);
    let runtime_name = args.runtime.name();
    let logs = root.logs();
    let runtime_config = RuntimeConfig {
        root: root.path(),
        logs: &logs,
        addresses: host_ips.clone(),
        clock: &clock,
        name: &runtime_name,
        metrics: &metrics,
        events: &events,
        open_files: machine::raise_open_files(),
        enforced,
        pull_secrets: remote.pull_secrets,
        accounts: remote.accounts,
    };
    let RuntimePorts {
        runtime,
        images,
        network,
        cgroups,
        log_writer,
        adoption,
        strict_groups,
        streams,
        stats,
        checkpoints,
    } = RuntimePorts::open(args, runtime_config).await?;
    let handles = RuntimeHandles { streams, stats, checkpoints };
    let limits =
        Limits { max_size: args.container_log_max_size.0 as u64, max_files: args.container_log_max_files as usize };
    if let Some(log_writer) = log_writer.filter(|_| limits.max_size > 0) {
        background
            .parts
            .spawn_local("log_rotation", async move || Rotator::new(log_writer.clone(), limits).run().await);
    }
    let storage = args.runtime.storage(FileStorage::new(root.path(), allocatable.clone()), &logs);
    let mut ports = NodePorts::new(runtime, network, Arc::new(storage.clone()))
        .final_statuses(Arc::new(FileCheckpoint::new(root.path().join(JOURNAL))))
        .allocations(Arc::new(FileCheckpoint::of_allocations(root.path().join(ALLOCATIONS))))
        .run_facts(Arc::new(FileCheckpoint::of_run_facts(root.path().join(RUN_FACTS))))
        .shutdown_times(Arc::new(FileCheckpoint::of_shutdown_times(root.path().join(SHUTDOWN_TIMES))))
        .events(events.clone())
        .clock(clock.clone())
        .metrics(metrics.clone());
    let progress = registration.clone();
    let handlers = args.admission.handlers(&args.runtime, name, capacity, strict_groups, move || progress.node());
    ports = handlers.into_iter().fold(ports, NodePorts::admission);
    if args.runtime == Runtime::Process && args.registration.refuses_root_pods() {
        ports = ports.admission(Arc::new(NoRootPods { agent: rustix::process::geteuid().as_raw() }));
    }
    if args.runtime.has_pods_on_machine() {
        if !eviction.unobserved().is_empty() {
            let signals = eviction.unobserved().join(", ");
            tracing::warn!(
                signals,
                "these signals of --eviction-hard or --eviction-soft are not observed and have no effect"
            );
        }
        ports = ports.disks(Arc::new(storage.clone())).meter(Arc::new(LinuxNodeMeter::new()));
    }
    let features = (&args.features).into();
    let (claims, plugins) =
        super::claims::start(root.path(), features, remote.claims, clock.clone(), &metrics, background.parts.stop())?;
    ports = ports.resources(claims.clone());
    let mut sources = manifests.kinds();
    if let Some(api) = remote.pod_api {
        ports = ports.pod_api(api);
        sources.push(SourceKind::Api);
    }
    if let Some(objects) = remote.objects {
        ports = ports.objects(objects);
    }
    if let Some(api) = remote.node_api {
        ports = ports.node_api(api);
    }
    if let Some(images) = images {
        ports = ports.images(images);
    }
    if let Some(cgroups) = cgroups {
        ports = ports.cgroups(cgroups);
    }
    if args.recording_size.0 > 0 {
        let recorder = Arc::new(Recorder::new(args.recording_size.0));
        let build = format!("podwright {}", env!("CARGO_PKG_VERSION"));
        recorder.note(clock.now(), &Note::AgentStarted { build, node: name.to_owned() });
        ports = ports.recorder(recorder);
    }
    let node = Node::builder(ports)
        .name(name)
        .host_ips(host_ips)
        .runtime_name(runtime_name)
        .allocatable(allocatable)
        .sources(sources)
        .registration(registration)
        .containers(ContainersConfig::default().booted(booted))
        .long_wait_after(args.explain_event_after)
        .eviction(eviction)
        .image_gc(args.images.gc_policy()?);
    let node = Arc::new(node.start()?);
    let control = NodeControl { node, claims: Some(claims), plugins: Some(plugins) };
    let parts = vec![background.parts.clone(), background.sources.clone()];
    let view = control.view(name, events, clock, metrics, storage, parts);
    Ok(StartedNode { control, view, adoption, handles })
}

/// The addresses of the flags, or those of the machine. A part follows the addresses of the machine: it may have none yet, and then has
/// the loopback address.
pub(super) fn host_ips(args: &RunArgs, parts: &Parts) -> HostIps {
    let given = args.registration.addresses();
    if !given.is_empty() {
        return given.into();
    }
    let mut found = machine::host_ips();
    if found.is_empty() {
        tracing::warn!("the machine has no default route: the node has the loopback address until there is one");
        found.push(Ipv4Addr::LOCALHOST.into());
    }
    let host_ips = HostIps::from(found);
    let followed = host_ips.clone();
    parts.spawn_local("host_addresses", async move || follow(followed.clone()).await);
    host_ips
}

/// Replaces the addresses when those of the machine change. A machine without a network keeps its last addresses. Never returns.
async fn follow(host_ips: HostIps) {
    loop {
        sleep(ADDRESSES_READ_EVERY).await;
        let found = machine::host_ips();
        if !found.is_empty() && host_ips.set(found.clone()) {
            tracing::info!(addresses = ?found, "the node has other addresses");
        }
    }
}

/// The features of a node whose node API has this port; 0 if it is not served.
fn declared_features(port: u16) -> Vec<String> {
    let streaming = (port != 0).then_some(STREAMING_FEATURE);
    streaming.into_iter().chain(DECLARED_FEATURES).map(str::to_owned).collect()
}

/// The node as it is registered in an API server. Without an API server, nothing uses it.
fn registration(
    args: &RunArgs,
    root: &RootDirectory,
    capacity: &NodeCapacity,
    allocatable: &NodeCapacity,
) -> Result<NodeRegistration, RunError> {
    if args.kubeconfig.is_none() {
        return Ok(NodeRegistration::new(""));
    }
    let instance = instance::of(root.path()).map_err(RunError::Instance)?;
    let registration = NodeRegistration::new(instance).provider_id(args.registration.provider_id.clone());
    let registration = match args.registration.has_external_cloud() {
        true => registration.external_cloud(args.registration.addresses()),
        false => registration,
    };
    Ok(registration
        .creates(args.registration.register_node)
        .schedulable(args.registration.register_schedulable)
        .labels(args.admission.labels(&args.runtime))
        .taints(args.registration.with_runtime_taint(args.admission.taints(), &args.runtime))
        .system_info(machine::system_info())
        .resources(machine::published(capacity), machine::published(allocatable)))
}
