//! Errors of sandbox and container operations.

use crate::containers::env::ConfigError;
use crate::ids::{ContainerId, ContainerName, SandboxId};
use crate::ports::{ImageError, RuntimeError, SyncError};
use crate::text::error_chain;
use crate::time::Time;

use super::hooks::HookError;

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
    #[error("stopping sandbox {sandbox}")]
    StopSandbox {
        /// The sandbox.
        sandbox: SandboxId,
        /// The runtime's error.
        source: RuntimeError,
    },
    /// A container could not be stopped.
    #[error("stopping container {container}")]
    StopContainer {
        /// The container.
        container: ContainerName,
        /// The runtime's error.
        source: RuntimeError,
    },
    /// A container could not be removed before all containers of its pod start again.
    #[error("removing a container before all start again")]
    RemoveContainer(#[source] RuntimeError),
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
#[derive(Debug, thiserror::Error)]
pub(super) enum StartFailure {
    #[error("waiting {} s before container {container} is started again", .delay.as_secs())]
    CrashLoop { container: ContainerName, delay: std::time::Duration, until: Time },
    #[error(transparent)]
    Image(ImageError),
    #[error("back-off pulling image {image:?}: {last}")]
    ImageBackOff { image: String, last: String, until: Time },
    #[error(transparent)]
    Config(ConfigError),
    #[error(transparent)]
    Create(RuntimeError),
    #[error("{}", error_chain(.error))]
    Start {
        /// The run, if the runtime refused to start it. `None` if the start may still take effect; such a start is
        /// repeated, because a run starts only once.
        refused: Option<ContainerId>,
        error: RuntimeError,
    },
    #[error(transparent)]
    PostStart(HookError),
    #[error("cancelled")]
    Cancelled,
}

impl StartFailure {
    /// The waiting reason, spelled as in the kubelet; `None` if nothing failed.
    pub(super) fn reason(&self) -> Option<&'static str> {
        Some(match self {
            StartFailure::CrashLoop { .. } => "CrashLoopBackOff",
            StartFailure::Image(ImageError::Pull(_)) => "ErrImagePull",
            StartFailure::ImageBackOff { .. } => "ImagePullBackOff",
            StartFailure::Image(ImageError::Inspect(_)) => "ImageInspectError",
            StartFailure::Image(ImageError::NeverPull(_)) => "ErrImageNeverPull",
            StartFailure::Image(ImageError::InvalidName(_)) => "InvalidImageName",
            StartFailure::Config(_) | StartFailure::Create(RuntimeError::Config(_)) => "CreateContainerConfigError",
            StartFailure::Create(_) => "CreateContainerError",
            StartFailure::Start { .. } => RUN_CONTAINER_ERROR,
            StartFailure::PostStart(_) => "PostStartHookError",
            StartFailure::Image(ImageError::Cancelled) | StartFailure::Cancelled => return None,
        })
    }

    /// When the backoff ends, if the container waits one out.
    pub(super) fn until(&self) -> Option<Time> {
        match self {
            StartFailure::CrashLoop { until, .. } | StartFailure::ImageBackOff { until, .. } => Some(*until),
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
    pub(super) fn into_sync_error(self, container: ContainerName) -> SyncError {
        let Some(reason) = self.reason() else { return SyncError::Cancelled };
        let message = error_chain(&self).to_string();
        match self {
            StartFailure::CrashLoop { until, .. } | StartFailure::ImageBackOff { until, .. } => {
                SyncError::BackOff { what: format!("{reason}: {message}"), until }
            }
            _ => ContainerError::StartContainer { container, reason, message }.into(),
        }
    }
}
