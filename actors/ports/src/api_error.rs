//! The errors of calls to an API server.

use std::error::Error;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::ErrorSource;

/// The result of a call to the API server.
pub type ApiFuture<'a, T> = BoxFuture<'a, Result<T, ApiError>>;

/// The API server did not perform a call.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The object does not exist (404).
    #[error("the object does not exist")]
    NotFound,
    /// The object is not in the state that the call requires (409).
    #[error("the object has changed, or exists already")]
    Conflict(#[source] ErrorSource),
    /// The server refused the call, and will refuse it again until somebody corrects the cause.
    #[error("the API server refused the call")]
    Refused(#[source] ErrorSource),
    /// The server cannot be reached, or cannot perform the call now. The caller may try again.
    #[error("the API server did not perform the call")]
    Unavailable {
        /// What the server or the connection reported.
        source: ErrorSource,
        /// The delay that the server requested (`Retry-After`).
        retry_after: Option<Duration>,
    },
}

impl ApiError {
    /// A refusal because of `source`.
    pub fn refused(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ApiError::Refused(source.into().into())
    }

    /// A conflict because of `source`.
    pub fn conflict(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ApiError::Conflict(source.into().into())
    }

    /// A temporary failure because of `source`.
    pub fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>, retry_after: Option<Duration>) -> Self {
        ApiError::Unavailable { source: source.into().into(), retry_after }
    }

    /// The delay that the server requested. Zero if it requested none.
    pub fn retry_after(&self) -> Duration {
        match self {
            ApiError::Unavailable { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }
}
