//! The server of the node API.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use k8s_openapi::api::authorization::v1::{SubjectAccessReviewSpec, SubjectAccessReviewStatus};
use kube::Client;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use super::RunError;
use super::node::RuntimeHandles;
use crate::adapters::kube::KubeReviews;
use crate::agent::certificates::{ServingNode, ServingSource, serving};
use crate::agent::cli::RunArgs;
use crate::agent::configz::configz;
use crate::agent::machine;
use crate::agent::root::RootDirectory;
use crate::agent::view::NodeView;
use podwright_node_api::{NodeApiClients, NodeApiContent, NodeApiEndpoint, NodeApiThreads, Reviews};
use podwright_parts::Parts;
use podwright_ports::{ApiError, HostIps};

/// The port of the node API with its certificate, and the clients that may use it.
pub(super) struct NodeApiServer {
    endpoint: NodeApiEndpoint,
    clients: NodeApiClients,
    certificate: ServingSource,
}

impl NodeApiServer {
    /// Listens on the address of the flags. `None` if the node API is off.
    ///
    /// # Errors
    /// [`RunError`] if a file of the flags cannot be used.
    pub(super) async fn open(
        args: &RunArgs,
        root: &RootDirectory,
        node: &str,
        addresses: HostIps,
        client: Client,
    ) -> Result<Option<Self>, RunError> {
        let Some(address) = args.node_api.node_api.address() else { return Ok(None) };
        let reviews = ClusterReviews { reviews: KubeReviews::new(client.clone()), runtime: Handle::current() };
        let reviews = Arc::new(reviews);
        let clients = NodeApiClients::new(reviews, args.node_api.client_ca_file.as_deref())?
            .stream_verb(args.node_api.websocket_verb.into());
        let certificate = source(args, root, node, addresses, client);
        let endpoint = NodeApiEndpoint::bind(address).await.tls(args.node_api.tls());
        Ok(Some(NodeApiServer { endpoint, clients, certificate }))
    }

    /// The port for the status of the node.
    pub(super) fn port(&self) -> u16 {
        self.endpoint.port()
    }

    /// Serves the node API until the parts of the agent end. One of the parts ends early if the server does.
    ///
    /// # Errors
    /// [`RunError`] if there is no certificate or no thread.
    pub(super) async fn start(
        self,
        args: &RunArgs,
        node: &str,
        view: NodeView,
        handles: RuntimeHandles,
        parts: &Parts,
    ) -> Result<NodeApiThreads, RunError> {
        let certificate = serving(self.certificate, view.metrics.certificates.clone(), parts).await?;
        let content = NodeApiContent {
            node: Arc::new(view.clone()),
            clock: view.clock.clone(),
            metrics: view.metrics.clone(),
            storage: view.logs.clone(),
            can_register_plugins: Arc::new(move || view.plugins_problem().is_none()),
            streams: handles.streams,
            stats: handles.stats,
            system_info: machine::system_info(),
            checkpoints: handles.checkpoints,
            config: configz(args),
        };
        let threads = self.endpoint.start(node.to_owned(), self.clients, certificate, content, parts.stop().clone());
        let threads = threads.map_err(RunError::NodeApi)?;
        // While the node API is not served, the agent is not ready.
        let served = threads.clone();
        parts.spawn_local("node_api", async move || served.ended().await);
        Ok(threads)
    }
}

/// The reviews of the cluster, for the gatekeeper of the node API. They run in the runtime of the client: it keeps the connections to the
/// API server, and the node API ends before it.
struct ClusterReviews {
    reviews: KubeReviews,
    runtime: Handle,
}

impl ClusterReviews {
    fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, ApiError>> {
        let task = AbortOnDropHandle::new(self.runtime.spawn(call));
        async move { task.await.unwrap_or_else(|error| Err(ApiError::unavailable(error, None))) }.boxed()
    }
}

impl Reviews for ClusterReviews {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<TokenReviewStatus, ApiError>> {
        let (reviews, token) = (self.reviews.clone(), token.to_owned());
        self.call(async move { reviews.token(&token).await })
    }

    fn access(&self, spec: SubjectAccessReviewSpec) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ApiError>> {
        let reviews = self.reviews.clone();
        self.call(async move { reviews.access(spec).await })
    }
}

/// Where the certificate of the server comes from.
fn source(args: &RunArgs, root: &RootDirectory, name: &str, addresses: HostIps, client: Client) -> ServingSource {
    let directory = args.certificates.directory(root.path());
    let node = ServingNode { directory, name: name.to_owned(), addresses };
    match args.certificates.tls_files() {
        Some(files) => ServingSource::Files(files),
        None if args.certificates.rotate_server_certificates => ServingSource::Signed(node, client),
        None => ServingSource::SelfSigned(node),
    }
}
