//! The errors of runtime calls.

use std::error::Error;
use std::time::Duration;

use crate::{ErrorSource, is_same};
use podwright_model::text::error_chain;
use podwright_model::texts::images;

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
    /// A device of a claim, or what belongs to it, is missing on the node, so that the container cannot be created. Its driver may have to
    /// prepare the claim again. The container's reason is `CreateContainerConfigError`.
    #[error("{0}")]
    MissingDevice(#[source] ErrorSource),
    /// The runtime does not implement the call.
    #[error("{0}")]
    Unsupported(#[source] ErrorSource),
    /// The runtime answered with a gRPC status.
    #[error("{message}")]
    Status {
        /// The name of the gRPC code, such as `Unknown`.
        code: &'static str,
        /// The message of the status.
        message: String,
    },
    /// The runtime reported an error.
    #[error("{0}")]
    Failed(#[source] ErrorSource),
}

impl RuntimeError {
    /// The error in the form of Go's gRPC library, which upstream puts into some events. An error without a gRPC status prints
    /// itself with its sources.
    pub fn of_runtime(&self) -> String {
        match self {
            RuntimeError::Status { code, message } => format!("rpc error: code = {code} desc = {message}"),
            error => error_chain(error).to_string(),
        }
    }

    /// A [`RuntimeError::Unreachable`] with this source.
    pub fn unreachable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        RuntimeError::Unreachable(source.into().into())
    }

    /// A [`RuntimeError::Config`] with this source.
    pub fn config(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        RuntimeError::Config(source.into().into())
    }

    /// A [`RuntimeError::MissingDevice`] with this source.
    pub fn missing_device(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        RuntimeError::MissingDevice(source.into().into())
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

/// An image is not available. The text of an error is the waiting message of the container.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The pull failed (`ErrImagePull`). The text is the runtime's.
    #[error("{0}")]
    Pull(#[source] ErrorSource),
    /// The registry does not answer (`RegistryUnavailable`).
    #[error("{}", images::registry_unavailable(.image, .rest))]
    RegistryUnavailable {
        /// The image, as the spec names it.
        image: String,
        /// The runtime's text after the word `RegistryUnavailable`.
        rest: String,
    },
    /// The runtime refuses the image's signature (`SignatureValidationFailed`).
    #[error("{}", images::signature_validation_failed(.image, .rest))]
    SignatureValidationFailed {
        /// The image, as the spec names it.
        image: String,
        /// The runtime's text after the word `SignatureValidationFailed`.
        rest: String,
    },
    /// The runtime does not know whether the image is present (`ImageInspectError`).
    #[error("{}", images::inspect_failed(&chain(.0)))]
    Inspect(ErrorSource),
    /// The image is absent and the pull policy is `Never` (`ErrImageNeverPull`).
    #[error("{}", images::never_pull(.0))]
    NeverPull(String),
    /// The image's name is not valid (`InvalidImageName`).
    #[error("{}", images::invalid_name(.0))]
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

    /// The waiting reason, spelled as in the kubelet; `None` for a cancellation.
    pub fn reason(&self) -> Option<&'static str> {
        Some(match self {
            ImageError::Pull(_) => "ErrImagePull",
            ImageError::RegistryUnavailable { .. } => images::REGISTRY_UNAVAILABLE,
            ImageError::SignatureValidationFailed { .. } => images::SIGNATURE_VALIDATION_FAILED,
            ImageError::Inspect(_) => "ImageInspectError",
            ImageError::NeverPull(_) => "ErrImageNeverPull",
            ImageError::InvalidName(_) => "InvalidImageName",
            ImageError::Cancelled => return None,
        })
    }

    /// Whether a pull failed, so that the next pull waits out a backoff.
    pub fn is_of_pull(&self) -> bool {
        matches!(
            self,
            ImageError::Pull(_) | ImageError::RegistryUnavailable { .. } | ImageError::SignatureValidationFailed { .. }
        )
    }

    /// The runtime's own text, which the event of the failed pull has.
    pub fn of_runtime(&self) -> String {
        match self {
            ImageError::RegistryUnavailable { rest, .. } => format!("{}{rest}", images::REGISTRY_UNAVAILABLE),
            ImageError::SignatureValidationFailed { rest, .. } => {
                format!("{}{rest}", images::SIGNATURE_VALIDATION_FAILED)
            }
            error => error_chain(error).to_string(),
        }
    }
}

/// Two errors are equal if they have the same variant and the same text, sources included.
impl PartialEq for ImageError {
    fn eq(&self, other: &Self) -> bool {
        is_same(self, other)
    }
}

fn chain(source: &ErrorSource) -> String {
    error_chain(&**source).to_string()
}
