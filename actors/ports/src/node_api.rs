//! The API server's object of this node and its lease, as the node reads and writes them.

use futures_util::stream::BoxStream;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;

use super::{ApiError, ApiFuture};

/// Reads and writes the Node object of one node, and its lease in the namespace `kube-node-lease`. An implementation knows the name
/// of the node. Each call has a timeout of its own. If a future is dropped, the server may still perform the call.
pub trait NodeApi: Send + Sync + 'static {
    /// Reads the node.
    ///
    /// # Errors
    /// [`ApiError`](super::ApiError).
    fn node(&self, freshness: Freshness) -> ApiFuture<'_, Node>;

    /// Follows the node: each version of it, and `None` when it does not exist. The first item is its state at the beginning. An
    /// error means that versions may be missing; the stream then continues with the state after a while. The stream never ends.
    fn versions(&self) -> BoxStream<'_, Result<Option<Node>, ApiError>>;

    /// Creates the node. Returns it as the server stored it.
    ///
    /// # Errors
    /// [`ApiError`](super::ApiError). [`Conflict`](super::ApiError::Conflict) if the node exists.
    fn create_node<'a>(&'a self, node: &'a Node) -> ApiFuture<'a, Node>;

    /// Applies a strategic merge patch to the metadata of the node. Returns the node as the server stored it.
    ///
    /// # Errors
    /// [`ApiError`](super::ApiError).
    fn patch_node(&self, patch: Value) -> ApiFuture<'_, Node>;

    /// Applies a strategic merge patch to the status of the node. Returns the node as the server stored it.
    ///
    /// # Errors
    /// [`ApiError`](super::ApiError).
    fn patch_node_status(&self, patch: Value) -> ApiFuture<'_, Node>;

    /// Deletes the node that has this UID.
    ///
    /// # Errors
    /// [`ApiError`](super::ApiError). [`Conflict`](super::ApiError::Conflict) if the node of this name has another UID.
    fn delete_node<'a>(&'a self, uid: &'a str) -> ApiFuture<'a, ()>;

    /// Reads the lease.
    ///
    /// # Errors
    /// [`ApiError`](super::ApiError).
    fn lease(&self) -> ApiFuture<'_, Lease>;

    /// Creates the lease. Returns it as the server stored it.
    ///
    /// # Errors
    /// [`ApiError`](super::ApiError). [`Conflict`](super::ApiError::Conflict) if the lease exists.
    fn create_lease<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease>;

    /// Replaces the lease that has the resource version of `lease`. Returns it as the server stored it.
    ///
    /// # Errors
    /// [`ApiError`](super::ApiError). [`Conflict`](super::ApiError::Conflict) if the lease has another resource version.
    fn replace_lease<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease>;

    /// Deletes the lease that has the resource version of `lease`.
    ///
    /// # Errors
    /// [`ApiError`](super::ApiError). [`Conflict`](super::ApiError::Conflict) if the lease has another resource version.
    fn delete_lease<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, ()>;
}

/// The required freshness of an object that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// The server may answer from its cache, which costs it little.
    Cached,
    /// The answer is the newest version of the object.
    Newest,
}
