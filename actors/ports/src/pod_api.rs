//! Writes the pods of this node to the API server.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::ApiFuture;
use podwright_model::pod::PodObject;

/// Writes pods to the API server. Each call has a timeout of its own. If a future is dropped, the server may still perform the
/// call.
pub trait PodApi: Send + Sync + 'static {
    /// Applies a strategic merge patch to the status of the pod that has the name and the UID of `pod`. Returns the pod as the
    /// server stored it.
    ///
    /// # Errors
    /// [`ApiError`](super::ApiError). [`Conflict`](super::ApiError::Conflict) if the pod of this name has another UID.
    fn patch_status<'a>(&'a self, pod: &'a PodObject, status: Value) -> ApiFuture<'a, Arc<PodObject>>;

    /// Deletes the pod that has the name and the UID of `pod` at once, without a grace period.
    ///
    /// # Errors
    /// [`ApiError`](super::ApiError). [`Conflict`](super::ApiError::Conflict) if the pod of this name has another UID.
    fn delete<'a>(&'a self, pod: &'a PodObject) -> ApiFuture<'a, ()>;

    /// Creates a pod, such as the mirror pod of a static pod. Returns the pod as the server stored it.
    ///
    /// # Errors
    /// [`ApiError`](super::ApiError). [`Conflict`](super::ApiError::Conflict) if a pod of this name exists.
    fn create<'a>(&'a self, pod: &'a Pod) -> ApiFuture<'a, Arc<PodObject>>;
}
