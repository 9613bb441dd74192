//! The server of the node API.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use k8s_openapi::api::authorization::v1::{SubjectAccessReviewSpec, SubjectAccessReviewStatus};
use kube::Client;
use tokio_util::sync::CancellationToken;

use super::RunError;
use super::node::RuntimeHandles;
use crate::adapters::kube::KubeReviews;
use crate::agent::certificates::{ServingNode, ServingSource, serving};
use crate::agent::cli::RunArgs;
use crate::agent::configz::configz;
use crate::agent::root::RootDirectory;
use crate::agent::view::NodeView;
use podwright_node_api::{NodeApiClients, NodeApiContent, NodeApiEndpoint, Reviews};
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
        let reviews = Arc::new(ClusterReviews(KubeReviews::new(client.clone())));
        let clients = NodeApiClients::new(reviews, args.node_api.client_ca_file.as_deref())?
            .stream_verb(args.node_api.websocket_verb.into());
        let certificate = source(args, root, node, addresses, client);
        Ok(Some(NodeApiServer { endpoint: NodeApiEndpoint::bind(address).await, clients, certificate }))
    }

    /// The port for the status of the node.
    pub(super) fn port(&self) -> u16 {
        self.endpoint.port()
    }

    /// Serves the node API until `stop` is cancelled.
    ///
    /// # Errors
    /// [`RunError`] if there is no certificate.
    pub(super) async fn start(
        self,
        args: &RunArgs,
        node: &str,
        view: NodeView,
        handles: RuntimeHandles,
        stop: CancellationToken,
    ) -> Result<(), RunError> {
        let certificate = serving(self.certificate, view.metrics.certificates.clone(), stop.clone()).await?;
        let parts = NodeApiContent {
            node: Arc::new(view.clone()),
            clock: view.clock.clone(),
            metrics: view.metrics.clone(),
            storage: view.logs.clone(),
            can_register_plugins: Arc::new(move || view.plugins_problem().is_none()),
            streams: handles.streams,
            stats: handles.stats,
            config: configz(args),
        };
        actix::spawn(self.endpoint.serve(node.to_owned(), self.clients, certificate, parts, stop));
        Ok(())
    }
}

/// The reviews of the cluster, for the gatekeeper of the node API.
struct ClusterReviews(KubeReviews);

impl Reviews for ClusterReviews {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<TokenReviewStatus, ApiError>> {
        self.0.token(token).boxed()
    }

    fn access(&self, spec: SubjectAccessReviewSpec) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ApiError>> {
        self.0.access(spec).boxed()
    }
}

/// Where the certificate of the server comes from.
fn source(args: &RunArgs, root: &RootDirectory, name: &str, addresses: HostIps, client: Client) -> ServingSource {
    let node = ServingNode { root: root.path().to_owned(), name: name.to_owned(), addresses };
    match args.certificates.tls_files() {
        Some(files) => ServingSource::Files(files),
        None if args.certificates.rotate_server_certificates => ServingSource::Signed(node, client),
        None => ServingSource::SelfSigned(node),
    }
}
