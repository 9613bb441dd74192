//! Errors of sandbox and container operations.

use crate::containers::env::ConfigError;
use crate::ids::{ContainerId, ContainerName, PodUid};
use crate::pod::PodObject;
use crate::ports::{ImageError, ResourceError, RuntimeError, SyncError};
use crate::text::error_chain;
use crate::texts::{containers, images, pods};
use crate::time::Time;

/// A sandbox or container operation failed.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// A sandbox could not be created.
    #[error("creating sandbox, attempt {attempt}")]
    CreateSandbox {
        /// The number of sandboxes that the pod had before.
        attempt: u32,
        /// The runtime's error.
        source: RuntimeError,
    },
    /// The status of the new sandbox could not be read.
    #[error("reading the status of the new sandbox")]
    SandboxStatus(#[source] RuntimeError),
    /// A sandbox could not be stopped.
    #[error("{}", pods::kill_failed("KillPodSandbox", &.pod.to_string(), &.source.of_runtime()))]
    StopSandbox {
        /// The sandbox's pod.
        pod: PodUid,
        /// The runtime's error.
        source: RuntimeError,
    },
    /// The resources of the pod are not ready.
    #[error("prepare dynamic resources")]
    Resources(#[source] ResourceError),
    /// A container could not be stopped.
    #[error("{}", pods::kill_failed("KillContainer", .container.as_str(), &.source.of_runtime()))]
    StopContainer {
        /// The container.
        container: ContainerName,
        /// The runtime's error.
        source: RuntimeError,
    },
    /// A container runs after all containers of its pod were stopped.
    #[error("container {:?} still runs although the containers of its pod were stopped", .container.as_str())]
    StillRunning {
        /// The container.
        container: ContainerName,
    },
    /// The runtime reports a container as running, which contradicts its other answers or the processes of the machine.
    #[error(
        "the container runtime reports container {:?} ({id}) as running, but {evidence}: read the log of the container \
         runtime, and restart it",
        .container.as_str()
    )]
    RuntimeLied {
        /// The container.
        container: ContainerName,
        /// The container's id.
        id: ContainerId,
        /// What contradicts the report.
        evidence: String,
    },
    /// A container could not be removed before all containers of its pod start again.
    #[error("removing a container before all start again")]
    RemoveContainer(#[source] RuntimeError),
    /// A run that never started, because the agent that started it died, could not be removed.
    #[error("removing a container whose start the last agent did not finish")]
    RemoveAbandoned(#[source] RuntimeError),
    /// The resources of running containers could not be changed.
    #[error("cannot resize the pod: {0}")]
    Resize(String),
    /// A container could not be started.
    #[error("starting container {container}: {reason}: {message}")]
    StartContainer {
        /// The container.
        container: ContainerName,
        /// The waiting reason in the pod's status.
        reason: &'static str,
        /// The error message.
        message: String,
    },
}

impl From<ContainerError> for SyncError {
    fn from(error: ContainerError) -> Self {
        match error {
            ContainerError::StartContainer { .. } => SyncError::NotStarted(error.into()),
            error => SyncError::failed(error),
        }
    }
}

/// The waiting reason of a container that the runtime did not start, spelled as in the kubelet.
pub(super) const RUN_CONTAINER_ERROR: &str = "RunContainerError";

/// Why a container was not started.
#[derive(Debug)]
pub(super) enum StartFailure {
    CrashLoop {
        container: ContainerName,
        delay: std::time::Duration,
        until: Time,
    },
    Image(ImageError),
    ImageBackOff {
        image: String,
        last: ImageError,
        until: Time,
    },
    /// An image volume of the container cannot be used.
    ImageVolume(Box<StartFailure>),
    Config(ConfigError),
    Create(RuntimeError),
    Start {
        /// The run, if the runtime refused to start it. `None` if the start may still take effect; such a start is
        /// repeated, because a run starts only once.
        refused: Option<ContainerId>,
        error: RuntimeError,
    },
    PostStart {
        /// The waiting message, with the output of the hook's command.
        message: String,
        /// The message without the output, for logs.
        summary: String,
    },
    Cancelled,
}

impl StartFailure {
    /// The waiting reason, spelled as in the kubelet; `None` if nothing failed.
    pub(super) fn reason(&self) -> Option<&'static str> {
        Some(match self {
            StartFailure::CrashLoop { .. } => "CrashLoopBackOff",
            StartFailure::ImageBackOff { .. } => "ImagePullBackOff",
            StartFailure::Image(error) => return error.reason(),
            StartFailure::ImageVolume(failure) => return failure.reason(),
            StartFailure::Config(_)
            | StartFailure::Create(RuntimeError::Config(_) | RuntimeError::MissingDevice(_)) => {
                "CreateContainerConfigError"
            }
            StartFailure::Create(_) => "CreateContainerError",
            StartFailure::Start { .. } => RUN_CONTAINER_ERROR,
            StartFailure::PostStart { .. } => "PostStartHookError",
            StartFailure::Cancelled => return None,
        })
    }

    /// The waiting message, spelled as in the kubelet.
    pub(super) fn message(&self, pod: &PodObject) -> String {
        match self {
            StartFailure::CrashLoop { container, delay, .. } => {
                containers::crash_backoff(*delay, container.as_str(), pod)
            }
            StartFailure::ImageBackOff { image, last, .. } => {
                images::backoff(image, last.reason().unwrap_or_default(), &error_chain(last).to_string())
            }
            StartFailure::Image(error) => error_chain(error).to_string(),
            StartFailure::ImageVolume(failure) => failure.message(pod),
            StartFailure::Config(error) => error_chain(error).to_string(),
            StartFailure::Create(error) | StartFailure::Start { error, .. } => error_chain(error).to_string(),
            StartFailure::PostStart { message, .. } => message.clone(),
            StartFailure::Cancelled => "cancelled".to_owned(),
        }
    }

    /// When the backoff ends, if the container waits one out.
    pub(super) fn until(&self) -> Option<Time> {
        match self {
            StartFailure::CrashLoop { until, .. } | StartFailure::ImageBackOff { until, .. } => Some(*until),
            StartFailure::ImageVolume(failure) => failure.until(),
            _ => None,
        }
    }

    /// The run that the runtime refused to start.
    pub(super) fn refused(&self) -> Option<ContainerId> {
        match self {
            StartFailure::Start { refused, .. } => refused.clone(),
            _ => None,
        }
    }

    /// Converts to an error of the whole sync. A backoff keeps the time of its end.
    pub(super) fn into_sync_error(self, pod: &PodObject, container: ContainerName) -> SyncError {
        let Some(reason) = self.reason() else { return SyncError::Cancelled };
        let message = match &self {
            StartFailure::PostStart { summary, .. } => summary.clone(),
            failure => failure.message(pod),
        };
        match self.until() {
            Some(until) => SyncError::BackOff { what: format!("{reason}: {message}"), until },
            None => ContainerError::StartContainer { container, reason, message }.into(),
        }
    }
}
