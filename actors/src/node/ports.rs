//! The ports of a node.

use std::sync::Arc;

use podwright_metrics::Metrics;

use crate::admission::AdmissionHandler;
use crate::pod::PodObject;
use crate::ports::{
    ApiObjects, Checkpoint, Clock, ContainerRuntime, DiskMeter, EventRecorder, ImageStore, NetworkClient, NoCheckpoint,
    NodeApi, NodeMeter, PodApi, PodCgroups, PodEvent, PodStorage, ResourcePhase, TokioClock,
};
use crate::recorder::Recorder;

/// The ports that a node runs over: three that every node needs, and optional ones with defaults.
#[derive(Clone)]
#[must_use]
pub struct NodePorts {
    pub(super) runtime: Arc<dyn ContainerRuntime>,
    pub(super) network: Arc<dyn NetworkClient>,
    pub(super) storage: Arc<dyn PodStorage>,
    pub(super) images: Option<Arc<dyn ImageStore>>,
    pub(super) disks: Option<Arc<dyn DiskMeter>>,
    pub(super) meter: Option<Arc<dyn NodeMeter>>,
    pub(super) cgroups: Option<Arc<dyn PodCgroups>>,
    pub(super) resources: Option<Arc<dyn ResourcePhase>>,
    pub(super) final_statuses: Arc<dyn Checkpoint>,
    pub(super) allocations: Arc<dyn Checkpoint>,
    pub(super) run_facts: Arc<dyn Checkpoint>,
    pub(super) shutdown_times: Arc<dyn Checkpoint>,
    pub(super) pod_api: Option<Arc<dyn PodApi>>,
    pub(super) objects: Option<Arc<dyn ApiObjects>>,
    pub(super) node_api: Option<Arc<dyn NodeApi>>,
    pub(super) events: Arc<dyn EventRecorder>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) admission: Vec<Arc<dyn AdmissionHandler>>,
    pub(super) metrics: Metrics,
    pub(super) recorder: Option<Arc<Recorder>>,
}

impl NodePorts {
    /// The runtime that runs containers, the client for the network calls of probes and hooks, and the storage of pod
    /// directories and volumes.
    pub fn new(
        runtime: Arc<dyn ContainerRuntime>,
        network: Arc<dyn NetworkClient>,
        storage: Arc<dyn PodStorage>,
    ) -> Self {
        NodePorts {
            runtime,
            network,
            storage,
            images: None,
            disks: None,
            meter: None,
            cgroups: None,
            resources: None,
            final_statuses: Arc::new(NoCheckpoint),
            allocations: Arc::new(NoCheckpoint),
            run_facts: Arc::new(NoCheckpoint),
            shutdown_times: Arc::new(NoCheckpoint),
            pod_api: None,
            objects: None,
            node_api: None,
            events: Arc::new(NoEvents),
            clock: Arc::new(TokioClock::new()),
            admission: Vec::new(),
            metrics: Metrics::new(),
            recorder: None,
        }
    }

    /// The image store, whose unused images are removed when the disk is full. By default none: no image is removed.
    pub fn images(mut self, images: Arc<dyn ImageStore>) -> Self {
        self.images = Some(images);
        self
    }

    /// The meter of disk space. With it, a pod that exceeds a limit on its local storage is evicted, and so is one pod after the
    /// other while a disk of the node is too full. By default none: nothing is measured.
    pub fn disks(mut self, meter: Arc<dyn DiskMeter>) -> Self {
        self.disks = Some(meter);
        self
    }

    /// The meter of the node's memory and process ids. With a meter, one pod after the other is evicted while the node lacks memory
    /// or process ids. By default none: neither is measured.
    pub fn meter(mut self, meter: Arc<dyn NodeMeter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// The cgroups of pods. By default pods have no cgroups of their own.
    pub fn cgroups(mut self, cgroups: Arc<dyn PodCgroups>) -> Self {
        self.cgroups = Some(cgroups);
        self
    }

    /// The phase that prepares and releases the resources of pods, such as the devices of ResourceClaims. By default none: pods get
    /// no such resources.
    pub fn resources(mut self, phase: Arc<dyn ResourcePhase>) -> Self {
        self.resources = Some(phase);
        self
    }

    /// The file of final statuses, which outlives the agent. By default none: an agent that restarts runs ended pods
    /// again.
    pub fn final_statuses(mut self, checkpoint: Arc<dyn Checkpoint>) -> Self {
        self.final_statuses = checkpoint;
        self
    }

    /// The file of the resources that are allocated to pods, which outlives the agent. By default none: an agent that restarts takes
    /// the allocations from the statuses of the API server.
    pub fn allocations(mut self, checkpoint: Arc<dyn Checkpoint>) -> Self {
        self.allocations = checkpoint;
        self
    }

    /// The file of the facts of containers that the runtime does not know, which outlives the agent. The facts are of one boot of the
    /// machine: whoever owns the file removes it after a reboot. Outdated facts are worse than none, so a store whose save fails drops its
    /// records. By default none: an agent that restarts takes a start that the death of the last agent interrupted for a failed one.
    pub fn run_facts(mut self, checkpoint: Arc<dyn Checkpoint>) -> Self {
        self.run_facts = checkpoint;
        self
    }

    /// The file that keeps the begin and the end of the last shutdown for the metrics of the next agent. By default none.
    pub fn shutdown_times(mut self, checkpoint: Arc<dyn Checkpoint>) -> Self {
        self.shutdown_times = checkpoint;
        self
    }

    /// The API server to which the statuses of pods are written. By default none: statuses are kept in memory only.
    pub fn pod_api(mut self, api: Arc<dyn PodApi>) -> Self {
        self.pod_api = Some(api);
        self
    }

    /// The API objects that the pods of an API server refer to. By default none: volumes and variables of such objects are refused.
    pub fn objects(mut self, objects: Arc<dyn ApiObjects>) -> Self {
        self.objects = Some(objects);
        self
    }

    /// The API server in which the node is registered. By default none. See [`NodeBuilder::registration`](super::NodeBuilder::registration).
    pub fn node_api(mut self, api: Arc<dyn NodeApi>) -> Self {
        self.node_api = Some(api);
        self
    }

    /// The recorder of pod and node events. By default events are dropped.
    pub fn events(mut self, events: Arc<dyn EventRecorder>) -> Self {
        self.events = events;
        self
    }

    /// The clock. By default tokio's, so that paused time works.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Adds an admission handler. Handlers run in the order in which they were added, and the first rejection counts.
    pub fn admission(mut self, handler: Arc<dyn AdmissionHandler>) -> Self {
        self.admission.push(handler);
        self
    }

    /// The metrics to count in. By default new metrics, which are not published.
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// The flight recorder. By default nothing is recorded.
    pub fn recorder(mut self, recorder: Arc<Recorder>) -> Self {
        self.recorder = Some(recorder);
        self
    }
}

/// Drops all events.
struct NoEvents;

impl EventRecorder for NoEvents {
    fn record(&self, _: &Arc<PodObject>, _: PodEvent) {}
}
