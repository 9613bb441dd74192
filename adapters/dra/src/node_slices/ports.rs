//! What the task uses: the API server, and the drivers.

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use podwright_dra_api::node_resources::NodeListAndWatchResourcesResponse;
use podwright_kube_api::KubeError;
use podwright_model::ids::DriverName;
use podwright_slices::DriverResources;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::state::Target;

/// A call to the API server failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error("the API server has no node {0}")]
    NoNode(String),
    #[error("the API server did not perform the call")]
    Failed(#[source] KubeError),
    #[error("the API server did not answer in time")]
    Timeout,
}

pub(super) type Answer<'a, T> = BoxFuture<'a, Result<T, ApiError>>;

/// The API server, and the drivers of the node.
pub(super) trait SlicePorts: Send + Sync + 'static {
    /// An instance of a driver.
    type Instance: Clone + PartialEq + Send + Sync + 'static;
    /// Publishes for one driver until it is dropped.
    type Publisher: Publisher;

    /// Whether the node exists.
    ///
    /// # Errors
    /// [`ApiError::NoNode`] if it does not.
    fn node(&self) -> Answer<'_, ()>;

    /// Deletes slices of the node, unless `stop` fires before the deletion is sent. Returns whether it was sent.
    fn wipe<'a>(&'a self, target: &'a Target, stop: &'a CancellationToken) -> Answer<'a, bool>;

    /// The drivers that have slices of the node.
    fn drivers(&self) -> Answer<'_, std::collections::BTreeSet<DriverName>>;

    /// Opens the stream of an instance as soon as it is connected.
    fn stream(
        &self,
        instance: &Self::Instance,
    ) -> BoxStream<'static, Result<NodeListAndWatchResourcesResponse, Status>>;

    /// Begins to publish for a driver.
    fn publisher(&self, driver: &DriverName) -> Self::Publisher;
}

/// Publishes the resources of a driver.
pub(super) trait Publisher: Send + 'static {
    /// Replaces the resources, and writes them from now on.
    fn publish(&self, resources: DriverResources);

    /// Writes nothing until [`publish`](Publisher::publish) is called.
    fn hold(&self);
}
