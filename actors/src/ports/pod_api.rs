//! Writes the pods of this node to the API server.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::pod::PodObject;
use crate::ports::ErrorSource;

/// The result of a call to the API server.
pub type ApiFuture<'a, T> = BoxFuture<'a, Result<T, ApiError>>;

/// Writes pods to the API server. Each call has a timeout of its own. If a future is dropped, the server may still perform the
/// call.
pub trait PodApi: Send + Sync + 'static {
    /// Applies a strategic merge patch to the status of the pod that has the name and the UID of `pod`. Returns the pod as the
    /// server stored it.
    ///
    /// # Errors
    /// [`ApiError`]. [`ApiError::Conflict`] if the pod of this name has another UID.
    fn patch_status<'a>(&'a self, pod: &'a PodObject, status: Value) -> ApiFuture<'a, Arc<PodObject>>;

    /// Deletes the pod that has the name and the UID of `pod` at once, without a grace period.
    ///
    /// # Errors
    /// [`ApiError`]. [`ApiError::Conflict`] if the pod of this name has another UID.
    fn delete<'a>(&'a self, pod: &'a PodObject) -> ApiFuture<'a, ()>;

    /// Creates a pod, such as the mirror pod of a static pod. Returns the pod as the server stored it.
    ///
    /// # Errors
    /// [`ApiError`]. [`ApiError::Conflict`] if a pod of this name exists.
    fn create<'a>(&'a self, pod: &'a Pod) -> ApiFuture<'a, Arc<PodObject>>;
}

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
