//! What can go wrong with sandboxes and containers.

use crate::containers::env::ConfigError;
use crate::ids::{ContainerId, ContainerName, SandboxId};
use crate::ports::{ImageError, RuntimeError, SyncError};
use crate::time::Time;

/// A sandbox or container could not be brought where it should be.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// A sandbox could not be created.
    #[error("creating sandbox, attempt {attempt}: {error}")]
    CreateSandbox {
        /// How many there were before.
        attempt: u32,
        /// What the runtime said.
        error: RuntimeError,
    },
    /// The new sandbox cannot be looked at.
    #[error("reading the status of the new sandbox: {0}")]
    SandboxStatus(RuntimeError),
    /// A sandbox could not be stopped.
    #[error("stopping sandbox {sandbox}: {error}")]
    StopSandbox {
        /// Which.
        sandbox: SandboxId,
        /// What the runtime said.
        error: RuntimeError,
    },
    /// A container could not be stopped.
    #[error("stopping container {container}: {error}")]
    StopContainer {
        /// Which.
        container: ContainerName,
        /// What the runtime said.
        error: RuntimeError,
    },
    /// A container that all others wait for could not be removed.
    #[error("removing a container before all start again: {0}")]
    RemoveContainer(RuntimeError),
    /// A container could not be started.
    #[error("starting container {container}: {reason}: {message}")]
    StartContainer {
        /// Which.
        container: ContainerName,
        /// The waiting reason that the status shows.
        reason: &'static str,
        /// What went wrong.
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

/// The waiting reason of a container that the runtime did not start, in upstream's spelling.
pub(super) const RUN_CONTAINER_ERROR: &str = "RunContainerError";

/// Why one container was not started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartFailure {
    #[error("waiting {} s before container {container} is started again", .delay.as_secs())]
    CrashLoop { container: ContainerName, delay: std::time::Duration, until: Time },
    #[error("{0}")]
    Image(ImageError),
    #[error("back-off pulling image {image:?}: {last}")]
    ImageBackOff { image: String, last: String, until: Time },
    #[error("{0}")]
    Config(ConfigError),
    #[error("{0}")]
    Create(RuntimeError),
    #[error("{error}")]
    Start {
        /// The run, if the runtime will not start it. One that may be on its way runs once at most, so it is tried again.
        refused: Option<ContainerId>,
        error: RuntimeError,
    },
    #[error("{0}")]
    PostStart(String),
    #[error("cancelled")]
    Cancelled,
}

impl StartFailure {
    /// The waiting reason, in upstream's spelling; `None` if nothing failed.
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

    /// When a try makes sense again, if it waits out a backoff.
    pub(super) fn until(&self) -> Option<Time> {
        match self {
            StartFailure::CrashLoop { until, .. } | StartFailure::ImageBackOff { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// The run that the runtime would not start.
    pub(super) fn refused(&self) -> Option<ContainerId> {
        match self {
            StartFailure::Start { refused, .. } => refused.clone(),
            _ => None,
        }
    }

    /// As an error of the whole sync: what waits out a backoff says when it is over.
    pub(super) fn into_sync_error(self, container: ContainerName) -> SyncError {
        let Some(reason) = self.reason() else { return SyncError::Cancelled };
        let message = self.to_string();
        match self {
            StartFailure::CrashLoop { until, .. } | StartFailure::ImageBackOff { until, .. } => {
                SyncError::BackOff { what: format!("{reason}: {message}"), until }
            }
            _ => ContainerError::StartContainer { container, reason, message }.into(),
        }
    }
}
