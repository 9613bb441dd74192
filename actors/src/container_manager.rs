//! Performs a `Plan` against the container runtime: it orders stops, removals and starts,
//! runs the lifecycle hooks around them, and keeps what must survive between two tries.
//!
//! ```text
//! sync_containers: stop -> prune -> sandbox -> unfinished starts -> ephemeral -> init -> resize -> regular     (sync.rs, resize.rs)
//!                                                        each: backoff -> image -> governor -> create -> start -> post-start
//! kill_pod:        containers, all at once -> sandboxes                                  (stop.rs)
//!                    each: pre-stop -> wait for the containers that stop before -> stop
//! ```
//!
//! A cancellation ends every wait (POD-W3): image pulls, sandbox creation, hooks and stops. A call that creates or
//! starts a container is not interrupted. If a container was created and not started, a later sync starts it.

pub(crate) mod activity;
mod contradictions;
mod error;
pub(crate) mod governor;
mod hooks;
mod objects;
mod resize;
mod resolver;
mod start;
mod start_errors;
mod stop;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_metrics::Metrics;
use tokio_util::sync::CancellationToken;

use crate::ids::{PodUid, SandboxId};
use crate::pod::PodObject;
use crate::ports::{
    ApiObjects, Clock, ContainerRuntime, EventRecorder, NetworkClient, PodCgroups, PodRuntimeStatus, PodStorage,
    ResourcePhase, SyncError, VolumeMounts,
};
use crate::probes::ProbeSnapshot;
use crate::recorder::Recorder;
use crate::resizes::Resizes;
use crate::run_facts::RunFacts;
use crate::starts::PodStarts;
use crate::statuses::Statuses;
use crate::time::Time;

use crate::containers::backoff::CrashBackoff;
use crate::containers::image_backoff::{ImageBackoff, PullFailure};
use activity::Activities;
use contradictions::Contradictions;
use governor::StartGovernor;
use start_errors::StartErrors;
use stop::StopMemory;

pub use error::ContainerError;
pub(crate) use objects::read_objects;
pub use resolver::ContainerResolver;
pub use stop::{RunningContainer, RunningParts};

/// Why no container of a pod with ResourceClaims starts if the agent has no [`ResourcePhase`](crate::ports::ResourcePhase).
const NO_CLAIMS: &str = "this node agent cannot prepare the ResourceClaims of the pod: use an agent that supports DRA drivers, or another node";

/// The ports and shared parts that [`ContainerManager`] uses.
pub struct ContainerPorts {
    /// Runs the containers.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Makes the network calls of lifecycle hooks.
    pub network: Arc<dyn NetworkClient>,
    /// Reads the restart counts that only the log directory still holds.
    pub storage: Arc<dyn PodStorage>,
    /// The API objects that variables are taken from; `None` without an API server.
    pub objects: Option<Arc<dyn ApiObjects>>,
    /// Records the events of pods.
    pub events: Arc<dyn EventRecorder>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Resolves the command, environment and mounts of a container.
    pub resolver: ContainerResolver,
    /// Prepares and releases the resources of pods; `None` if pods may need none.
    pub resources: Option<Arc<dyn ResourcePhase>>,
    /// The cgroups of pods; `None` if pods have none of their own.
    pub cgroups: Option<Arc<dyn PodCgroups>>,
    /// What is allocated to pods that are being resized.
    pub(crate) resizes: Arc<Resizes>,
    /// What the next agent has to know of the runs.
    pub(crate) run_facts: Arc<RunFacts>,
    /// Holds the pod statuses; a new sandbox sets the pod's condition there.
    pub statuses: Arc<Statuses>,
    /// Counts starts.
    pub metrics: Metrics,
    /// Measures the starts of pods.
    pub(crate) starts: Arc<PodStarts>,
    /// Records the plans; `None` records nothing.
    pub recorder: Option<Arc<Recorder>>,
}

/// Settings of [`ContainerManager`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainersConfig {
    max_crash_backoff: Duration,
    booted: Time,
}

impl Default for ContainersConfig {
    fn default() -> Self {
        ContainersConfig { max_crash_backoff: Duration::from_secs(300), booted: Time::ZERO }
    }
}

impl ContainersConfig {
    /// The longest crash backoff, clamped to 1..=300 s. By default 300 s.
    #[must_use]
    pub fn max_crash_backoff(mut self, longest: Duration) -> Self {
        self.max_crash_backoff = longest;
        self
    }

    /// When the machine was started, if no agent has run since: the containers of earlier agents ended with the old boot. By
    /// default an agent has run since.
    #[must_use]
    pub fn booted(mut self, at: Time) -> Self {
        self.booted = at;
        self
    }
}

/// Starts and stops the containers of all pods. At most one call per pod at a time; calls for different pods run in
/// parallel.
pub struct ContainerManager {
    ports: Arc<ContainerPorts>,
    backoff: Mutex<CrashBackoff>,
    images: Mutex<ImageBackoff>,
    governor: StartGovernor,
    activities: Activities,
    start_errors: StartErrors,
    stops: StopMemory,
    contradictions: Contradictions,
}

/// The input of [`ContainerManager::sync_containers`].
#[derive(Clone, Copy, Debug)]
pub struct SyncWork<'a> {
    /// Ends the call early, because the pod stops or has a newer version. A sandbox that then fails is no error.
    pub cancel: &'a CancellationToken,
    /// The pod.
    pub pod: &'a Arc<PodObject>,
    /// The pod's status in the runtime.
    pub status: &'a PodRuntimeStatus,
    /// The pod's probe results.
    pub probes: &'a ProbeSnapshot,
    /// The host paths of the pod's volumes.
    pub volumes: &'a VolumeMounts,
}

/// The result of [`ContainerManager::sync_containers`].
#[derive(Debug, Default)]
#[must_use]
pub struct SyncContainersResult {
    /// Whether the runtime's state may have changed, so that the pod's status must be read again.
    pub acted: bool,
    /// The sandbox that was created.
    pub sandbox_created: Option<SandboxId>,
    /// The errors. A failed start does not keep other containers from starting.
    pub error: Option<SyncError>,
}

impl ContainerManager {
    /// A manager without any state. Crash backoffs continue by the runs that the runtime lists.
    pub fn new(config: ContainersConfig, ports: ContainerPorts) -> Self {
        let backoff = CrashBackoff::new(config.max_crash_backoff, ports.clock.now(), config.booted);
        ContainerManager {
            backoff: Mutex::new(backoff),
            images: Mutex::default(),
            governor: StartGovernor::new(ports.clock.clone(), ports.metrics.governor.clone()),
            activities: Activities::new(ports.clock.clone()),
            ports: Arc::new(ports),
            start_errors: StartErrors::default(),
            stops: StopMemory::default(),
            contradictions: Contradictions::default(),
        }
    }

    /// Why containers could not be started.
    pub fn start_errors(&self) -> &StartErrors {
        &self.start_errors
    }

    /// The current activities for each pod.
    pub fn activities(&self) -> &Activities {
        &self.activities
    }

    /// Limits the number of concurrent starts to what the runtime handles well.
    pub fn governor(&self) -> &StartGovernor {
        &self.governor
    }

    /// The images that could not be pulled for a pod, with their last failures.
    pub fn pull_failures(&self, uid: &PodUid) -> BTreeMap<String, PullFailure> {
        self.images.lock().of(uid)
    }

    /// Removes the state of the pods that `keep` rejects.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.backoff.lock().retain(&keep);
        self.images.lock().retain(&keep);
        self.start_errors.retain(&keep);
        self.stops.retain(&keep);
        self.contradictions.retain(&keep);
        if let Some(recorder) = &self.ports.recorder {
            recorder.retain(&keep);
        }
    }
}

/// Runs `work` until `cancel` fires, then drops it and returns [`SyncError::Cancelled`].
async fn unless_cancelled<T>(
    cancel: &CancellationToken,
    work: impl Future<Output = Result<T, SyncError>>,
) -> Result<T, SyncError> {
    cancel.run_until_cancelled(work).await.unwrap_or(Err(SyncError::Cancelled))
}

/// Combines errors: none, the only one, or [`SyncError::Many`].
fn joined(mut errors: Vec<SyncError>) -> Option<SyncError> {
    match errors.len() {
        0 | 1 => errors.pop(),
        _ => Some(SyncError::Many(errors)),
    }
}
