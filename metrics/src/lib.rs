//! The metrics of podwright.
//!
//! A metric with the same meaning as in the kubelet has the kubelet's name, type, labels and buckets (Kubernetes 1.36).
//! Metrics that only podwright has start with `podwright_`. This crate knows no pods, actors or clocks: its callers
//! pass counts and durations.
//!
//! - Each subsystem has one struct ([`PodWorkerMetrics`], [`HousekeepingMetrics`], ...) with a method per event. Each
//!   registers itself in any [`Registry`]. There are no statics, so every test and every engine has its own.
//! - [`Metrics`] composes those of a node over one registry and encodes it as OpenMetrics or as classic Prometheus text.
//!   [`ControllersMetrics`] does so for the controllers of the control plane.
//! - Closed label sets are enums, so that a series that does not exist cannot be counted.
//! - Methods called for every sync ([`PodWorkerMetrics::worked`], [`ActorMetrics::handled`]) are a few relaxed atomic
//!   additions: no lock, no hashing of labels, no allocation.
//!
//! ```
//! use std::time::Duration;
//! use podwright_metrics::{Format, Metrics, OperationType};
//!
//! let metrics = Metrics::new();
//! metrics.pod_worker.worked(OperationType::Create, Duration::from_millis(3));
//!
//! let text = metrics.encode(Format::Classic);
//! assert!(text.contains("kubelet_pod_worker_duration_seconds_count{operation_type=\"create\"} 1\n"));
//! ```

mod actors;
mod admission;
mod certificates;
mod containers;
mod controllers;
mod dra;
mod encode;
mod events;
mod governor;
mod histogram;
mod housekeeping;
mod image_credentials;
mod labels;
mod node;
mod node_api;
mod pleg;
mod pod_worker;
mod probes;
mod register;
mod resize;
mod runtime;
mod shutdown;
mod slices;
mod start;
mod status;
mod streaming;
mod work_queues;

use std::sync::Arc;

pub use prometheus_client::registry::Registry;

pub use actors::{ActorMetrics, ActorsMetrics, PanicMetrics};
pub use admission::{AdmissionMetrics, EvictionSignal};
pub use certificates::CertificateMetrics;
pub use containers::{ContainerMetrics, ImageRemoval};
pub use controllers::{
    ClaimSeries, ControllersMetrics, DeviceTaintEvictionMetrics, LeaderElectionMetrics, ResourceClaimControllerMetrics,
    WatchMetrics,
};
pub use dra::{ClaimOperation, ClaimsInUse, DraMetrics, PluginMetrics, PodResourcesMethod, PodResourcesMetrics};
pub use encode::Format;
pub use events::{EventMetrics, EventOutcome};
pub use governor::GovernorMetrics;
pub use housekeeping::{BySource, HousekeepingMetrics, Lifecycle, OldestPhases, PodConfig, WorkingPods};
pub use image_credentials::{ImageCredentialMetrics, PullCheck};
pub use labels::ContainerType;
pub use node::{CgroupOperation, NodeMetrics};
pub use node_api::{NodeApiLimit, NodeApiMetrics, NodeApiResource};
pub use pleg::{PlegMetrics, RunningContainers};
pub use pod_worker::{OperationType, PodWorkerMetrics};
pub use probes::{ProbeMetrics, ProbeType, ProbedContainer};
pub use resize::{ResizeMetrics, RetryTrigger};
pub use runtime::{RuntimeMetrics, RuntimeOperation};
pub use shutdown::ShutdownMetrics;
pub use slices::{SliceMetrics, SliceWrite};
pub use start::StartMetrics;
pub use status::StatusMetrics;
pub use streaming::{StreamSubresource, StreamingMetrics};
pub use work_queues::{WorkQueueDurations, WorkQueueMetrics, WorkQueueNumbers};

/// The metrics of all subsystems over one registry. Clones share their numbers. A clone has a pointer per series, so an
/// object that exists once per pod should hold only the subsystem that it needs.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Messages, refusals and panics of the engine's actors.
    pub actors: ActorsMetrics,
    /// Refused, evicted and preempted pods.
    pub admission: AdmissionMetrics,
    /// The certificates of the node.
    pub certificates: CertificateMetrics,
    /// Sandboxes, containers, images and lifecycle handlers.
    pub containers: ContainerMetrics,
    /// ResourceClaims and their drivers.
    pub dra: DraMetrics,
    /// The events that go to the API server.
    pub events: EventMetrics,
    /// The start governor.
    pub governor: GovernorMetrics,
    /// The housekeeping passes.
    pub housekeeping: HousekeepingMetrics,
    /// Credentials of image pulls.
    pub image_credentials: ImageCredentialMetrics,
    /// The node and its cgroups.
    pub node: NodeMetrics,
    /// The limits of the node API.
    pub node_api: NodeApiMetrics,
    /// The detection of runtime changes.
    pub pleg: PlegMetrics,
    /// The plugins of the node.
    pub plugins: PluginMetrics,
    /// The ResourceSlices of the node.
    pub slices: SliceMetrics,
    /// Requests of the pod-resources socket.
    pub pod_resources: PodResourcesMetrics,
    /// The work per pod.
    pub pod_worker: PodWorkerMetrics,
    /// The probes of containers.
    pub probes: ProbeMetrics,
    /// In-place resizes of pods.
    pub resize: ResizeMetrics,
    /// The calls to the container runtime.
    pub runtime: RuntimeMetrics,
    /// The graceful node shutdown.
    pub shutdown: ShutdownMetrics,
    /// The start times of pods.
    pub start: StartMetrics,
    /// The statuses and their writes.
    pub status: StatusMetrics,
    /// The streams of the node API.
    pub streaming: StreamingMetrics,
    /// The work queue of the ResourceSlices.
    pub work_queues: WorkQueueMetrics,
    registry: Arc<Registry>,
}

impl Metrics {
    /// All subsystems, in a new registry.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let actors = ActorsMetrics::register(&mut registry);
        Metrics {
            admission: AdmissionMetrics::register(&mut registry),
            certificates: CertificateMetrics::register(&mut registry),
            containers: ContainerMetrics::register(&mut registry),
            dra: DraMetrics::register(&mut registry),
            events: EventMetrics::register(&mut registry, actors.panics()),
            governor: GovernorMetrics::register(&mut registry),
            housekeeping: HousekeepingMetrics::register(&mut registry),
            image_credentials: ImageCredentialMetrics::register(&mut registry),
            node: NodeMetrics::register(&mut registry),
            node_api: NodeApiMetrics::register(&mut registry),
            pleg: PlegMetrics::register(&mut registry),
            plugins: PluginMetrics::register(&mut registry),
            slices: SliceMetrics::register(&mut registry),
            pod_resources: PodResourcesMetrics::register(&mut registry),
            pod_worker: PodWorkerMetrics::register(&mut registry),
            probes: ProbeMetrics::register(&mut registry),
            resize: ResizeMetrics::register(&mut registry),
            runtime: RuntimeMetrics::register(&mut registry),
            shutdown: ShutdownMetrics::register(&mut registry),
            start: StartMetrics::register(&mut registry),
            status: StatusMetrics::register(&mut registry),
            streaming: StreamingMetrics::register(&mut registry),
            work_queues: WorkQueueMetrics::register(&mut registry),
            actors,
            registry: Arc::new(registry),
        }
    }

    /// Encodes all metrics as the body of a scrape. May be called from any thread while others count.
    ///
    /// A labelled family without a series is omitted, as scrapers expect.
    pub fn encode(&self, format: Format) -> String {
        encode::encode(&self.registry, format)
    }

    /// As [`encode`](Metrics::encode), without the families whose labels name pods, the node or its files. For clients that may not know
    /// which pods the node has.
    pub fn encode_without_names(&self, format: Format) -> String {
        encode::encode_without_names(&self.registry, format)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}
