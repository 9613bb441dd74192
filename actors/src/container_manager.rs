//! Carries a [`Plan`](crate::containers::Plan) out against the container runtime: the order of stops, removals and starts, the hooks around them,
//! and what must be remembered between two tries.
//!
//! ```text
//! sync_containers: stop -> reset -> prune -> sandbox -> ephemeral -> init -> regular     (sync.rs)
//!                                                        each: backoff -> image -> its turn -> create -> start -> post-start
//! kill_pod:        containers, all at once -> sandboxes                                  (stop.rs)
//!                    each: pre-stop -> wait for whom it outlives -> stop
//! ```
//!
//! Cancellation reaches every wait (POD-W3): image pulls, sandbox creation, hooks and stops. A call that creates or starts a
//! container is not interrupted; one that was made and not started is started by the next setup that wants it.

pub mod activity;
mod error;
#[cfg(test)]
mod fake_runtime;
pub mod governor;
mod hooks;
mod resolver;
mod start;
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
    Clock, ContainerRuntime, EventRecorder, NetworkClient, PodRuntimeStatus, PodStorage, SyncError, VolumeMounts,
};
use crate::probes::ProbeSnapshot;
use crate::recorder::Recorder;
use crate::statuses::Statuses;
use crate::time::Time;

use crate::containers::backoff::CrashBackoff;
use crate::containers::image_backoff::{ImageBackoff, PullFailure};
use crate::containers::start_error::StartErrors;
use activity::Activities;
use governor::StartGovernor;
use stop::StopMemory;

pub use error::ContainerError;
pub use resolver::ContainerResolver;
pub use stop::{RunningContainer, RunningParts};

/// The ports and shared parts that [`ContainerManager`] uses.
pub struct ContainerPorts {
    /// Runs the containers.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Makes the network calls of lifecycle hooks.
    pub network: Arc<dyn NetworkClient>,
    /// Reads the restart counts that only the log directory still holds.
    pub storage: Arc<dyn PodStorage>,
    /// Records the events of pods.
    pub events: Arc<dyn EventRecorder>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Resolves the command, environment and mounts of a container.
    pub resolver: ContainerResolver,
    /// Holds the pod statuses; a new sandbox sets the pod's condition there.
    pub statuses: Arc<Statuses>,
    /// Counts starts.
    pub metrics: Metrics,
    /// Records the plans; `None` records nothing.
    pub recorder: Option<Arc<Recorder>>,
}

/// Settings of [`ContainerManager`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainersConfig {
    /// The longest crash backoff, held to 1..=300 s.
    pub max_crash_backoff: Duration,
    /// When the machine was started, if no agent ran since; what ran before ended with it.
    pub booted: Time,
}

impl Default for ContainersConfig {
    fn default() -> Self {
        ContainersConfig { max_crash_backoff: Duration::from_secs(300), booted: Time::ZERO }
    }
}

/// Starts and stops the containers of all pods. One call per pod at a time; pods in parallel.
pub struct ContainerManager {
    ports: Arc<ContainerPorts>,
    backoff: Mutex<CrashBackoff>,
    images: Mutex<ImageBackoff>,
    governor: StartGovernor,
    activities: Activities,
    start_errors: StartErrors,
    stops: StopMemory,
}

/// What to bring a pod's containers in line with.
#[derive(Clone, Copy, Debug)]
pub struct SyncWork<'a> {
    /// Fires when the call should end early, because the pod is to stop or something newer is to be done: then a sandbox that
    /// fails is no error.
    pub cancel: &'a CancellationToken,
    /// The pod.
    pub pod: &'a Arc<PodObject>,
    /// What the runtime knows of it.
    pub status: &'a PodRuntimeStatus,
    /// What its probes say.
    pub probes: &'a ProbeSnapshot,
    /// Where its volumes are.
    pub volumes: &'a VolumeMounts,
}

/// What [`ContainerManager::sync_containers`] did.
#[derive(Debug, Default)]
#[must_use]
pub struct SyncContainersResult {
    /// Whether anything changed in the runtime, so that its status should be read anew.
    pub acted: bool,
    /// The sandbox that was made.
    pub sandbox_created: Option<SandboxId>,
    /// What went wrong. Starts that failed do not keep others from starting.
    pub error: Option<SyncError>,
}

impl ContainerManager {
    /// A manager that remembers nothing yet; crash loops from before go on by what the runtime shows.
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
        }
    }

    /// Why containers could not be started, for the status.
    pub fn start_errors(&self) -> &StartErrors {
        &self.start_errors
    }

    /// What is being done for each pod.
    pub fn activities(&self) -> &Activities {
        &self.activities
    }

    /// Lets starts run, as many at once as the runtime bears.
    pub fn governor(&self) -> &StartGovernor {
        &self.governor
    }

    /// The images that could not be pulled for a pod, with what the last tries said.
    pub fn pull_failures(&self, uid: &PodUid) -> BTreeMap<String, PullFailure> {
        self.images.lock().of(uid)
    }

    /// Forgets what is remembered of the pods of which `keep` says no.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.backoff.lock().retain(&keep);
        self.images.lock().retain(&keep);
        self.start_errors.retain(&keep);
        self.stops.retain(&keep);
        if let Some(recorder) = &self.ports.recorder {
            recorder.retain(&keep);
        }
    }
}

/// Ends with [`SyncError::Cancelled`] as soon as `cancel` fires. The work is dropped where it stands.
async fn unless_cancelled<T>(
    cancel: &CancellationToken,
    work: impl Future<Output = Result<T, SyncError>>,
) -> Result<T, SyncError> {
    cancel.run_until_cancelled(work).await.unwrap_or(Err(SyncError::Cancelled))
}

/// No error, the one, or all of them.
fn joined(mut errors: Vec<SyncError>) -> Option<SyncError> {
    match errors.len() {
        0 | 1 => errors.pop(),
        _ => Some(SyncError::Many(errors)),
    }
}
