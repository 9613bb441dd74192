//! The errors of runtime calls.

use std::error::Error;
use std::time::Duration;

use crate::ports::{ErrorSource, is_same};

/// A call to the runtime failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The runtime cannot be reached, so nothing is known of its containers.
    #[error("runtime unreachable")]
    Unreachable(#[source] ErrorSource),
    /// The sandbox, container or image does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// The call did not end in time; it may still take effect.
    #[error("{call} did not end within {after:?}: see the log of the container runtime")]
    Timeout {
        /// The name of the call.
        call: &'static str,
        /// The time limit of the call.
        after: Duration,
    },
    /// The container's settings are not usable (a missing command, an unsupported field). The container's reason is
    /// `CreateContainerConfigError`, or `StartError` at the start.
    #[error("{0}")]
    Config(#[source] ErrorSource),
    /// The runtime does not implement the call.
    #[error("{0}")]
    Unsupported(#[source] ErrorSource),
    /// The runtime reported an error.
    #[error("{0}")]
    Failed(#[source] ErrorSource),
}

impl RuntimeError {
    /// A [`RuntimeError::Unreachable`] with this source.
    pub fn unreachable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        RuntimeError::Unreachable(source.into().into())
    }

    /// A [`RuntimeError::Config`] with this source.
    pub fn config(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        RuntimeError::Config(source.into().into())
    }

    /// A [`RuntimeError::Unsupported`] with this source.
    pub fn unsupported(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        RuntimeError::Unsupported(source.into().into())
    }

    /// A [`RuntimeError::Failed`] with this source.
    pub fn failed(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        RuntimeError::Failed(source.into().into())
    }

    /// Whether the call's effect is unknown: it may have taken effect, or may still do so.
    pub fn is_open(&self) -> bool {
        matches!(self, RuntimeError::Timeout { .. } | RuntimeError::Unreachable(_))
    }
}

/// Two errors are equal if they have the same variant and the same text, sources included.
impl PartialEq for RuntimeError {
    fn eq(&self, other: &Self) -> bool {
        is_same(self, other)
    }
}

/// An image is not available.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The pull failed (`ErrImagePull`).
    #[error("{0}")]
    Pull(#[source] ErrorSource),
    /// The runtime does not know whether the image is present (`ImageInspectError`).
    #[error("image cannot be looked up")]
    Inspect(#[source] ErrorSource),
    /// The image is absent and the pull policy is `Never` (`ErrImageNeverPull`).
    #[error("image {0:?} is not present with pull policy Never")]
    NeverPull(String),
    /// The image's name is not valid (`InvalidImageName`).
    #[error("image name {0:?} is not valid")]
    InvalidName(String),
    /// The pull was cancelled because the pod stops.
    #[error("pull cancelled")]
    Cancelled,
}

impl ImageError {
    /// An [`ImageError::Pull`] with this source.
    pub fn pull(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ImageError::Pull(source.into().into())
    }

    /// An [`ImageError::Inspect`] with this source.
    pub fn inspect(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ImageError::Inspect(source.into().into())
    }
}

/// Two errors are equal if they have the same variant and the same text, sources included.
impl PartialEq for ImageError {
    fn eq(&self, other: &Self) -> bool {
        is_same(self, other)
    }
}
